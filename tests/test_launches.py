"""Chains of small regions in one launch: their detection and choice, results and code of their kernels, and their
engines."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from models import inverted_residuals, small_cnn
from onnx_models import draw, model

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402
from compare import assert_close  # noqa: E402
from kernel_harness import program, region_of  # noqa: E402
from test_cuda_tuning import device  # noqa: E402
from test_triton_networks import TOLERANCE, block, moving  # noqa: E402
from triton_harness import interpreted as left_by  # noqa: E402

import pelton  # noqa: E402
from pelton.compiler import targets  # noqa: E402
from pelton.builder.build import build_detailed  # noqa: E402
from pelton.engine import file  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate, evaluate_node  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES, Target  # noqa: E402
from pelton.codegen.triton.chain import chain_kernels, is_chainable  # noqa: E402
from pelton.codegen.triton.toolchain import compile_source, extract_cubin  # noqa: E402
from pelton.options import Options  # noqa: E402
from pelton.plan.workspace import KernelWorkspace  # noqa: E402
from pelton.compiler.stages import run_stages, start  # noqa: E402
from pelton.tuning import launches, measure_cuda, search  # noqa: E402

TARGET = Target(isa="sm_90", lanes=32, threads=132)
SPILLED = 64


class Clock:
    """Measures 100 ns for every separate launch and `together` for a chain (by length, if a dict); nothing if late."""

    def __init__(self, together: int | dict[int, int], late: bool = False):
        self.together, self.late, self.asked = together, late, 0

    def race(self, digest, tasks, programs):
        self.asked += 1
        counts = [len(kernels) for kernels in programs.values()]
        assert counts[0] > 1 and set(counts[1:]) == {1} and len(set(programs)) == len(counts)
        one = self.together if isinstance(self.together, int) else self.together[counts[0]]
        if self.late:
            return {}
        return {name: 100 * len(kernels) if len(kernels) > 1 else one for name, kernels in programs.items()}


def node(op: str, inputs: str, output: str, **attrs) -> onnx.NodeProto:
    return onnx.helper.make_node(op, inputs.split(), [output], name=output, **attrs)


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def squeeze(channels: int = 75, fewer: int = 11, size: int = 5, batch: int = 3) -> onnx.ModelProto:
    """Images weighed by what their means say: a mean, two products, a sigmoid, and the weighing itself."""
    rng = np.random.default_rng(channels)
    constants = {
        "w0": weights(rng, fewer, channels, 1, 1),
        "b0": weights(rng, fewer),
        "w1": weights(rng, channels, fewer, 1, 1),
        "b1": weights(rng, channels),
    }
    nodes = [
        node("GlobalAveragePool", "x", "mean"),
        node("Conv", "mean w0 b0", "low"),
        node("Relu", "low", "bent"),
        node("Conv", "bent w1 b1", "high"),
        node("Sigmoid", "high", "gate"),
        node("Mul", "x gate", "y"),
    ]
    return model(nodes, {"x": f"f32[{batch}, {channels}, {size}, {size}]"}, ["y"], constants)


def dense(rows: str | int = 1, *sizes: int) -> onnx.ModelProto:
    """Products one after the other, then a softmax."""
    rng, nodes, constants, x = np.random.default_rng(1), [], {}, "x"
    for i, (k, n) in enumerate(zip(sizes, sizes[1:])):
        constants[f"w{i}"] = weights(rng, n, k).T.copy()
        nodes += [node("MatMul", f"{x} w{i}", f"m{i}"), node("Tanh", f"m{i}", f"t{i}")]
        x = f"t{i}"
    return model([*nodes, node("Softmax", x, "y")], {"x": f"f32[{rows}, {sizes[0]}]"}, ["y"], constants)


def placed_of(m: onnx.ModelProto, precision: str = "fp32", target: Target = TARGET):
    """The program's tasks, and the kernels that they have by themselves."""
    options = Options(target="cuda:sm_90", precision=precision)
    placed = run_stages(start(importer.load(m), options, target), "place").placed
    return placed, search.select(placed, target, None, strict=False, max_tactics=1)


def runs(m: onnx.ModelProto, precision: str = "fp32", timing=None, target: Target = TARGET):
    placed, choices = placed_of(m, precision, target)
    return placed, choices, launches.find_chains(placed, choices, target, timing, False)


