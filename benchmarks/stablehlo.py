#!/usr/bin/env python3
"""Compares StableHLO, as the writer writes it, with Pelton's reference: every example of every op, and models, compiled
and run on the CPU by jaxlib: python -m benchmarks.stablehlo [MODEL…] [--match PART] [--page FILE]"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from pelton import importers
from pelton.errors import Error
from pelton.exporters.stablehlo import StableHlo, to_stablehlo
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Node, Value, optimum_sizes, symbols, with_sizes
from pelton.ir.op import Op
from pelton.ir.types import BF16, F16, F32, F64, TensorType

ROOT = Path(__file__).parents[1]
FARTHEST = 1e-4  # of an output's largest element, for floats of 32 bits
PAGE = """# StableHLO, run by XLA

Written by `make test-stablehlo`. `pelton convert` writes a model as StableHLO, XLA compiles that for the CPU
(jaxlib {jaxlib}), and its outputs are compared with Pelton's reference in float64, on random inputs. Floats may
differ by {farthest:g} of an output's largest element (f64 by 2⁻⁴⁰, f16 by 4e-3, bf16 by 3e-2), integers not at all.

## Operators

{operators}

Without a form in StableHLO:

{refused}

## Models

| model | operations | text MB | off by at most |
| --- | ---: | ---: | ---: |
{models}
"""


@dataclass(frozen=True)
class Outcome:
    """A comparison: the module, and the largest difference; or the reason why there is none."""

    name: str
    module: StableHlo | None = None
    far: float = 0.0
    refusal: str = ""
    failure: str = ""


def run(module: StableHlo, feeds: list[np.ndarray]) -> list[np.ndarray]:
    """Compiles a module for the CPU, and runs it."""
    import jax
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir

    jax.config.update("jax_enable_x64", True)
    device = jax.devices("cpu")[0]
    with mlir.make_ir_context():
        parsed = ir.Module.parse(str(module))
        parsed.operation.verify()
        code = mlir.module_to_bytecode(parsed)
    compiled = device.client.compile_and_load(code, _jax.DeviceList((device,)), _jax.CompileOptions())
    results = compiled.execute_sharded([jax.device_put(a, device) for a in feeds])
    return [np.asarray(a[0]) for a in results.disassemble_into_single_device_arrays()]


def difference(name: str, got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, as a part of the largest element; raises AssertionError for one that is not allowed."""
    from compare import assert_close, tolerance

    if want.dtype.kind in "biu" or tolerance(want.dtype) > FARTHEST or want.dtype == np.float64:
        assert_close(got, want, about=name)
        return 0.0
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    assert got.shape == want.shape and got.dtype == want.dtype, f"{name}: {got.dtype}{got.shape}, not {want.dtype}"
    same = (got64 == want64) | (np.isnan(got64) & np.isnan(want64))
    finite = np.isfinite(want64)
    assert (same | finite).all(), f"{name}: infinities or NaN differ"
    largest = np.abs(want64[finite]).max(initial=0)
    far = float(np.abs(np.where(same, 0, got64 - np.where(finite, want64, 0))).max(initial=0) / (largest or 1))
    assert far <= FARTHEST, f"{name} is off by {far:.2g} of its largest element, {largest:.3g}"
    return far


def compared(name: str, graph: Graph, feeds: Mapping[str, np.ndarray], *, round: bool = False) -> Outcome:
    """Writes a program, and compares a run of it with the reference in float64; `round` rounds every value of that."""
    try:
        module = to_stablehlo(graph)
    except Error as e:
        return Outcome(name, refusal=str(e))
    try:
        got = run(module, [np.asarray(feeds[v.name]) for v in graph.inputs])
        want = evaluate(graph, feeds, round=round)
        far = [
            difference(v.name, g, np.asarray(want[v.name]).astype(v.type.dtype.numpy))
            for v, g in zip(graph.outputs, got, strict=True)
        ]
    except Exception as e:  # whatever the compiler raises is what the page is about
        return Outcome(name, module, failure=f"{type(e).__name__}: {str(e).strip()[:1500]}")
    return Outcome(name, module, max(far, default=0.0))


# --- operators


def operators() -> Iterator[tuple[str, Graph, dict[str, np.ndarray]]]:
    """Every example of every op, as a program of one node, once with operands that are inputs, once constants; those of
    f32 in other floats too, where the op takes them."""
    from draw import examples, operands

    for name, op, types, attrs in [*examples(), *in_other_floats()]:
        values = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
        made = tuple(Value(t, f"y{i}") for i, t in enumerate(op.infer_types(types, attrs)))
        arrays = dict(zip(values, operands(op, types, attrs)))
        if op.name == "loop":
            arrays[values[1]] = np.array(True)
        node = Node(op, values, attrs, made, "layer")
        yield name, Graph(values, {}, (node,), made), {v.name: a for v, a in arrays.items()}
        if len(values) > 1:
            kept = {v: arrays[v] for v in values[1:]}
            yield f"{name}-constants", Graph(values[:1], kept, (node,), made), {"x0": arrays[values[0]]}


def in_other_floats() -> Iterator[tuple[str, Op, tuple[TensorType, ...], dict]]:
    """The examples of f32 in f64, f16 and bf16, where the op takes these."""
    from draw import examples

    for name, op, types, attrs in examples():
        if op.kind == "nested" or op.name == "trees" or not any(t.dtype is F32 for t in types):
            continue
        for dtype in (F64, F16, BF16):
            others = tuple(t.with_dtype(dtype) if t.dtype is F32 else t for t in types)
            with contextlib.suppress(ValueError, TypeError):
                op.infer_types(others, attrs)
                yield f"{name}-{dtype.value}", op, others, attrs


