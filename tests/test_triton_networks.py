"""Whole networks for GPUs, without one: built, and run step by step under Triton's interpreter on a fake device's
memory."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from models import inverted_residuals, small_cnn
from onnx_models import draw, model

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402

from pelton.builder.build import build_detailed  # noqa: E402
from pelton.engine import file  # noqa: E402
from pelton.engine.library import LIBRARIES  # noqa: E402
from pelton.errors import BuildError, InputError  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.codegen.triton import toolchain as triton_compile  # noqa: E402
from pelton.options import Options  # noqa: E402
from pelton.backends.cuda import kernel_choice  # noqa: E402

TOLERANCE = {"fp32": 2e-3, "tf32": 2e-2, "fp16": 2e-2, "bf16": 6e-2}  # of the largest output


def block(seed: int = 0, rows: int = 13, width: int = 24, heads: int = 2) -> onnx.ModelProto:
    """A block of a transformer: norm, attention with a mask, norm, two products with a GELU between."""
    rng = np.random.default_rng(seed)
    depth = width // heads

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def node(op: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
        return onnx.helper.make_node(op, inputs.split(), [output], **attrs)

    nodes = [
        node("LayerNormalization", "x scale shift", "n0"),
        *(node("MatMul", f"n0 w{t}", f"{t}0") for t in "qkv"),
        *(node("Reshape", f"{t}0 split", f"{t}1") for t in "qkv"),
        node("Transpose", "q1", "q2", perm=[0, 2, 1, 3]),
        node("Transpose", "k1", "k2", perm=[0, 2, 3, 1]),
        node("Transpose", "v1", "v2", perm=[0, 2, 1, 3]),
        node("MatMul", "q2 k2", "s0"),
        node("Div", "s0 root", "s1"),
        node("Add", "s1 mask", "s2"),
        node("Softmax", "s2", "p", axis=-1),
        node("MatMul", "p v2", "a0"),
        node("Transpose", "a0", "a1", perm=[0, 2, 1, 3]),
        node("Reshape", "a1 join", "a2"),
        node("MatMul", "a2 wo", "a3"),
        node("Add", "a3 x", "h"),
        node("LayerNormalization", "h scale shift", "n1"),
        node("MatMul", "n1 wa", "f0"),
        node("Add", "f0 ba", "f1"),
        node("Gelu", "f1", "f2"),
        node("MatMul", "f2 wb", "f3"),
        node("Add", "f3 h", "y"),
    ]
    constants = {
        "scale": 1 + weights(width),
        "shift": weights(width),
        **{f"w{t}": weights(width, width) for t in "qkvo"},
        "wa": weights(width, 4 * width),
        "ba": weights(4 * width),
        "wb": weights(4 * width, width),
        "split": np.array([2, rows, heads, depth]),
        "join": np.array([2, rows, width]),
        "root": np.float32(np.sqrt(depth)),
        "mask": np.triu(np.full((rows, rows), -1e4, np.float32), 1),
    }
    return model(nodes, {"x": f"f32[2, {rows}, {width}]"}, ["y"], constants, opset=20)


def recurrent(seed: int = 0, time: int = 3, batch: int = 2, width: int = 9, hidden: int = 128) -> onnx.ModelProto:
    """An LSTM in both directions, then a GRU: step by step in f32, whose weights are too many for one multiprocessor,
    and as a whole in half precision."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    nodes = [
        onnx.helper.make_node("LSTM", ["x", "w0", "r0", "b0"], ["y0"], hidden_size=hidden, direction="bidirectional"),
        onnx.helper.make_node("Transpose", ["y0"], ["y1"], perm=[0, 2, 1, 3]),
        onnx.helper.make_node("Reshape", ["y1", "shape"], ["y2"]),
        onnx.helper.make_node("GRU", ["y2", "w1", "r1", "b1"], ["y3", "h"], hidden_size=hidden),
    ]
    constants = {
        "w0": weights(2, 4 * hidden, width),
        "r0": weights(2, 4 * hidden, hidden),
        "b0": weights(2, 8 * hidden),
        "w1": weights(1, 3 * hidden, 2 * hidden),
        "r1": weights(1, 3 * hidden, hidden),
        "b1": weights(1, 6 * hidden),
        "shape": np.array([time, batch, 2 * hidden]),
    }
    return model(nodes, {"x": f"f32[{time}, {batch}, {width}]"}, ["y3", "h"], constants, opset=20)