def counts(run: launches.LaunchChain) -> bool:
    """Whether its kernel counts its programs."""
    return any(isinstance(x, KernelWorkspace) for x in run.choice.kernel.operands)


CASES = {
    "squeeze": squeeze,
    "squeeze of one": lambda: squeeze(40, 3, 2, 1),
    "dense": lambda: dense(2, 37, 19, 64, 10),
    "rows": lambda: dense(13, 20, 33, 5),
}


@pytest.mark.parametrize("precision, warps", [("fp32", 8), ("fp16", 4)])
@pytest.mark.parametrize("name", CASES)
def test_every_part_of_a_chain_gives_what_it_means(name, precision, warps, monkeypatch):
    monkeypatch.setattr(launches, "WARPS", (warps,))
    placed, _, found = runs(CASES[name](), precision, Clock(1))
    assert found and max(len(run.tasks) for run in found) >= 2
    rng = np.random.default_rng(0)
    for run in found:
        assert run.choice.tactic["WARPS"] == warps
        there = {v.name: rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in run.whole.reads}
        made = left_by(run.whole.region, run.choice.kernel, run.whole.layouts, there, f"{name} with {warps} warps")
        there.update({v.name: a for v, a in made.items()})
        for task in (placed.tasks[i] for i in run.tasks):
            want = evaluate(task.region.body, {v.name: there[v.name] for v in task.reads}, round=False)
            for v in task.writes:
                assert_close(
                    there[v.name],
                    want[v.name].astype(v.type.dtype.numpy),
                    about=f"{name}, {precision}, {warps} warps, %{v.name}",
                )


def test_the_body_of_a_chain_says_what_all_of_it_means():
    m = block()
    placed, _, found = runs(m, timing=Clock(1))
    feeds = draw(m, 5, low=-1, high=1)
    known = {v: a for v, a in placed.graph.constants.items()} | {v: feeds[v.name] for v in placed.graph.inputs}
    for n in placed.graph.nodes:
        known.update(zip(n.outputs, evaluate_node(n, tuple(known[v] for v in n.inputs), round=False)))
    assert found and all(len(run.tasks) > 1 for run in found)
    for run in found:
        got = evaluate(run.whole.region.body, {v.name: known[v] for v in run.whole.reads}, round=False)
        assert set(got) == {v.name for i in run.tasks for v in placed.tasks[i].writes}
        for v in run.whole.writes:
            assert_close(got[v.name], known[v], about=v.name)


@pytest.mark.parametrize(
    "together, parts",
    [(1, [4]), (290, [4]), (387, [4]), (389, []), ({2: 150, 3: 280, 4: 380}, [2, 2]), ({2: 195, 3: 160, 4: 390}, [3])],
)
def test_the_clock_decides_and_a_little_faster_is_not_enough(together, parts):
    clock = Clock(together)
    _, _, found = runs(dense(1, 40, 30, 20, 10), timing=clock)
    assert [len(run.tasks) for run in found] == parts and clock.asked >= 3
    assert all("apart" in run.explanation and run.choice.times for run in found)


def test_what_is_not_timed_stays_apart_where_a_clock_was_asked():
    assert runs(dense(1, 40, 30, 20, 10), timing=Clock(1, late=True))[2] == []


def test_without_a_clock_only_what_is_small_is_joined_and_what_is_large_is_never_asked_about():
    assert [len(run.tasks) for run in runs(dense(1, 64, 32, 16))[2]] == [3]
    assert runs(dense(1, 400, 40, 400))[2] == [] and [
        len(run.tasks) for run in runs(dense(1, 400, 40, 400), timing=Clock(1))[2]
    ] == [3]
    clock = Clock(1)
    placed, _, found = runs(dense(1, 2000, 2000, 2000), timing=clock)
    assert [[placed.tasks[i].region.title() for i in run.tasks] for run in found] == [
        ["matmul+tanh", "softmax"]
    ] and clock.asked == 1


def test_no_part_waits_for_what_the_first_one_does_not_wait_for():
    rng = np.random.default_rng(3)
    nodes = [
        node("MatMul", "x w0", "a"),
        node("MatMul", "a w1", "b"),
        node("MatMul", "z w2", "c"),
        node("Softmax", "c", "d"),
        node("MatMul", "b d", "e"),
        node("Softmax", "e", "y"),
    ]
    m = model(nodes, {"x": "f32[2, 16]", "z": "f32[16, 16]"}, ["y"], {f"w{i}": weights(rng, 16, 16) for i in range(3)})
    placed, _, found = runs(m, timing=Clock(1))
    titles = sorted([[placed.tasks[i].region.layers for i in run.tasks] for run in found])
    assert titles == [[("a",), ("b",)], [("c",), ("d",)], [("e",), ("y",)]]


