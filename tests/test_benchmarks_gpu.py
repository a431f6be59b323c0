"""benchmarks/gpu without a GPU: its checks on the memory of a device that is none, its processes, its networks of torch and JAX, how results come together."""
from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import inverted_residuals, model, small_cnn
from onnx import helper

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import child, page, parts, results, suite  # noqa: E402
from benchmarks.gpu.runtimes import Runtime  # noqa: E402

from pelton.importers import onnx as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.passes import pipeline  # noqa: E402


def needs(name: str, how: str):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed: {how}")


# ---- checks of kernels, interpreted


def checked(kind: str, at: int, seed: int) -> dict[str, Any]:
    """In a process where all of Triton is interpreted: one case as `checks.Templates` runs it, by the kernels as they are or by damaged ones."""
    import triton_harness
    import triton_interpreter
    from benchmarks.gpu.checks import Templates, found_cases
    from test_triton_networks import TYPES

    from pelton.backends.cuda.bundle import Cubin
    from pelton.backends.cuda.null import NullDevice
    from pelton.kernels.template import GPU_TEMPLATES

    checks = object.__new__(Templates)
    checks.harness, checks.templates, checks.seed, checks.target = triton_harness, GPU_TEMPLATES, seed, triton_harness.TARGET
    name = ("pointwise", "rows")[at % 2]
    checks.cases = [(name, found_cases()[name][0])]
    kernels = {k.symbol: k for k, _, _ in triton_harness.tried(GPU_TEMPLATES[name], checks.cases[0][1], 3)}

    def kernel(symbol: str) -> Any:
        def run(programs: int, words: np.ndarray) -> None:
            if kind == "lazy":
                return
            triton_interpreter.launch(kernels[symbol].source, symbol, words.tolist(), TYPES, programs)
            if kind == "careless":                                 # behind the last operand, which is written
                ctypes.c_uint8.from_address(int(words[-1]) + 3500).value = 7
        return run
    checks.device = NullDevice(kernels={s: kernel(s) for s in kernels})
    checks.cubins = {s: Cubin(s, 90, b"none", 0, 4) for s in kernels}
    return checks.check(0)


@pytest.fixture(scope="module")
def apart():
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    import triton_interpreter
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=triton_interpreter.prepare) as pool:
        yield pool


@pytest.mark.parametrize("at", [0, 1])
def test_templates_are_checked_on_a_device(at, apart):
    said = apart.submit(checked, "right", at, 11).result()
    assert said["launched"] >= 2 and "wrong" not in said
    assert "NaN" in apart.submit(checked, "lazy", at, 11).result()["wrong"]
    assert "beside an array" in apart.submit(checked, "careless", at, 11).result()["wrong"]


