"""The step walker and its threads: order, sharing, neighbours, and a stress test with and without the thread
sanitizer."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from handmade import chain, compiled, expected, python, zig_cc

import pelton.native
from pelton.backends.cpu import NativeProgram, load_code
from pelton.errors import InputError
from pelton.runtime import Engine

NATIVE = Path(pelton.native.__file__).parent


def place(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture(scope="module")
def code():
    with load_code(compiled()) as c:
        yield c


def cascade(code, n: int, steps: int, tiles: int, grain: int = 1):
    """x → 1·x → … through `steps` waves, every value moved to another place each time: (words, arrays)."""
    rng = np.random.default_rng(n)
    arrays = [rng.standard_normal(n).astype(np.float32)] + [np.zeros(n, np.float32) for _ in range(steps)]
    size = -(-n // tiles)
    rows = [
        (
            code.symbol("add"),
            [place(arrays[i]), place(arrays[i]), place(arrays[i + 1]), size, n],
            3,
            -(-n // size),
            grain,
            i,
            0,
            1,
        )
        for i in range(steps)
    ]
    return rows, arrays


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_waves_follow_each_other(code, threads):
    for n, tiles, grain in ((64, 1, 1), (64, 64, 1), (1000, 7, 2), (4096, 100, 3), (4096, 5, 100)):
        rows, arrays = cascade(code, n, 20, tiles, grain)
        program = NativeProgram(rows, threads)
        for _ in range(30):
            for a in arrays[1:]:
                a[:] = np.nan
            program.run()
            assert np.array_equal(arrays[-1], arrays[0] * np.float32(2**20))


def test_every_participant_has_scratch_of_its_own(code):
    x, z = np.random.default_rng(0).integers(-9, 9, 3000).astype(np.float32), np.empty(3000, np.float32)
    program = NativeProgram([(code.symbol("window"), [place(x), place(z), 50], 2, 3000, 1, 0, 200, 1)], 4)
    for _ in range(10):
        z[:] = 0
        program.run()
        assert np.array_equal(z, np.convolve(x, np.ones(50, np.float32))[:3000])


def test_times_and_profiles(code):
    x = np.ones(64, np.float32)
    slow = (code.symbol("slow"), [place(x), place(np.empty_like(x)), 1, 30], 2, 4, 1, 0, 0, 1)
    none = (*slow[:3], 0, 1, 1, 0, 1)
    for threads in (1, 2):
        program = NativeProgram([slow, none, slow[:5] + (2, 0, 1)], threads)
        assert len(program.time(3)) == 3 and all(10_000 < ns < 10**9 for ns in program.time(3))
        first, empty, last = program.profile()
        assert first > 10_000 and last > 10_000 and 0 <= empty < first


def test_steps_that_are_refused(code):
    good = (code.symbol("scale"), [0, 0, 1], 2, 1, 1, 0, 0, 1)
    for i, bad in ((0, 0), (2, 4), (3, -1), (3, 1 << 31), (4, 0), (6, -1), (7, 0), (7, 1 << 31)):
        with pytest.raises(InputError, match="a step needs a kernel"):
            NativeProgram([(*good[:i], bad, *good[i + 1 :])], 1)
    NativeProgram([], 2).run()


def test_contexts_side_by_side():
    """Two contexts in two threads, and one engine called from eight, on fewer CPUs."""
    e, wrong = Engine(chain(5000)), []
    xs = [np.random.default_rng(i).integers(-9, 9, 5000).astype(np.float32) for i in range(8)]

    def use(call, x):
        wanted = expected(x)
        for _ in range(60):
            r = call({"x": x})
            wrong.extend(k for k in wanted if not np.array_equal(r[k], wanted[k]))

    for calls in ([e.context(2).run, e.context(2).run], [e.run] * 8):
        crew = [threading.Thread(target=use, args=(call, x)) for call, x in zip(calls, xs)]
        for t in crew:
            t.start()
        for t in crew:
            t.join()
    assert not wrong
    shared = e.context(2)
    crew = [threading.Thread(target=use, args=(shared.run, x)) for x in xs[:3]]  # they wait for each other
    for t in crew:
        t.start()
    for t in crew:
        t.join()
    assert not wrong


def test_neighbours_in_flight():
    """While one context runs, others are made, run and dropped, and code is loaded and unloaded."""
    e, x, wrong, stop = Engine(chain(3000)), np.arange(3000, dtype=np.float32), [], threading.Event()
    wanted = expected(x)

    def steady():
        context = e.context(2)
        while not stop.is_set():
            r = context.run({"x": x})
            wrong.extend(k for k in wanted if not np.array_equal(r[k], wanted[k]))

    t = threading.Thread(target=steady)
    t.start()
    try:
        for i in range(80):
            other = Engine(chain(500 + i))
            y = np.arange(500 + i, dtype=np.float32)
            r = other.context(1 + i % 4).run({"x": y})
            assert all(np.array_equal(r[k], v) for k, v in expected(y).items())
    finally:
        stop.set()
        t.join()
    assert not wrong


def test_the_interpreter_runs_meanwhile(code):
    """A native run does not hold the interpreter's lock."""
    x = np.ones(64, np.float32)
    program = NativeProgram([(code.symbol("slow"), [place(x), place(np.empty_like(x)), 1, 4000], 2, 64, 1, 0, 0, 1)], 1)
    t, ticks = threading.Thread(target=program.run), 0
    t.start()
    while t.is_alive():
        ticks += 1
        time.sleep(0.001)
    assert ticks >= 5