def test_all_stays_in_an_order_in_which_it_is_made_before_it_is_read():
    placed, choices, found = runs(inverted_residuals(size=12), timing=Clock(1))
    tasks = launches.join_chains(placed, choices, found)[0].tasks
    assert len(tasks) == len(placed.tasks) - sum(len(run.tasks) - 1 for run in found) < len(placed.tasks)
    there = set(placed.graph.inputs)
    for task in tasks:
        assert {
            v for v in task.reads if v not in placed.graph.producer or not launches.is_view(placed.graph.producer[v])
        } <= there
        there.update(task.writes)
    assert {v for t in placed.tasks for v in t.writes} == {v for t in tasks for v in t.writes}


def test_sizes_that_a_run_decides_are_left_alone():
    clock = Clock(1)
    assert runs(dense("n", 16, 16, 16), timing=clock)[2] == [] and clock.asked == 0


@pytest.mark.parametrize("arch", [80, 90])
def test_chains_compile_without_spilling_and_wait_between_their_parts(arch):
    target = Target(isa=f"sm_{arch}", lanes=32, threads=132)
    some = [
        run
        for m, precision in ((squeeze(), "fp16"), (dense(13, 20, 33, 5), "fp32"), (block(), "fp16"))
        for run in runs(m, precision, Clock(1), target)[2]
    ]
    sources = {run.choice.kernel.symbol: run.choice.kernel.source for run in some}
    made = {symbol: compile_source(symbol, source, arch) for symbol, source in sources.items()}
    assert len(made) >= 3
    for symbol, source in sources.items():
        m = extract_cubin(made[symbol], source, arch)
        assert m.spilled <= SPILLED and m.cubin.scratch == 0 and m.cubin.clusters == 1, m
    assert {counts(run) for run in some} == {True, False}
    for run in some:
        asm = made[run.choice.kernel.symbol].asm
        pieces = re.split(r"gpu\.barrier|ttg\.barrier", asm["ttir"])
        assert len(pieces) == len(run.tasks) and all("tt.store" in p and "tt.load" in p for p in pieces)
        assert asm["ptx"].count("bar.sync") >= len(run.tasks) - 1 and asm["ptx"].count("gpu.acq_rel") == counts(run)
        assert "ld.global.nc" not in asm["ptx"]  # what others have written is no constant


def test_tactics_whose_programs_count_each_other_are_no_parts():
    region = region_of(program(("y", "matmul", "a b"), a="f16[256, 256]", b="f16[256, 256]"))
    dense_lying = {v: (256, 1) for v in (*region.body.inputs, *region.body.outputs)}
    tactics = list(GPU_TEMPLATES["gemm"].tactics(region, dense_lying, TARGET))
    assert {bool(t["DESCRIBED"] or t["PERSISTENT"]) for t in tactics} == {True, False}
    assert all(is_chainable(t) == (not t["DESCRIBED"] and not t["PERSISTENT"]) for t in tactics)


def twice(data, sources, feeds):
    """In a process where all of Triton is interpreted: what an engine gives, and how many kernels it launched, in two
    runs of a context."""
    device = triton_interpreter.device(sources)
    context, found = pelton.Engine(file.read(data)).start(device).context(), []
    for _ in range(2):
        before = len(device.happened("launch"))
        found.append((context.run(feeds), len(device.happened("launch")) - before))
    return found


NETWORKS = pytest.mark.parametrize(
    "make, precision",
    [(squeeze, "fp16"), (block, "fp16"), (moving, "fp32"), (small_cnn, "bf16")],
    ids=["squeezed", "a transformer's block", "elements moved", "a CNN"],
)