# --- models


def drawn(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs: normal floats, small integers."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for v in graph.inputs:
        if v.type.dtype.is_float:
            feeds[v.name] = rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy)
        else:
            feeds[v.name] = rng.integers(0, 2, v.type.shape).astype(v.type.dtype.numpy)
    return feeds


def loaded(model: object) -> Graph:
    """The program of a model, for the sizes that it is tuned for."""
    graph = importers.load(model).graph
    return with_sizes(graph, optimum_sizes(graph))[0] if symbols(graph) else graph


def integer_products() -> onnx.ModelProto:
    """Products of bytes, signed and unsigned, with zero points and sums in i32: convolutions and a matrix product."""
    from onnx_models import model, node

    rng = np.random.default_rng(0)
    scalars = {"s": np.float32(0.02), "z": np.uint8(131), "sw": np.float32(0.01), "zw": np.int8(0)}
    scalars |= {"sy": np.float32(0.6), "zy": np.uint8(117)}
    weights = {"w": rng.integers(-127, 128, (16, 3, 3, 3)).astype(np.int8)}
    weights |= {"v": rng.integers(0, 256, (10, 16, 3, 3)).astype(np.uint8), "zv": np.uint8(140)}
    weights |= {"m": rng.integers(-128, 128, (11, 7)).astype(np.int8), "zm": np.int8(-9)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("QLinearConv", "q s z w sw zw sy zy", "a", pads=[1, 1, 1, 1], strides=[2, 1]),
        node("ConvInteger", "a v zy zv", "b", dilations=[2, 1]),
        node("MatMulInteger", "q m z zm", "c"),
        node("DequantizeLinear", "c s", "y"),
    ]
    return model(nodes, {"x": "f32[2, 3, 13, 11]"}, ["b", "c", "y"], scalars | weights)


def models(more: list[str]) -> Iterator[tuple[str, Callable[[], Graph]]]:
    """The package's and tests' own networks, and files."""
    from models import inverted_residuals, small_cnn, wide_cnn
    from quantized_models import qdq_attention, qdq_cnn

    for make in (small_cnn, wide_cnn, inverted_residuals, qdq_cnn, qdq_attention, integer_products):
        yield make.__name__, lambda make=make: loaded(make())
    own = [ROOT / "src/pelton/data/resnet20_cifar10.onnx", ROOT / "tests/data/small_transformer.onnx"]
    listed = [p for m in more for p in (sorted(Path(m).glob("*.onnx")) if Path(m).is_dir() else [Path(m)])]
    for path in (*own, *listed):
        yield path.stem, lambda path=path: loaded(path)


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument(
        "models", nargs="*", help="further models in any format that Pelton reads, or folders of ONNX models"
    )
    ask.add_argument("--match", default="", help="only operators and models whose name contains this")
    ask.add_argument("--page", type=Path, help="where the results are written")
    a = ask.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    ops = [compared(n, g, feeds, round=True) for n, g, feeds in operators() if a.match in n]
    nets = []
    for name, make in models(a.models):
        if a.match in name:
            start, graph = time.time(), make()
            nets.append(compared(name, graph, drawn(graph)))
            print(f"{name}: {nets[-1].failure or nets[-1].refusal or nets[-1].far} ({time.time() - start:.0f} s)")
    failed = [o for o in (*ops, *nets) if o.failure or o in nets and o.refusal]
    print(f"{sum(not o.failure and not o.refusal for o in ops)} of {len(ops)} examples of operators are equal,")
    print(f"{sum(bool(o.refusal) for o in ops)} have no form: {', '.join(refused(ops))}")
    for o in failed:
        print(f"--- {o.name}: {o.failure or o.refusal}")
    if a.page and not a.match and not failed:
        a.page.write_text(page(ops, nets))
    return bool(failed)


def refused(ops: list[Outcome]) -> dict[str, str]:
    """op → why it has no form."""
    reasons = {}
    for o in ops:
        if o.refusal:
            reason = o.refusal.splitlines()[-1].strip().partition(": ")[2]
            reasons.setdefault(o.name.partition("-")[0], reason)
    return reasons


def page(ops: list[Outcome], nets: list[Outcome]) -> str:
    whole = [o for o in ops if not o.refusal]
    names = {o.name.partition("-")[0] for o in whole}
    operators_ = (
        f"{len(whole):,} programs of {len(names)} operators: their examples, with all operands as inputs, and with all"
        f" but the first as\nconstants; those of f32 also in f64, f16 and bf16. f32 is off by at most"
        f" {max(o.far for o in whole):.1e}."
    )
    rows = []
    for o in nets:
        assert o.module is not None
        size = sum(map(len, o.module.text())) / 1e6
        rows.append(f"| {o.name} | {o.module.operations:,} | {size:.1f} | {o.far:.1e} |")
    return PAGE.format(
        jaxlib=importlib.metadata.version("jaxlib"),
        farthest=FARTHEST,
        operators=operators_,
        refused="\n".join(f"- `{name}`: {reason}" for name, reason in refused(ops).items()),
        models="\n".join(rows),
    )


if __name__ == "__main__":
    sys.exit(main())