def test_threads_that_the_system_refuses_are_asked_for_again():
    r = python("""
        import os, resource, time
        import numpy as np
        from handmade import chain, expected
        from pelton.runtime import Engine
        context, x, counts = Engine(chain(5000)).context(threads=3), np.arange(5000, dtype=np.float32), []

        def good():
            fine = all(np.array_equal(context.run({"x": x})[k], v) for k, v in expected(x).items())
            tasks = os.listdir("/proc/self/task")
            counts.append(sum(open(f"/proc/self/task/{t}/comm").read() == "pelton\\n" for t in tasks))
            return fine
        before = resource.getrlimit(resource.RLIMIT_AS)
        used = 4096 * int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), before[1]))       # a thread's stack takes more
        assert good()
        resource.setrlimit(resource.RLIMIT_AS, before)
        time.sleep(1.1)
        assert good()
        for _ in range(100):                                                        # they give themselves a name
            time.sleep(0.1)
            assert good()
            if counts[-1] == 2:
                break
        print(counts[0], counts[-1])
        """)
    assert r.stdout == "0 2\n", r.stderr


def test_a_thread_does_not_wait_for_itself():
    """A name that is compared, and the handler of a signal, call the context whose run they came into."""
    r = python("""
        import signal
        import numpy as np
        from handmade import chain, expected
        from pelton.errors import InputError
        from pelton.runtime import Engine
        context, said, x = Engine(chain(100000)).context(threads=2), [], np.arange(100000, dtype=np.float32)
        out = {k: np.empty_like(v) for k, v in expected(x).items()}

        def again(*_):
            for call in (context.run, context.profile):
                try:
                    call({"x": x})
                except InputError as e:
                    said.append(str(e))
            return True
        Odd = type("Odd", (), {"__hash__": lambda _: hash("x"), "__eq__": again})
        assert np.array_equal(context.run({Odd(): x})["y"], expected(x)["y"]) and len(said) % 2 == 0 and said

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for given in (None, out):
            said.clear()
            while len(said) < 10:
                results = context.run({"x": x}, given)
                assert all(np.array_equal(results[k], v) for k, v in expected(x).items())
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(said[-1])
        """)
    assert "already running in this thread" in r.stdout, r.stderr


