"""The driver's interface through cuda-bindings, on a fake driver: received arguments, and messages on failure."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import chain, python, zig_cc
from test_cuda_runtime import CUBINS, branches, on_gpu

from pelton.engine import file
from pelton.errors import EngineError
from pelton.targets import gpus

HAVE = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
needs_binding = pytest.mark.skipif(not HAVE, reason='cuda-bindings is not installed: pip install "pelton[cuda]"')
LARGE = [replace(CUBINS[0], shared=100_000), CUBINS[1]]

RUN = """
    import sys, json, numpy as np, pelton
    from pelton.errors import Error
    try:
        net = pelton.load(sys.argv[1])
        context = net.context()
        x = np.arange(1000, dtype=np.float32)
        results = context.run({"x": x})
        MORE
        print(json.dumps({k: np.asarray(v).tolist() for k, v in results.items()}))
    except Error as e:
        print(f"{type(e).__name__}: {e}")
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """A folder with a libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    built = zig_cc(
        [str(Path(__file__).parent / "fake_libcuda.c")],
        ["-shared", "-fPIC", "-O1", "-fno-sanitize=all", "-Wno-everything"],
    )
    (folder / "libcuda.so.1").symlink_to(built)
    return folder


def ran(driver: Path, tmp_path: Path, more: str = "pass", plain=None, fail: str = "") -> tuple[str, list[str]]:
    """What a process said that ran an engine, and what its driver wrote down."""
    path, log = tmp_path / "e.pelton", tmp_path / "log"
    file.write(on_gpu(chain(1000), LARGE) if plain is None else plain, path)
    log.write_text("")
    done = python(
        RUN.replace("MORE", more), path, LD_LIBRARY_PATH=str(driver), FAKE_CUDA_LOG=str(log), FAKE_CUDA_FAIL=fail
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), log.read_text().splitlines()


def wanted(x: np.ndarray) -> dict:
    z = 2 * x + np.arange(1000)
    return {"y": (3 * z).tolist(), "z": z.tolist()}


@needs_binding
def test_what_arrives_at_the_driver(driver, tmp_path):
    said, log = ran(driver, tmp_path, "import gc; del context, net; gc.collect()")
    assert json.loads(said) == wanted(np.arange(1000))
    assert "attribute scale 8=100000" in log and not any(line.startswith("attribute add") for line in log)
    assert [line for line in log if line.startswith("node")] == [
        "node 0 scale after",
        "node 1 add after 0",
        "node 2 scale after 1",
    ]
    launches = [line.split(" words ") for line in log if line.startswith("replay")]
    assert [head for head, _ in launches] == [
        "replay scale grid 1000 block 128 shared 100000 cluster 1",
        "replay add grid 126 block 256 shared 0 cluster 2",
        "replay scale grid 1000 block 128 shared 100000 cluster 1",
    ]
    (x, a, two, s0, p0), (b, c, z, tile, n, s1, p1), (d, y, three, s2, p2) = (
        [int(w) for w in words.split()] for _, words in launches
    )
    assert (two, three, tile, n) == (2, 3, 16, 1000) and a == b and z == d and len({x, a, c, z, y}) == 5
    assert s0 == s2 == p0 == p1 == p2 == 0 and s1 > 0 and s1 % 128 == 0
    assert log.count("free") >= 3  # the arena, the weights, the pinned memory


@needs_binding
def test_launches_one_by_one_and_nodes_that_change(driver, tmp_path):
    said, log = ran(
        driver,
        tmp_path,
        "net.context().profile({'x': x}); other = net.context()\n"
        "        results = other.run({'x': context.run_async({'x': x})['z']})",
    )
    x = 2 * np.arange(1000) + np.arange(1000)
    assert json.loads(said) == wanted(x)
    assert [re.sub(" words.*", "", line) for line in log if line.startswith("launch")] == [
        "launch scale grid 1000 block 128 shared 100000 cluster 1",
        "launch add grid 126 block 256 shared 0 cluster 2",
        "launch scale grid 1000 block 128 shared 100000 cluster 1",
    ]
    assert log.count("change 0") == 1  # x lies where the other context wrote it


@needs_binding
def test_kernels_are_timed_by_the_driver(driver, tmp_path):
    plain = on_gpu(chain(1000))
    other = replace(plain.steps[0], info={"tactic": "other"})
    steps = (replace(plain.steps[0], info={"tactic": "first"}, alternatives=(other,)), *plain.steps[1:])
    said, log = ran(
        driver,
        tmp_path,
        "tuned = pelton.tune(sys.argv[1])\n"
        "        print(tuned.meta['gpu'], tuned.meta['multiprocessors'], tuned.steps[0].info['times_ns'])",
        replace(plain, steps=steps),
    )
    # the driver says 0.5 ms of whatever it is, here three turns
    assert said.splitlines()[0] == "Fake 0 132 {'first': 166667, 'other': 166667}"
    # four times the L2 cache
    assert log.count("node 0 scale after") == 6 and any(line.startswith("allocate 209715200") for line in log)


@needs_binding
def test_what_does_not_end_is_not_waited_for(driver, tmp_path):
    """Neither by the clock nor by what gives memory back, which the driver would let wait, too."""
    plain = on_gpu(chain(1000))
    other = replace(plain.steps[0], info={"tactic": "other"})
    steps = (replace(plain.steps[0], info={"tactic": "first"}, alternatives=(other,)), *plain.steps[1:])
    tune = "from pelton.backends.cuda import clock; clock.PATIENCE = 0.05; pelton.tune(sys.argv[1])"
    said, _ = ran(driver, tmp_path, tune, replace(plain, steps=steps), "endless=1")
    assert said.startswith(
        "KernelHangs: first of step 'double': a kernel does not end on Fake 0; this process can use the GPU no more,"
        " end it. "
    )


@needs_binding
def test_edges_arrive(driver, tmp_path):
    _, log = ran(driver, tmp_path, plain=on_gpu(branches()))
    assert [line for line in log if line.startswith("node")] == [
        "node 0 scale after",
        "node 1 scale after",
        "node 2 add after 0 1",
        "node 3 add after 0",
        "node 4 add after 2 3",
    ]


@needs_binding
@pytest.mark.parametrize(
    "fail, text",
    [
        ("cuInit=100", "the NVIDIA driver does not start: as the driver says it (CUDA_ERROR_NO_DEVICE)"),
        ("count=1", "no NVIDIA GPU is available to this process; see CUDA_VISIBLE_DEVICES"),
        (
            "cuMemAlloc=2",
            "e.pelton', for its weights, needs 0.0 MB of GPU memory, but only 0.0 MB of 1.07 GB are free on Fake 0",
        ),
        ("cuMemHostAlloc=2", "of pinned memory for copies"),
        (
            "cuModuleLoadData=209",
            (
                "this driver cannot load kernel 'scale' for sm_90: as the driver says it"
                " (CUDA_ERROR_NO_BINARY_FOR_GPU); it may be too old"
            ),
        ),
        (
            "cuGraphLaunch=700",
            "the GPU's context is lost (cuGraphLaunch: as the driver says it (CUDA_ERROR_ILLEGAL_ADDRESS))",
        ),
        ("cuStreamSynchronize=719", "the GPU's context is lost"),
        ("cuCtxPushCurrent=709", "the GPU's context is lost"),
        ("cuGraphCreate=801", "the NVIDIA driver refuses cuGraphCreate"),
        (
            "wide=1",
            (
                "the parameters of kernel 'scale' for sm_90 do not fit its step, 5: parameter 0 is 4 bytes at 0,"
                " must be 8 bytes at 0"
            ),
        ),
    ],
)
def test_what_a_driver_refuses_is_one_sentence(driver, tmp_path, fail, text):
    said, _ = ran(driver, tmp_path, fail=fail)
    assert said.startswith("EngineError: ") and text in said and "\n" not in said


@needs_binding
def test_another_number_of_parameters(driver, tmp_path):
    plain = chain(1000)
    steps = tuple(replace(s, dims=(*s.dims, 1)) if s.symbol == "scale" else s for s in plain.steps)
    said, _ = ran(driver, tmp_path, plain=on_gpu(replace(plain, steps=steps), LARGE))
    assert "do not fit its step, 6: parameter 5 is missing, must be 8 bytes at 40" in said


@needs_binding
def test_forked_processes_are_told(driver, tmp_path):
    said, _ = ran(
        driver,
        tmp_path,
        "import os; child = os.fork()\n        results = net.context().run({'x': x}) if child == 0 else"
        " os._exit(os.wait()[0] < 0)",
    )
    assert said.startswith("EngineError: this process was forked from one that had begun to use the GPU")


@needs_binding
def test_which_gpu_and_what_it_is(driver, tmp_path):
    said, _ = ran(driver, tmp_path, "from pelton.backends.cuda import describe; print(describe(1)); describe(2)")
    lines = said.splitlines()
    assert lines[0] == str(
        {"arch": "cuda", "model": "Fake 1", "isa": "sm_90", "memory": 1 << 30, "multiprocessors": 132, "ordinal": 1}
    )
    assert lines[1] == "InputError: there is no GPU 2; those that this process may use are 0 to 1"


def test_without_a_driver_or_the_package(tmp_path):
    plain = replace(on_gpu(chain(1000)), target=gpus([90]))
    code = """
        import sys, pelton
        from pelton.errors import EngineError
        sys.modules.update({"cuda": None} if sys.argv[2] == "package" else {})
        try:
            pelton.load(sys.argv[1])
        except EngineError as e:
            print(e)
    """
    path = tmp_path / "e.pelton"
    file.write(plain, path)
    assert 'need the package cuda-bindings: pip install "pelton[cuda]"' in python(code, path, "package").stdout
    if HAVE and sys.platform == "linux" and not Path("/dev/nvidiactl").exists():
        assert "there is no NVIDIA driver on this machine" in python(code, path, "driver").stdout


def test_the_system_is_asked_for_first(tmp_path):
    from pelton.runtime import Engine

    with pytest.raises(EngineError, match="is for plan9, this machine runs"):
        Engine(replace(on_gpu(chain(10)), target={**gpus([90]), "os": "plan9"})).start()


@needs_binding
def test_what_a_library_launches_is_held_until_graphs_have_copied_it(driver):
    script = """
        import ctypes
        import numpy as np
        from pelton.backends.cuda.device import Launch, library_function
        from pelton.backends.cuda.driver import device

        ran = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: ran.append(data))

        class Plan:
            workspace = 0

            def __call__(self, words, stream):
                ctypes.CDLL("libcuda.so.1").fake_captured(ctypes.c_void_p(stream), function, b"work", 4)

        with device(0) as gpu:
            stream, graph = gpu.stream(), gpu.graph()
            launch = Launch(library_function(Plan(), "cublaslt", 90), 1, np.zeros(4, np.int64))
            node = gpu.add(graph, launch, [])
            ready = gpu.instantiate(graph, stream.handle)
            gpu.replay(ready, stream.handle)
            gpu.change(ready, node, launch)
            gpu.replay(ready, stream.handle)
        print(len(ran))
    """
    done = python(script, LD_LIBRARY_PATH=str(driver))
    assert done.stdout == "2\n", done.stderr
