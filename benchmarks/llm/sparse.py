#!/usr/bin/env python3
"""Times layers with sparse weights by Pelton's sparse kernels and by its dense ones.

    python -m benchmarks.llm.sparse [--target cpu:x86_64_v3] [--threads N] [--rounds 60] [--level 3] [--page FILE]

Each layer is built twice with the same weights: with all templates, and without those that skip zeros. Both engines
take turns; a time is that of the layer's own step, the median of all rounds, and `dense / sparse` the median ratio of a
round's times. `unstructured`: f32 weights of which this share is zero, at random places. `2:4`: bytes of which two of
every four neighbouring ones are zero. The tactic is that of the sparse engine: where a dense one is in its place, no
sparse one was faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pelton
from pelton.codegen.c.templates.library import TEMPLATES
from pelton.ir.types import U8

from benchmarks.serve.page import replace_part

SPARSE = ("sparse", "conv_int8_sparse", "gemm_int8_sparse")
WARM = 5  # rounds before the first that counts
STEP = np.float32(2**-6)  # of quantized activations


@dataclass(frozen=True)
class Layer:
    """A layer: rows of a product, or (height, width) of images; zeros: the share of unstructured ones, or None for 2:4
    in bytes."""

    rows: int | tuple[int, int]
    inputs: int
    outputs: int
    zeros: float | None
    kernel: int = 1

    @property
    def name(self) -> str:
        kind = "linear" if isinstance(self.rows, int) else f"convolution {self.kernel}×{self.kernel}"
        rows = self.rows if isinstance(self.rows, int) else "×".join(map(str, self.rows))
        return f"{kind} {rows} · {self.inputs} → {self.outputs}"

    @property
    def sparsity(self) -> str:
        return "2:4 bytes" if self.zeros is None else f"{self.zeros:.0%} unstructured"

    def network(self) -> pelton.Network:
        """Returns the layer as a network with the input x."""
        rng, net = np.random.default_rng(0), pelton.Network("layer")
        taps = () if isinstance(self.rows, int) else (self.kernel, self.kernel)
        shape = (self.rows, self.inputs) if isinstance(self.rows, int) else (1, self.inputs, *self.rows)
        dtype = "f32" if self.zeros is not None else "u8"
        x = net.input("x", f"{dtype}[{', '.join(map(str, shape))}]")
        w = np.asarray(rng.standard_normal((self.outputs, self.inputs, *taps)), np.float32)
        if self.zeros is not None:
            weight = net.constant(w * (rng.random(w.shape) >= self.zeros))
        else:
            x = net.dequantize(x, STEP, np.uint8(0))
            weight = net.dequantize(two_of_four(w, rng), STEP)
        y = net.convolution(x, weight, padding=self.kernel // 2) if taps else net.linear(x, weight)
        y = net.relu(y)
        net.output(y if self.zeros is not None else net.quantize(y, STEP * 64, np.uint8(0), to=U8), "y")
        return net


LAYERS = (
    *(Layer(rows, c, c, 0.8) for rows, c in (((56, 56), 64), ((28, 28), 256), ((14, 14), 512), ((7, 7), 1024))),
    *(Layer(rows, c, 4 * c, 0.8) for rows, c in ((128, 768), (512, 512))),
    *(Layer(rows, 2048, 2048, 0.8) for rows in (1, 4)),
    *(Layer((14, 14), 512, 512, zeros) for zeros in (0.5, 0.6, 0.7, 0.9, 0.95)),
    *(Layer(rows, c, c, None) for rows, c in (((28, 28), 256), ((14, 14), 512), ((7, 7), 1024))),
    *(Layer(rows, c, 4 * c, None) for rows, c in ((128, 384), (128, 768), (16, 1024))),
    *(Layer(rows, 2048, 2048, None) for rows in (1, 4)),
    Layer((14, 14), 256, 256, None, kernel=3),
)


def two_of_four(w: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rounds weights to 64 levels, as calibration for CPUs without VNNI does, the smaller two of every four inputs to
    zero."""
    fours = w.reshape(len(w), -1, 4, *w.shape[2:])
    smaller = np.abs(fours).argsort(2).argsort(2) < 2
    return np.clip(np.rint(np.where(smaller, 0, fours).reshape(w.shape) * 24), -64, 64).astype(np.int8)


@contextmanager
def dense_only() -> Iterator[None]:
    """Builds without sparse kernels."""
    removed = {name: TEMPLATES.pop(name) for name in SPARSE}
    try:
        yield
    finally:
        TEMPLATES.update(removed)


class Timed:
    """An engine of a layer, and the nanoseconds of its step in each round."""

    def __init__(self, engine: pelton.Engine):
        self.engine, self.context, self.times = engine, engine.context(), list[int]()
        self.step = max(engine.steps, key=lambda s: s.info.get("flops", 0))

    @property
    def tactic(self) -> str:
        return self.step.info["tactic"].partition("@")[0]

    def run(self, x: np.ndarray) -> None:
        _, stamps = self.context.trace({"x": x})
        self.times.append(next(end - begin for step, begin, end in stamps if step.symbol == self.step.symbol))


def measure(layer: Layer, args: argparse.Namespace) -> str:
    """Returns the row of a layer."""
    options = dict(level=args.level, threads=args.threads, target=args.target)
    with dense_only():
        dense = Timed(pelton.build(layer.network(), **options))
    sparse = Timed(pelton.build(layer.network(), **options))
    port = dense.engine.inputs[0]
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal(port.shape) if layer.zeros is not None else rng.integers(0, 128, port.shape)
    for _ in range(WARM + args.rounds):
        for timed in (dense, sparse):
            timed.run(drawn.astype(port.numpy_dtype))
    times = [timed.times[WARM:] for timed in (dense, sparse)]
    ratio = statistics.median(d / s for d, s in zip(*times))
    us = [statistics.median(t) / 1e3 for t in times]
    kept = [len(timed.engine.plain.constants) / 1024 for timed in (dense, sparse)]
    cells = [f"{us[0]:.1f}", f"{us[1]:.1f}", f"{ratio:.2f}", f"{kept[0]:.0f} → {kept[1]:.0f}", f"`{sparse.tactic}`"]
    return f"| {layer.name} | {layer.sparsity} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--only", default="", help="layers whose row begins with this")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--part", default="sparse", help="of the page")
    args = parser.parse_args()
    columns = "zeros | dense µs | sparse µs | dense / sparse | weights KiB | tactic"
    lines = [f"| {args.target}, threads: {args.threads} | {columns} |", "|---|---|--:|--:|--:|--:|---|"]
    print(*lines, sep="\n", flush=True)
    for layer in LAYERS:
        if layer.name.startswith(args.only):
            lines.append(measure(layer, args))
            print(lines[-1], flush=True)
    if args.page:
        replace_part(args.page, f"<!-- {args.part}: begin -->", f"<!-- {args.part}: end -->", lines)


if __name__ == "__main__":
    sys.exit(main())