def moving() -> onnx.ModelProto:
    """What brings elements from other places: a mirrored edge, an interpolated enlargement, a join, points of a grid,
    regions, a cache that is written to."""
    rng = np.random.default_rng(2)

    def node(op: str, inputs: list[str], output: str, **attrs: Any) -> onnx.NodeProto:
        return onnx.helper.make_node(op, inputs, [output], **attrs)

    nodes = [
        node("Pad", ["x", "pads"], "p", mode="reflect"),
        node("Conv", ["p", "w0"], "c0", strides=[2, 2]),
        node("Relu", ["c0"], "r0"),
        node("Resize", ["r0", "", "twice"], "u", mode="linear"),
        node("Concat", ["u", "x"], "j", axis=1),
        node("Conv", ["j", "w1"], "c1"),
        node("GridSample", ["c1", "grid"], "g", padding_mode="border"),
        node("RoiAlign", ["c1", "boxes", "which"], "b", output_height=2, output_width=3),
        node("ScatterND", ["cache", "rows", "new"], "s0"),
        node("Reshape", ["b", "flat"], "b1"),
        node("MatMul", ["b1", "s0"], "y"),
        node("Sigmoid", ["g"], "z"),
    ]
    constants = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "w0": rng.standard_normal((6, 3, 3, 3)).astype(np.float32) / 5,
        "twice": np.array([1, 1, 2, 2], np.float32),
        "w1": rng.standard_normal((5, 9, 1, 1)).astype(np.float32) / 3,
        "grid": rng.uniform(-1.2, 1.2, (1, 4, 3, 2)).astype(np.float32),
        "boxes": np.array([[0, 0, 5, 5], [1, 2, 7.5, 6]], np.float32),
        "which": np.zeros(2, np.int64),
        "cache": rng.standard_normal((30, 4)).astype(np.float32),
        "rows": np.array([[3], [29], [-5]]),
        "flat": np.array([2, 30]),
    }
    return model(nodes, {"x": "f32[1, 3, 8, 8]", "new": "f32[3, 4]"}, ["y", "z"], constants, opset=20)


def partly_hosted() -> onnx.ModelProto:
    """A convolution, an antialiased resize and determinants, which no kernel of a GPU takes, and what is computed
    between and behind them."""
    rng = np.random.default_rng(4)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["c"], ["r"]),
        onnx.helper.make_node("Resize", ["r", "", "", "sizes"], ["s"], mode="linear", antialias=1),
        onnx.helper.make_node("Add", ["s", "shift"], ["a"]),
        onnx.helper.make_node("Det", ["a"], ["d"]),
        onnx.helper.make_node("Tanh", ["d"], ["y"]),
        onnx.helper.make_node("Sigmoid", ["a"], ["z"]),
    ]
    constants = {
        "w": rng.standard_normal((3, 2, 3, 3)).astype(np.float32) / 3,
        "sizes": np.array([1, 3, 4, 4]),
        "shift": rng.standard_normal((3, 4, 4)).astype(np.float32),
    }
    return model(nodes, {"x": "f32[1, 2, 9, 9]"}, ["y", "z"], constants, opset=19)


NETWORKS = {
    "a CNN": small_cnn,
    "inverted residuals": lambda: inverted_residuals(size=12),
    "a transformer's block": block,
    "recurrent layers": recurrent,
    "elements moved": moving,
}
HOSTED = {"steps of the CPU": partly_hosted}