def test_threads_sleep_between_runs():
    """An idle engine takes no CPU time."""
    e = Engine(chain(5000))
    x = np.ones(5000, np.float32)
    for _ in range(10):
        e.run({"x": x})
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_exit_in_the_middle_of_a_run():
    """A daemon thread is inside a run when the interpreter ends."""
    for _ in range(3):
        r = python("""
            import threading, time
            import numpy as np
            from handmade import chain
            from pelton.runtime import Engine
            e, x = Engine(chain(200000)), np.ones(200000, np.float32)
            def steady():
                while True:
                    e.run({"x": x})
            threading.Thread(target=steady, daemon=True).start()
            time.sleep(0.05)
            """)
        assert r.returncode == 0, r.stderr


def test_steps_of_one_wave_overlap(code):
    """Two steps of one tile each that wait for each other: only side by side do they meet."""
    for tiles, threads, met in ((1, 2, True), (1, 1, False)):
        counter, seen = np.zeros(1, np.int64), np.zeros(2, np.float32)
        limit = 10**10 if met else 1000
        rows = [(code.symbol("meet"), [place(counter), place(seen[i:]), limit], 2, tiles, 1, 0, 0, 1) for i in range(2)]
        NativeProgram(rows, threads).run()
        assert (seen.tolist() == [1, 1]) == met


SOURCES = [
    str(Path(__file__).parent / "runtime_stress.c"),
    *(str(NATIVE / f"{n}.c") for n in ("pool", "program", "memory")),
]


def stress(program: Path, seconds: float, *arguments: int) -> None:
    r = subprocess.run([str(program), str(seconds), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr[-3000:]
    assert int(r.stdout.split()[0]) > 50


def test_stress():
    """Short waves of random tile counts from several callers: alone, with too many threads, with spinning, without."""
    binary = zig_cc(SOURCES, ["-std=gnu2x", "-O2", "-w", "-I", str(NATIVE), "-lpthread"])
    for callers, threads, milli_cores in ((1, 2, 2000), (3, 4, 4000), (2, 4, 1000), (4, 8, 16000)):
        stress(binary, 0.8, callers, threads, milli_cores)


def test_stress_under_the_thread_sanitizer(tmp_path):
    binary = tmp_path / "stress"
    made = (
        subprocess.run(
            [
                "cc",
                "-std=gnu2x",
                "-O1",
                "-g",
                "-w",
                "-fsanitize=thread",
                "-I",
                str(NATIVE),
                *SOURCES,
                "-o",
                str(binary),
                "-lpthread",
            ],
            capture_output=True,
            text=True,
        )
        if shutil.which("cc")
        else None
    )
    if made is None or made.returncode or subprocess.run([str(binary)], capture_output=True).returncode != 2:
        pytest.skip("no system compiler with a thread sanitizer")
    for callers, threads, milli_cores in ((2, 3, 2000), (3, 4, 4000)):
        stress(binary, 1.2, callers, threads, milli_cores)


def test_first_contexts_of_many_threads():
    for _ in range(3):  # without care, most of these crashed
        r = python("""
            import sys, threading
            import numpy as np
            from handmade import chain, expected
            from pelton.runtime import Engine
            sys.setswitchinterval(1e-6)
            e, x, made, start = Engine(chain(1000)), np.arange(1000, dtype=np.float32), [], threading.Barrier(8)
            def first():
                start.wait()
                made.append(e.context(threads=1))
            threads = [threading.Thread(target=first) for _ in range(8)]
            for t in threads: t.start()
            for t in threads: t.join()
            assert all(np.array_equal(c.run({"x": x})["y"], expected(x)["y"]) for c in made for _ in range(3))
            """)
        assert r.returncode == 0, (r.returncode, r.stderr)


def test_a_traced_run_is_a_run_with_time_stamps():
    net, x = Engine(chain(1000)), np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    out, begin = {"y": np.empty(1000, np.float32)}, time.monotonic_ns()
    for results, steps in (net.trace({"x": x}), net.context(2).trace({"x": x}, out)):
        stamps = [begin, *(t for _, *pair in steps for t in pair), time.monotonic_ns()]
        assert all(np.array_equal(results[k], v) for k, v in expected(x).items()) and [s.name for s, *_ in steps] == [
            "double",
            "add",
            "triple",
        ]
        assert stamps == sorted(stamps)
    assert results["y"] is out["y"]