def ran(data: bytes, sources: Mapping[str, str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In such a process: what `checks.Networks` makes of an engine."""
    import triton_interpreter
    from benchmarks.gpu.checks import Networks
    from test_triton_networks import TYPES

    from pelton.backends.cuda.null import NullDevice
    from pelton.engine import file
    from pelton.runtime.cuda import CudaEngine

    def kernel(symbol: str) -> Any:
        return lambda programs, words: triton_interpreter.launch(sources[symbol], symbol, words.tolist(), TYPES, programs)
    networks = object.__new__(Networks)
    networks.feeds = dict(feeds)
    return networks.run(CudaEngine(file.read(data)).start(NullDevice(kernels={s: kernel(s) for s in sources})))


def test_networks_are_checked_on_a_device(apart, tmp_path):
    from pelton.build import built
    from pelton.options import Options

    graph = importer.load(small_cnn(size=12)).graph
    feeds = suite.drawn(suite.ports(graph), 3)
    made = built(small_cnn(size=12), Options(target="cuda:sm_90", precision="fp16", cache_dir=tmp_path))
    got = apart.submit(ran, made.engine.tobytes(), {c.kernel.symbol: c.kernel.source for c in made.chosen if c.kernel is not None}, feeds).result()
    want = evaluate(graph, feeds, round=False)
    assert suite.off(got, want) <= suite.TOLERANCE["fp16"]
    assert suite.off({"y": got["y"] * np.nan}, want) == suite.off({}, want) == math.inf


# ---- processes


class Answers:
    """What a process is asked in these tests."""

    def __init__(self, base: int):
        self.base = base

    def add(self, number: int) -> int:
        print("what libraries say is no answer")
        return self.base + number

    def fail(self) -> None:
        raise ValueError("it cannot be done")

    def sleep(self) -> None:
        time.sleep(60)


def test_processes_answer_fail_and_take_too_long(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with child.Child("test_benchmarks_gpu", "Answers", {"base": 3}) as asked:
        assert [asked.ask("add", 60, number=n) for n in (4, 5)] == [7, 8]
        with pytest.raises(child.Failed, match="it cannot be done"):
            asked.ask("fail", 60)
    with child.Child("test_benchmarks_gpu", "Answers", {"base": 3}) as asked:
        assert asked.ask("add", 60, number=1) == 4
        with pytest.raises(child.Failed, match="no answer in time"):
            asked.ask("sleep", 0.2)
    with child.Child("test_benchmarks_gpu", "Absent", {}) as asked, pytest.raises(child.Failed, match="Absent"):
        asked.ask("add", 60, number=1)


class Sleeper(Runtime):
    """A runtime whose runs take a while."""

    def __init__(self):
        self.count, self.estimate, self.started = 2, 1e-4, []

    def start(self, i: int) -> None:
        self.started.append(i)
        time.sleep(1e-3)

    def wait(self) -> None:
        pass


def test_trains_are_as_long_as_asked_and_inputs_take_turns():
    runtime = Sleeper()
    runtime.time(0.1)
    found = runtime.time(0.1)
    assert 1.0 <= found["ms"] < 20 and found["runs"] >= 10 and runtime.started[:4] == [0, 1, 0, 1]
    assert 1.0 <= runtime.alone(5) < 20


def test_inputs_in_turns_are_larger_than_caches():
    assert suite.sets({"x": ((1, 3, 224, 224), np.dtype(np.float32))}) * 3 * 224 * 224 * 4 >= suite.L2
    assert suite.sets({"ids": ((1, 128), np.dtype(np.int64))}) == suite.MOST_SETS
    assert suite.sets({"x": ((512, 3, 512, 512), np.dtype(np.float32))}) == 2
    mask = suite.drawn({"mask": ((5, 16), np.dtype(np.int64))}, 1)["mask"]
    assert (mask[:, :8] == 1).all() and (np.diff(mask) <= 0).all()


# ---- results


def told(ms: float, off: float = 1e-3, **more: Any) -> dict[str, Any]:
    return {"passes": [{"ms": ms, "spread": 1.02, "host_ms": ms}] * 2, "off": off, **more}


def some() -> dict[str, Any]:
    """Results of most parts, as good as they have to be."""
    engine = dict(start_s=0.1, engine_bytes=60_000_000, weight_bytes=51_000_000, build_s=9.0, steps=60, alone_ms=0.4)
    found: dict[str, Any] = {f"networks-{m}": {"fp32": {"off": 1e-6}, "fp16": {"off": 1e-3}, "bf16": {"off": 1e-2}, "wrong": {}} for m in suite.MODELS}
    times = {"resnet50": 0.3, "resnet50_b128": 4.0, "bert_base": 0.4, "bert_base_b32": 1.5}
    for e in suite.ENTRIES:
        ms = times.get(e, 1.0)
        found[e] = {"batch": suite.ENTRIES[e].batch, "flops": 700_000_000_000, "wrong": {}, "runtimes": {
            "pelton": told(ms, **engine), "torch": told(2 * ms), "torch.compile": told(1.2 * ms), "jax": told(ms / 2, off=0.5)}}
    found["ceilings"] = {"f16": [{"TFLOP_per_s": 780.0, "spread": 1.0}] * 2, "copy": [{"TB_per_s": 4.3, "spread": 1.0}] * 2, "starts": {"launch_us": 3.0}}
    return {"gpu": "NVIDIA H200", "machine": {"driver": "580"}, "parts": found}


def test_gates_hold_as_they_should():
    found = some()
    assert all(g.holds for g in results.gates(found)) and results.lead(found["parts"]["lstm"]) == pytest.approx(1.2)      # what is wrong does not count
    found["parts"]["googlenet"]["runtimes"]["torch"] = told(0.8)
    found["parts"]["networks-lstm"]["fp32"]["off"] = 3e-3
    del found["parts"]["resnet50_b128"], found["parts"]["ceilings"]
    known = {g.what.split(":")[0]: g.holds for g in results.gates(found)}
    assert known["best other runtime / Pelton"] is False and known["all six models right in fp32"] is False and known["all six models right in fp16"] is True
    assert known["resnet50, batch 128"] is known["bert_base, 32 × 128"] is None
    assert {g.holds for g in results.gates({"parts": {}})} == {None}


def test_results_come_together_part_by_part(tmp_path, monkeypatch):
    assert [results.file_name(n) for n in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Fake 0")] == ["h200", "a100-sxm4-80gb", "fake-0"]
    results.write(some(), tmp_path)
    monkeypatch.setitem(parts.PARTS, "ceilings", lambda run, found: found.update(copy=[{"TB_per_s": 5.0, "spread": 1.0}]))
    calls = []

    def half(run: parts.Run, found: dict[str, Any]) -> None:
        calls.append(run.seed)
        found["fp32"] = {"off": 1e-6}
        raise child.Failed("the GPU is lost")
    monkeypatch.setitem(parts.PARTS, "networks-lstm", half)
    from benchmarks.gpu import __main__ as command
    monkeypatch.setattr(command, "describe", lambda: {"model": "NVIDIA H200", "isa": "sm_90"})
    monkeypatch.setattr(command, "versions", lambda gpu: {"driver": "581"})

    def run(*given: str) -> int:
        monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--output", str(tmp_path), "--room", str(tmp_path / "room"), *given])
        return command.main()
    assert run("--only", "ceilings") == 0 and json.loads((tmp_path / "h200.json").read_text())["parts"]["ceilings"]["copy"][0]["TB_per_s"] == 4.3
    assert run("--only", "ceilings", "--only", "networks-lstm", "--again", "--seed", "5") == 1 and calls == [5]
    found = json.loads((tmp_path / "h200.json").read_text())
    assert found["parts"]["ceilings"]["copy"][0]["TB_per_s"] == 5.0 and found["machine"] == {"driver": "581"}
    assert found["parts"]["networks-lstm"]["fp32"] and found["parts"]["networks-lstm"]["error"] == "the GPU is lost"
    assert {g["gate"].split(":")[0]: g["holds"] for g in found["gates"]}["resnet50, batch 1"] is True
    text = (tmp_path / "h200.md").read_text()
    assert "networks-lstm: the GPU is lost" in text and "| resnet50_b128 | 4.000 / 4.000 (±1%)" in text and "off 5e-01" in text
    assert run("--only", "networks-lstm") == 1 and len(calls) == 2                        # what failed is tried again
    assert run("--only", "ceilings") == 0
    with pytest.raises(SystemExit):
        run("--only", "everything")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h200.json", "h200.md", "room"]


def test_a_page_of_nothing_says_so():
    assert "not measured" in page.page({"gpu": "NVIDIA H200", "machine": {}, "parts": {}})


# ---- peers


def windows() -> Any:
    """What torch spells differently: pools and convolutions with more padding behind than before, local response, an LSTM."""
    rng = np.random.default_rng(2)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[0, 1, 2, 1], strides=[1, 2]),
             helper.make_node("MaxPool", ["a"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
             helper.make_node("LRN", ["m"], ["l"], size=3, alpha=0.1, beta=0.75, bias=1.0),
             helper.make_node("AveragePool", ["l"], ["p"], kernel_shape=[3, 2], pads=[0, 0, 1, 1]),
             helper.make_node("Reshape", ["p", "flat"], ["s"]),
             helper.make_node("LSTM", ["s", "wl", "rl", "bl"], ["y"], hidden_size=4, direction="bidirectional")]
    constants = {"w": rng.standard_normal((6, 3, 3, 3)).astype(np.float32), "b": rng.standard_normal(6).astype(np.float32), "flat": np.array([6, 1, -1]),
                 **{n: rng.standard_normal(s).astype(np.float32) / 3 for n, s in (("wl", (2, 16, 16)), ("rl", (2, 16, 4)), ("bl", (2, 32)))}}
    return model(nodes, {"x": (1, 3, 10, 18)}, {"y": (6, 2, 1, 4)}, constants)


def transformer() -> Any:
    from test_triton_networks import block
    return block()


@needs("torch", "pip install torch")
@pytest.mark.parametrize("make", [small_cnn, inverted_residuals, windows, transformer])
def test_networks_of_torch_are_the_same(make):
    import torch
    from benchmarks.gpu import torch_network

    graph = importer.load(make()).graph
    feeds = suite.drawn(suite.ports(graph), 4)
    want = evaluate(graph, feeds, round=False)
    for program in (graph, torch_network.optimized(graph)):
        with torch.no_grad():
            outputs = torch_network.network(program)(*(torch.from_numpy(a) for a in feeds.values()))
        assert suite.off({v.name: y.numpy() for v, y in zip(program.outputs, outputs)}, want) < 1e-5
    if make is windows:
        return                                                     # torch's local response is not there in half precision on CPUs
    with torch.no_grad():
        half = [torch.from_numpy(a.astype(np.float32)).bfloat16() if a.dtype.kind == "f" else torch.from_numpy(a) for a in feeds.values()]
        outputs = torch_network.network(torch_network.optimized(graph), torch.bfloat16)(*half)
    assert suite.off({v.name: y.float().numpy() for v, y in zip(graph.outputs, outputs)}, want) < suite.TOLERANCE["bf16"]


def small_resnet() -> Any:
    """A stem, and blocks with and without a convolution on their side, whose strides lie in the first or the middle of their convolutions."""
    rng = np.random.default_rng(6)
    nodes, constants = [], {}

    def conv(x: str, y: str, i: int, o: int, k: int, stride: int = 1, relu: bool = True) -> str:
        constants[y + "w"], constants[y + "b"] = ((rng.standard_normal(s) / np.sqrt(n)).astype(np.float32) for s, n in (((o, i, k, k), i * k * k), ((o,), 9)))
        nodes.append(helper.make_node("Conv", [x, y + "w", y + "b"], [y], pads=[k // 2] * 4, strides=[stride] * 2))
        nodes.extend([helper.make_node("Relu", [y], [y + "r"])] if relu else [])
        return y + "r" if relu else y
    x = conv("x", "stem", 3, 8, 7, 2)
    nodes.append(helper.make_node("MaxPool", [x], ["pool"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    x, channels = "pool", 8
    for i, (first, middle, side) in enumerate(((1, 1, True), (1, 1, False), (2, 1, True), (1, 2, True), (1, 1, False))):
        y = conv(conv(conv(x, f"{i}a", channels, 6, 1, first), f"{i}b", 6, 6, 3, middle), f"{i}c", 6, 16, 1, relu=False)
        nodes.append(helper.make_node("Add", [y, conv(x, f"{i}s", channels, 16, 1, first * middle, relu=False) if side else x], [f"{i}t"]))
        nodes.append(helper.make_node("Relu", [f"{i}t"], [f"{i}u"]))
        x, channels = f"{i}u", 16
    constants["out"], constants["bias"] = rng.standard_normal((16, 10)).astype(np.float32), rng.standard_normal(10).astype(np.float32)
    nodes += [helper.make_node("GlobalAveragePool", [x], ["mean"]), helper.make_node("Flatten", ["mean"], ["flat"]),
              helper.make_node("Gemm", ["flat", "out", "bias"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])]
    return model(nodes, {"x": (2, 3, 40, 40)}, {"y": (2, 10)}, constants)


@needs("jax", "pip install jax")
def test_resnet_in_jax_is_the_same():
    import jax.numpy as jnp
    from benchmarks.gpu import jax_networks

    graph = importer.load(small_resnet()).graph
    feeds = suite.drawn(suite.ports(graph), 4)
    run, weights = jax_networks.resnet50(pipeline.run(graph)[0], jnp.float32)
    assert suite.off({"y": np.asarray(run(weights, jnp.asarray(feeds["x"])))}, evaluate(graph, feeds, round=False)) < 1e-5


def small_bert(layers: int = 2, width: int = 12, heads: int = 3, words: int = 1000, rows: int = 7) -> Any:
    """An encoder as torch exports it: three products for Q, K and V, a mask made of numbers, GELU by its error function."""
    from onnx import TensorProto
    rng = np.random.default_rng(7)
    scalars = {"one": 1, "hidden": -10000, "root": 2, "two": np.sqrt(2), "half": 0.5}
    constants: dict[str, Any] = {"split": np.array([2, rows, heads, width // heads]), "join": np.array([2, rows, width]), "axes": np.array([1, 2]),
                                 **{name: np.float32(value) for name, value in scalars.items()}}
    nodes = []

    def put(op: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attrs))
        return f"v{len(nodes) - 1}"

    def weight(*shape: int) -> str:
        constants[f"c{len(constants)}"] = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return f"c{len(constants) - 1}"

    def norm(x: str) -> str:
        return put("LayerNormalization", x, weight(width), weight(width), axis=-1)

    def dense(x: str, i: int, o: int) -> str:
        return put("Add", weight(o), put("MatMul", x, weight(i, o)))
    x = norm(put("Add", put("Add", put("Gather", weight(words, width), "ids"), weight(rows, width)), weight(rows, width)))
    mask = put("Mul", put("Sub", "one", put("Cast", put("Unsqueeze", "mask", "axes"), to=TensorProto.FLOAT)), "hidden")
    for _ in range(layers):
        q, k, v = (put("Transpose", put("Reshape", dense(x, width, width), "split"), perm=p) for p in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        p = put("Softmax", put("Add", put("Div", put("MatMul", q, k), "root"), mask), axis=-1)
        a = put("Reshape", put("Transpose", put("MatMul", p, v), perm=[0, 2, 1, 3]), "join")
        x = norm(put("Add", x, dense(a, width, width)))
        wide = dense(x, width, 4 * width)
        gelu = put("Mul", put("Mul", wide, put("Add", put("Erf", put("Div", wide, "two")), "one")), "half")
        x = norm(put("Add", x, dense(gelu, 4 * width, width)))
    put("Identity", x)
    nodes[-1].output[0] = "y"
    return model(nodes, {"ids": ((2, rows), TensorProto.INT64), "mask": ((2, rows), TensorProto.INT64)}, {"y": (2, rows, width)}, constants)


@needs("jax", "pip install jax")
def test_bert_in_jax_is_the_same():
    import jax.numpy as jnp
    from benchmarks.gpu import jax_networks

    graph = importer.load(small_bert()).graph
    feeds = suite.drawn(suite.ports(graph), 4)
    assert not feeds["mask"].all()
    want = evaluate(graph, feeds, round=False)
    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, suite.TOLERANCE["bf16"])):
        run, weights = jax_networks.bert(pipeline.run(graph)[0], dtype)
        got = np.asarray(run(weights, *(jnp.asarray(a) for a in feeds.values())).astype(jnp.float32))
        assert suite.off({"y": got}, want) < tolerance


@needs("torch", "pip install torch")
def test_bert_of_torch_is_the_same():
    test_networks_of_torch_are_the_same(small_bert)