def compared(data: bytes, sources: Mapping[str, str], wrong: str = "") -> tuple[bytes, int, list[str]]:
    """In a process where all of Triton is interpreted: the engine without kernels that disagree, how many were
    launched, and what was said. `wrong`: one that does nothing."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger(kernel_choice.log.name)
    log.addHandler(handler)
    device = triton_interpreter.device(sources)
    if wrong:
        device.kernels[wrong] = lambda programs, words: None
    engine = kernel_choice.drop_wrong_kernels(file.read(data), device)
    log.removeHandler(handler)
    return file.to_bytes(engine), len(device.happened("launch")), said


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", [*NETWORKS, *HOSTED])
def test_networks_are_right(name, precision, apart, tmp_path, caplog):
    m = {**NETWORKS, **HOSTED}[name]()
    with caplog.at_level("WARNING", "pelton.build"):
        made = build_detailed(m, Options(target="cuda:sm_90", precision=precision, level=0, cache_dir=tmp_path))
    hosted = made.engine.meta["host_steps"]
    assert bool(hosted) == (name in HOSTED) and made.engine.meta["precision"] == precision
    assert [h for h in hosted if not any(f"{h} runs in numpy" in r.message for r in caplog.records)] == []
    feeds = draw(m, 3, low=-1, high=1)
    results, launched = apart.submit(
        triton_interpreter.ran, made.engine.tobytes(), triton_interpreter.sources(made), feeds
    ).result()
    wanted = evaluate(importer.load(m).graph, feeds)
    assert len(launched) == len(made.engine.steps) - len(hosted) and results.keys() == wanted.keys()
    for port, want in wanted.items():
        assert results[port].dtype == want.dtype
        off = np.abs(results[port].astype(np.float64) - want).max() / np.abs(want).max()
        assert off < TOLERANCE[precision], f"{port} is off by {off:.1e}"
    multiplied = {int(p) for s in made.engine.steps for p in re.findall(r"PRECISION=(\d)", str(s.info.get("tactic")))}
    assert multiplied <= ({0, 2} if precision == "tf32" else {0, 1}) and (
        2 in multiplied or precision != "tf32" or name == "recurrent" or hosted
    )


@pytest.mark.parametrize("name, precision", list(zip(NETWORKS, ["fp32", "bf16", "fp16", "fp16", "fp32"])))
def test_kernels_of_a_step_agree(name, precision, apart, tmp_path):
    """All that an engine carries gives the same in all of these networks; where one gives something else, it is found,
    in place or not."""
    made = build_detailed(
        NETWORKS[name](), Options(target="cuda:sm_90", precision=precision, level=4, cache_dir=tmp_path)
    )
    kernels = [k for c in made.scheduled if c.kernel is not None for k in (c.kernel, *(k for _, k in c.alternatives))]
    sources, data = {k.symbol: k.source for k in kernels if k.symbol not in LIBRARIES}, made.engine.tobytes()
    steps = [s for s in made.engine.steps if sum(k.symbol not in LIBRARIES for k in s.alternatives) > 1]
    assert steps
    same, launched, said = apart.submit(compared, data, sources).result()
    assert same == data and launched > len(made.engine.steps) and not said
    symbol = steps[0].symbol
    other, _, said = apart.submit(compared, data, sources, symbol).result()
    concerned = {
        s.name
        for s in made.engine.steps
        if sum(k.symbol not in LIBRARIES for k in s.alternatives) > 1 and s.symbol == symbol
    }
    assert symbol not in {k.symbol for s in file.read(other).steps if s.name in concerned for k in (s, *s.alternatives)}
    assert said and all("is not used, as its results differ on no GPU" in line for line in said)


def test_what_does_not_compile_ends_no_build(tmp_path, monkeypatch, caplog):
    """Another tactic takes its place, even at level 0, where engines carry no alternatives; unless none compiles."""
    options = Options(target="cuda:sm_90", level=0, cache_dir=tmp_path / "a")
    bad = {
        s.symbol for s in build_detailed(small_cnn(), options).engine.steps if s.info["op"].startswith("convolution")
    }
    monkeypatch.setattr("pelton.backends.cpu.default_threads", lambda: 1)  # in this process
    compiled = triton_compile.compile_cubin

    def compile_cubin(symbol, text, arch):
        if symbol in bad or not bad:
            raise BuildError(f"{symbol} is more than the compiler holds")
        return compiled(symbol, text, arch)

    monkeypatch.setattr(triton_compile, "compile_cubin", compile_cubin)
    with caplog.at_level("WARNING", "pelton.build"):
        engine = build_detailed(small_cnn(), options.but(cache_dir=tmp_path / "b")).engine
    assert (
        bad
        and bad.isdisjoint(s.symbol for s in engine.steps)
        and sum("is more than the compiler holds" in r.message for r in caplog.records) >= len(bad)
    )
    bad.clear()
    with pytest.raises(BuildError, match="is more than the compiler holds"):
        build_detailed(small_cnn(), options.but(cache_dir=tmp_path / "c"))


def test_targets_and_precisions_are_checked(tmp_path):
    for wrong in (
        {"target": "gpu"},
        {"target": "cuda:"},
        {"target": "cuda:90"},
        {"target": "cuda:sm_90,"},
        {"target": "cuda", "precision": "int8"},
        {"target": "cuda", "check": True},
    ):
        with pytest.raises(InputError):
            Options(**wrong)
    made = build_detailed(small_cnn(), Options(target="cuda:sm_90,sm_80", level=0, cache_dir=tmp_path)).engine
    assert made.plain.target["arch"] == "cuda" and made.plain.target["isa"] == "sm_80,sm_90"
    assert json.dumps(dict(made.meta))
