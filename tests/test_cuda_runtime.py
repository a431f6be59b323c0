"""CUDA engines on a recording device: launches, their order and memory; and refusals."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from handmade import chain, engine, expected, python

import pelton
from pelton.backends.cuda import pack
from pelton.backends.cuda.null import NullDevice, seen
from pelton.engine.cubin import Cubin
from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step, DynamicDimension, Tensor
from pelton.runtime.queue import AsyncQueue
from pelton.errors import EngineError, InputError
from pelton.backends.cuda import ready as cuda_ready
from pelton.backends.host import HostStep
from pelton.targets import gpus

N = 1000
F32 = np.float32


def scale(programs: int, words: np.ndarray) -> None:
    x, z, factor = words.tolist()
    seen(z, F32, programs)[:] = seen(x, F32, programs) * factor


def add(programs: int, words: np.ndarray) -> None:
    x, y, z, _, n = words.tolist()
    seen(z, F32, n)[:] = seen(x, F32, n) + seen(y, F32, n)


KERNELS = {"scale": scale, "add": add}
CUBINS = [Cubin("scale", 90, b"\x7fELF scale", 1000, 4), Cubin("add", 90, b"\x7fELF add", 0, 8, 2, 384, 128)]


def on_gpu(plain: EnginePlan, cubins=CUBINS) -> EnginePlan:
    """A plain engine as one for GPUs."""
    return replace(plain, code=pack(cubins), target=gpus({c.arch for c in cubins}))


def made(plain: EnginePlan | None = None, **device) -> pelton.Engine:
    return pelton.Engine(on_gpu(chain(N) if plain is None else plain)).start(NullDevice(kernels=KERNELS, **device))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).integers(-50, 50, N).astype(F32)


def equal(given, wanted) -> bool:
    return given.keys() == wanted.keys() and all(
        np.array_equal(given[k], wanted[k]) and given[k].dtype == wanted[k].dtype for k in wanted
    )


def branches() -> EnginePlan:
    """Two steps at once, then two at once that read both, then one."""
    size = 4 * N

    def lies(i: int) -> Slice:
        return Slice(i, 0)

    buffers = [
        Buffer("input", 0, size),
        *(Buffer("arena", i * 4032, size) for i in range(4)),
        Buffer("output", 0, size),
    ]
    steps = [
        Step("a", "scale", (lies(0), lies(1)), (2,), N, 1, 0),
        Step("b", "scale", (lies(0), lies(2)), (3,), N, 1, 0),
        Step("c", "add", (lies(1), lies(2), lies(3)), (1, N), N, 1, 1),
        Step("d", "add", (lies(1), lies(1), lies(4)), (1, N), N, 1, 1),
        Step("e", "add", (lies(3), lies(4), lies(5)), (1, N), N, 1, 2),
    ]
    return engine([Port("x", "f32", (N,))], [Port("y", "f32", (N,))], buffers, steps, arena=5 * 4032, code=b"none")


def test_runs_give_what_the_kernels_give(x):
    net = made()
    assert equal(net.run({"x": x}), expected(x)) and equal(net.run({"x": -x}), expected(-x))
    out = {"y": np.empty(N, F32)}
    result = net.run({"x": x[::-1]}, out)
    assert equal(result, expected(x[::-1])) and result["y"] is out["y"]
    assert np.array_equal(made(branches())(x), 9 * x)


def test_parameters_are_addresses_then_sizes_then_scratch(x):
    net = made()
    device = net.device
    context = net.context()
    context.run({"x": x})
    ready = context._only.prepared
    for launch, step in zip(device.happened("launch"), net.plain.steps):
        words = launch.facts["words"]
        assert words[: len(step.args)] == [ready.starts[a.buffer] + a.offset for a in step.args] and words[
            len(step.args) : -2
        ] == list(step.dims)
        assert launch.facts["symbol"] == step.symbol and words[-1] == 0
        cubin = next(c for c in CUBINS if c.symbol == step.symbol)
        assert (launch.facts["grid"], launch.facts["block"], launch.facts["shared"]) == (
            step.tiles * cubin.clusters,
            32 * cubin.warps,
            cubin.shared,
        )
        assert (words[-2] != 0) == (cubin.scratch > 0) and words[-2] % 128 == 0


def test_everything_lies_in_one_memory_and_nothing_overlaps():
    for plain in (chain(N), branches()):
        net = made(plain)
        ready = net.context()._only.prepared
        memory, spans = ready.held, []
        spans.append((memory.address, memory.address + plain.arena))
        spans += [(at, at + p.nbytes) for at, p in zip(ready.places, (*ready.inputs, *ready.outputs))]
        for i, step in enumerate(plain.steps):
            if step.symbol == "add" and step.wave == 1:
                at = int(ready.launches[i][0].words[-2])
                spans.append((at, at + step.tiles * 2 * 384))
        spans.sort()
        assert (
            all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:]))
            and spans[-1][1] <= memory.address + memory.nbytes
        )


def test_weights_go_up_once_and_contexts_share_them(x):
    net = made()
    device, constants = net.device, net.plain.constants
    ups = device.happened("upload")
    assert [(u.facts["nbytes"], u.facts["to"]) for u in ups] == [(len(constants), net.loaded.weights.address)]
    assert seen(net.loaded.weights.address, np.uint8, len(constants)).tobytes() == constants
    contexts = [net.context() for _ in range(3)]
    assert all(equal(c.run({"x": x * i}), expected(x * i)) for i, c in enumerate(contexts))
    assert len({c._only.prepared.held.address for c in contexts}) == 3 and len(device.happened("load")) == 2
    assert {c._only.prepared.launches[1][0].words[1] for c in contexts} == {net.loaded.weights.address}


def test_memory_is_given_back():
    device = NullDevice(kernels=KERNELS)
    net = pelton.Engine(on_gpu(chain(N))).start(device)
    net.run({"x": np.zeros(N, F32)})
    assert device.free < device.memory
    del net
    gc.collect()
    assert device.free == device.memory


def test_steps_wait_for_what_they_read_alone():
    device = made(branches()).context().engine.device
    nodes = {n.facts["node"]: n.facts for n in device.happened("node")}
    names = dict(zip(nodes, "abcde"))
    after = {names[k]: {names[a] for a in n["after"]} for k, n in nodes.items()}
    assert after == {"a": set(), "b": set(), "c": {"a", "b"}, "d": {"a"}, "e": {"c", "d"}}
    assert [n["symbol"] for n in nodes.values()] == ["scale", "scale", "add", "add", "add"]


def test_steps_wait_for_memory_that_they_take_over():
    plain = branches()
    # d writes where b did, which c reads
    buffers = [replace(b, offset=4032) if i == 4 else b for i, b in enumerate(plain.buffers)]
    waves = {"d": 2, "e": 3}
    later = [replace(s, wave=waves.get(s.name, s.wave)) for s in plain.steps]
    device = made(replace(plain, buffers=tuple(buffers), steps=tuple(later))).context().engine.device
    nodes = {n.facts["node"]: i for i, n in enumerate(device.happened("node"))}
    assert [sorted(nodes[a] for a in n.facts["after"]) for n in device.happened("node")] == [[], [], [0, 1], [2], [3]]


def test_a_run_is_one_graph_and_waits_once(x):
    net = made()
    device, context = net.device, net.context()
    context.run({"x": x})
    device.happenings.clear()
    context.run({"x": x})
    what = [h.what for h in device.happenings if h.what != "launch"]
    assert what == ["wait", "finish", "upload", "record", "replay", "record", "download", "download", "synchronize"]
    assert not device.happened("graph") and not device.happened("allocate") and not device.happened("pinned")


def dynamic() -> EnginePlan:
    """y = x + (0, 1, 2, …), of any length."""
    return replace(
        engine(
            [Port("x", "f32", ("n",))],
            [Port("y", "f32", ("n",))],
            [
                Buffer("input", 0, "4*n"),
                Buffer("output", 0, "4*n"),
                Buffer("iota", 0, "4*n", dtype="f32"),
                Buffer("arena", 0, "4*n"),
            ],
            [
                Step("twice", "scale", (Slice(0, 0), Slice(3, 0)), (2,), "n", 1, 0),
                Step("add", "add", (Slice(3, 0), Slice(2, 0), Slice(1, 0)), (1, "n"), "n", 1, 1),
            ],
            arena=4 * 64,
            code=b"none",
        ),
        symbols=(DynamicDimension("n", 0, 64, 1 << 30),),
        sizes={"n": "n", "4*n": ["*", 4, "n"]},
    )


def test_every_shape_has_its_graph_and_is_remembered():
    net = made(dynamic())
    device, context = net.device, net.context()
    for n in (10, 20, 10, 20, 5):
        x = np.random.default_rng(n).standard_normal(n).astype(F32)
        assert np.array_equal(context.run({"x": x})["y"], 2 * x + np.arange(n, dtype=F32))
    grown = len(device.happened("graph"))
    # 20 wanted more memory, so that 10 was laid out again
    assert grown == 4
    context.prepare({"x": (20,)})
    context.run({"x": np.zeros(20, F32)})
    assert len(device.happened("graph")) == grown
    context = net.context()
    context.remembered = 1
    for n in (4, 3, 4):
        context.run({"x": np.zeros(n, F32)})
    assert len(device.happened("graph")) == grown + 3
    assert context.run({"x": np.zeros(0, F32)})["y"].shape == (0,)
    with pytest.raises(InputError, match="input 'x' needs"):
        context.run({"x": np.zeros((2, 2), F32)})


def test_steps_of_the_cpu_come_between(x, monkeypatch):
    size = 4 * N

    class Negation(HostStep):
        def __init__(self, step):
            self.step, self._function = step, lambda a: [-a]

    plain = engine(
        [Port("x", "f32", (N,))],
        [Port("y", "f32", (N,))],
        [Buffer("input", 0, size), Buffer("arena", 0, size), Buffer("arena", 4032, size), Buffer("output", 0, size)],
        [
            Step("twice", "scale", (Slice(0, 0), Slice(1, 0)), (2,), N, 1, 0),
            Step(
                "minus",
                "",
                wave=1,
                tiles=0,
                host="by hand",
                inputs=(Tensor(Slice(1, 0), "f32", (N,), (1,)),),
                outputs=(Tensor(Slice(2, 0), "f32", (N,), (1,)),),
            ),
            Step("thrice", "scale", (Slice(2, 0), Slice(3, 0)), (3,), N, 1, 2),
        ],
        arena=2 * 4032,
        code=b"none",
    )

    monkeypatch.setattr("pelton.backends.plan.HostStep", lambda step, values: Negation(step))
    net = pelton.Engine(on_gpu(plain)).start(NullDevice(kernels=KERNELS))
    assert np.array_equal(net(x), -6 * x)
    assert len(net.device.happened("graph")) == 2
    assert [s.name for s, _ in net.context().profile({"x": x})] == ["twice", "minus", "thrice"]


def test_watched_and_profiled(x, monkeypatch):
    net = made()
    seen_ = []
    context = net.context()
    results = context.watch({"x": x}, lambda done, ready: seen_.append((done, ready.memory(3).view(F32).copy())))
    assert equal(results, expected(x)) and [d for d, _ in seen_] == [0, 1, 2, 3] and np.array_equal(seen_[1][1], 2 * x)
    net.device.happenings.clear()
    net.device.lasts = lambda launch: {"scale": 20.0, "add": 7.0}[launch.function.cubin.symbol]
    monkeypatch.setattr(cuda_ready, "IDLE", 1 << 10)
    monkeypatch.setattr(cuda_ready, "AT_ONCE", 2)
    assert [(s.name, t) for s, t in context.profile({"x": x})] == [("double", 20), ("add", 7), ("triple", 20)]
    monkeypatch.setattr(cuda_ready, "AT_ONCE", 3)
    assert [(s.name, t) for s, t in context.profile({"x": x})] == [("double", 20), ("add", 7), ("triple", 20)]
    what = [h.what for h in net.device.happenings if h.what in ("copy", "record", "launch", "synchronize")]
    # busy until all of them are on the stream
    assert what[-11:] == ["copy"] * 3 + ["record"] + ["launch", "record"] * 3 + ["synchronize"]
    context.warmup()


def test_no_memory_on_the_gpu():
    with pytest.raises(
        EngineError,
        match=r"engine 'handmade', for its weights, needs 4000 bytes of GPU memory, and 100 of 100 are free",
    ):
        made(memory=100)
    with pytest.raises(EngineError, match="for a context, needs"):
        made(memory=5000).context()


def test_code_for_another_gpu():
    with pytest.raises(
        EngineError,
        match=r"has code for sm_90; the GPU here, no GPU, is sm_80; build it with --target cuda:sm_80,sm_90",
    ):
        made(arch=80)
    both = [replace(c, arch=a) for c in CUBINS for a in (80, 86, 90)]
    for arch, fits in ((80, 80), (86, 86), (89, 86), (90, 90)):
        net = pelton.Engine(on_gpu(chain(N), both)).start(NullDevice(arch))
        assert {h.facts["cubin"].arch for h in net.device.happened("load")} == {fits}
    for arch in (75, 100, 121):
        with pytest.raises(EngineError, match="has code for sm_80, sm_86, sm_90"):
            pelton.Engine(on_gpu(chain(N), both)).start(NullDevice(arch))


def test_kernels_that_are_missing_or_asked_for_in_two_ways():
    with pytest.raises(EngineError, match="no kernel 'add' for sm_90"):
        pelton.Engine(on_gpu(chain(N), CUBINS[:1])).start(NullDevice())
    plain = chain(N)
    steps = (plain.steps[0], plain.steps[1], replace(plain.steps[2], dims=(3, 3)))
    with pytest.raises(EngineError, match="'triple' passes 'scale' 6 parameters, another step 5"):
        pelton.Engine(on_gpu(replace(plain, steps=steps))).start(NullDevice())
    with pytest.raises(EngineError, match="no bundle"):
        pelton.Engine(replace(on_gpu(chain(N)), code=b"\x7fELF"))


def test_grids_that_are_too_large():
    with pytest.raises(EngineError, match="step 'add' would run 2147483648 blocks, a grid has 2147483647 at most"):
        made(dynamic()).context().prepare({"x": (1 << 30,)})


def test_without_a_gpu_engines_can_be_looked_at_and_saved(tmp_path, capsys):
    from pelton import cli

    net, path = pelton.Engine(on_gpu(chain(N))), tmp_path / "e.pelton"
    assert type(net) is pelton.Engine
    net.save(path)
    again = pelton.load(path, device=None)
    assert (
        type(again) is pelton.Engine
        and again.tobytes() == path.read_bytes()
        and repr(again).startswith("<pelton.Engine 'handmade'")
    )
    assert cli.main(["inspect", str(path)]) in (0, None)
    assert "sm_90" in capsys.readouterr().out


def test_threads_are_not_for_gpus():
    with pytest.raises(InputError, match="runs on a GPU, where no number of threads can be chosen, got 2"):
        made().context(threads=2)


def test_who_runs_on_the_cpu_imports_nothing_of_it(tmp_path):
    path = tmp_path / "e.pelton"
    pelton.runtime.Engine(chain(N)).save(path)
    ran = python(
        """
        import sys, numpy as np, pelton
        pelton.load(sys.argv[1]).run({"x": np.zeros(1000, np.float32)})
        print(sorted(m for m in sys.modules if "cuda" in m))""",
        path,
    )
    assert ran.stdout.strip() == "[]", ran.stderr


def test_several_runs_at_once(x):
    with AsyncQueue(made()) as queue:
        runs = [queue.start_async({"x": x + i}) for i in range(8)]
    assert len(queue) == 2 and all(equal(run.result(), expected(x + i)) for i, run in enumerate(runs))