@pytest.fixture
def all_chains(monkeypatch, kernel_cache):
    """Builds an engine with all chains that there may be, rather with several programs than with one, whatever they
    save; nothing is timed."""

    def build(m, precision, arch=90):
        monkeypatch.setattr(targets.cuda, "here", lambda: None)
        monkeypatch.setattr(
            launches._Search, "min_saving", lambda self, parts: len(parts) + 0.5 * (parts[0].kernel.tiles > 1)
        )
        return build_detailed(
            m, Options(target=f"cuda:sm_{arch}", precision=precision, level=1, cache_dir=kernel_cache)
        )

    return build


def assert_right(results, m, feeds, precision):
    wanted = evaluate(importer.load(m).graph, feeds)
    assert results.keys() == wanted.keys()
    for port, want in wanted.items():
        off = np.abs(results[port].astype(np.float64) - want).max() / np.abs(want).max()
        assert off < TOLERANCE[precision], f"{port} is off by {off:.1e}"


@NETWORKS
def test_networks_with_chains_are_right(make, precision, apart, all_chains):
    m = make()
    made = all_chains(m, precision)
    chains, steps, buffers = made.engine.meta["chains"], made.engine.steps, made.engine.plain.buffers
    found = [s for s in steps if s.info["tactic"].startswith("chain:")]
    assert len(found) == len(chains) > 0 and all("in one launch (not timed" in chain for chain in chains)
    assert all(len(s.outputs) == len(s.info["writes"]) and not s.alternatives for s in found)
    counters = [[a.buffer for a in s.args if buffers[a.buffer].kind == "zeros"] for s in found]
    assert (
        [len(c) for c in counters] == [s.tiles > 1 for s in found]
        and any(counters)
        and len({b for c in counters for b in c}) == sum(map(len, counters))
    )
    feeds = draw(m, 3, low=-1, high=1)
    both = apart.submit(twice, made.engine.tobytes(), triton_interpreter.sources(made), feeds).result()
    for results, launched in both:
        assert launched == len(steps)
        assert_right(results, m, feeds, precision)


@NETWORKS
def test_chains_are_right_on_a_gpu(make, precision, all_chains):
    here = targets.cuda.here()
    if here is None:
        pytest.skip("there is no GPU here")
    m = make()
    context = all_chains(m, precision, here.arch).engine.context()
    for seed in range(20):  # whichever program is the last
        feeds = draw(m, seed, low=-1, high=1)
        assert_right(context.run(feeds), m, feeds, precision)


def test_a_chain_that_does_not_compile_stays_apart_and_level_0_has_none(tmp_path, monkeypatch, caplog):
    m = dense(1, 24, 16, 8)
    options = Options(target="cuda:sm_90", level=1, cache_dir=tmp_path)
    whole, plain = build_detailed(m, options).engine, build_detailed(m, options.but(level=0)).engine
    assert len(whole.steps) == 1 and len(plain.steps) == 3 and plain.meta["chains"] == []
    assert whole.steps[0].info["layers"] == [name for s in plain.steps for name in s.info["layers"]]

    def broken(kernels):
        kernel = chain_kernels(kernels)
        return type(kernel)(
            kernel.source.replace("tl.debug_barrier()", "tl.static_assert(False)"),
            kernel.symbol,
            kernel.operands,
            kernel.tiles,
        )

    monkeypatch.setattr(launches, "chain_kernels", broken)
    with caplog.at_level("WARNING", "pelton.build"):
        made = build_detailed(m, options).engine
    assert (
        len(made.steps) == 3
        and made.meta["chains"] == []
        and any("not one launch" in r.message for r in caplog.records)
    )


@pytest.mark.parametrize("wins", [True, False])
def test_builds_on_a_gpu_time_chains_beside_their_parts(wins, kernel_cache, tmp_path, monkeypatch):
    # what is by itself has three operands at most
    here = device(lambda launch: 1000.0 if wins or len(launch.words) < 6 else 9000.0)
    monkeypatch.setattr(measure_cuda, "POOL", 1 << 20)
    monkeypatch.setattr(targets.cuda, "here", lambda: here)
    options = Options(target="cuda:sm_90", level=1, cache_dir=kernel_cache, timing_cache=tmp_path / "times.json")
    engine = build_detailed(dense(1, 24, 16), options).engine
    if wins:
        (step,), (chain,) = engine.steps, engine.meta["chains"]
        assert chain.endswith("2 in one launch (1.0 µs, apart 2.0 µs)") and set(step.info["times_ns"].values()) == {
            1000,
            2000,
        }
    else:
        assert len(engine.steps) == 2 and engine.meta["chains"] == []
