"""Counts the instructions of kernels for AArch64 under QEMU, beside XNNPACK's, and writes benchmarks/arm/results.md.

    python -m benchmarks.arm.counts [NETWORK …] [--level LEVEL …] [--check]

Needs qemu-user and gcc. XNNPACK comes as packages of Debian, which are unpacked into build/arm. Counts are exact, so a
run on any machine gives the same. Every output is compared with that of an engine for x86-64. --check writes nothing
and fails if a kernel takes 2 % more instructions than committed. The exit status is 1 for that, for wrong outputs, and
for more instructions than the gates allow beside XNNPACK.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import pelton
from pelton.targets import ISAS

from . import measure, results
from .counter import Counts, EmulatorError, versions
from .layers import ConvolutionLayer, convolutions
from .networks import NETWORKS
from .results import CountRow, Measured, NetworkCounts

TOLERANCE = 1e-5  # of the largest output; bytes must be equal
LEVELS = ("aarch64", "aarch64_dotprod", "aarch64_i8mm")


def main(arguments: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(
        prog="benchmarks.arm.counts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("networks", nargs="*", metavar="NETWORK", help=f"{', '.join(NETWORKS)}; default: all")
    known = [level for level, isa in ISAS.items() if isa.arch == "aarch64"]
    ask.add_argument("--level", action="append", choices=known, help=f"default: {', '.join(LEVELS)}")
    ask.add_argument("--check", action="store_true", help="compare with the committed counts, write nothing")
    a = ask.parse_args(arguments)
    if unknown := [name for name in a.networks if name not in NETWORKS]:
        ask.error(f"there is no network {unknown[0]!r}; there are {', '.join(NETWORKS)}")
    committed, _ = results.read()
    try:
        measured = measure_all(a.networks or [*NETWORKS], a.level or LEVELS, peer=not a.check)
    except EmulatorError as e:
        print(e, file=sys.stderr)
        return 1
    if a.check:
        failures = [*results.regressions(committed, measured)]
    else:
        about = {**versions(), "XNNPACK": measure.xnnpack_version()}
        merged = {n: committed.get(n, {}) | measured.get(n, {}) for n in NETWORKS if n in committed or n in measured}
        results.write(merged, about)
        failures = [*results.missed_gates(merged)]
    print("\n".join(failures), end="\n" * bool(failures))
    return bool(failures)


def measure_all(networks: Sequence[str], levels: Sequence[str], peer: bool) -> Measured:
    """Counts networks at levels. peer: also count XNNPACK's convolutions."""
    measured: Measured = {}
    for name in networks:
        network = NETWORKS[name]()
        layers = convolutions(network.graph())
        kind = "qc8" if name in results.INT8 else "f32"
        beside = measure.count_xnnpack(layers, kind) if peer else [Counts(0, 0, 0, 0)] * len(layers)
        x, expected = inputs_and_outputs(network)
        for level in levels:
            with tempfile.TemporaryDirectory() as folder:
                engine = measure.engine_of(network, level)
                steps, output = measure.count_steps(engine, x, Path(folder))
            require_equal(f"{name}, {level}", np.frombuffer(output, expected.dtype), expected.reshape(-1))
            counts = NetworkCounts(rows_of(steps, layers, beside), sum(s.counts.all for s in steps))
            measured.setdefault(name, {})[level] = counts
            ratio = f", {counts.convolutions / counts.xnnpack:.3f} of XNNPACK's" if peer else ""
            print(f"{name}, {level}: {counts.convolutions:,} instructions in convolutions{ratio}", flush=True)
    return measured


def inputs_and_outputs(network: pelton.Network) -> tuple[np.ndarray, np.ndarray]:
    """Draws an input, and computes the output by an engine for x86-64."""
    (taken,), draw = network.inputs, np.random.default_rng(1)
    shape = tuple(map(int, taken.shape))
    is_byte = taken.dtype.numpy == np.int8
    x = draw.integers(-128, 128, shape).astype(np.int8) if is_byte else draw.standard_normal(shape, np.float32)
    engine = pelton.build(network, target="cpu:x86_64_v3", level=0, threads=1, strict=not is_byte)
    return x, np.asarray(engine(x))


def require_equal(what: str, output: np.ndarray, expected: np.ndarray) -> None:
    """Raises EmulatorError if an output is wrong."""
    if expected.dtype == np.int8:
        wrong = int((output != expected).sum())
        if wrong:
            raise EmulatorError(f"{what}: {wrong} of {expected.size} bytes differ from those on x86-64")
    elif not np.abs(output - expected).max() <= TOLERANCE * np.abs(expected).max():
        off = np.abs(output - expected).max() / np.abs(expected).max()
        raise EmulatorError(f"{what}: the output differs by {off:.1e} of its largest value from that on x86-64")


def rows_of(
    steps: Sequence[measure.StepCounts], layers: Sequence[ConvolutionLayer], beside: Sequence[Counts]
) -> tuple[CountRow, ...]:
    """Joins steps of equal convolutions, with XNNPACK's counts for the same."""
    rows: dict[tuple[str, str, str], CountRow] = {}
    for step in steps:
        pairs = [(layer, peer) for layer, peer in zip(layers, beside) if layer.name in step.layers]
        if not pairs:
            continue
        title = ", then ".join(str(layer) for layer, _ in pairs)
        key = title, step.op.partition("convolution")[2].strip("+"), step.tactic.partition("@")[0]
        old = rows.get(key, CountRow(*key, kernels=0, products=0, instructions=0, memory=0, xnnpack=0))
        rows[key] = CountRow(
            *key,
            kernels=old.kernels + 1,
            products=old.products + sum(layer.products for layer, _ in pairs),
            instructions=old.instructions + step.counts.all,
            memory=old.memory + step.counts.memory,
            xnnpack=old.xnnpack + sum(peer.all for _, peer in pairs),
        )
    return tuple(rows.values())


if __name__ == "__main__":
    sys.exit(main())
