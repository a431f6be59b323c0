#!/usr/bin/env python3
"""Measures the cost of dynamic sizes: dynamic.py MODEL.onnx … [--shapes x=1..1..8x3x224x224 …] [--level 3]

Builds every model twice: with its dynamic sizes (or those of --shapes), and with fixed sizes, the optimum. Both engines
run in turns in one process at the optimum, and their outputs must agree. The ratio is the median of dynamic / fixed;
above 1, dynamic sizes cost time. Planning is the time of a context to prepare a new shape, and a known one.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import time

import numpy as np

import pelton
from pelton.cli.arrays import draw_inputs
from pelton.runtime import Engine

NEW = 24  # shapes to plan for
# milliseconds that a turn takes at least: five runs of a small network say little
TURN = 50.0


def around(engine: Engine) -> list[dict[str, tuple[int, ...]]]:
    """Shapes of all inputs for sizes near the usual ones, every set another."""
    found = []
    for i in range(1, NEW + 1):
        sizes = {
            s.name: max(s.minimum, min(s.maximum, s.optimum + i if s.optimum + i <= s.maximum else s.optimum - i))
            for s in engine.plain.symbols
        }
        found.append(
            {p.name: tuple(sizes.get(d, d) if isinstance(d, str) else d for d in p.shape) for p in engine.inputs}
        )
    return [shapes for i, shapes in enumerate(found) if shapes not in found[:i]]


def planning(engine: Engine, threads: int | None) -> tuple[list[float], list[float]]:
    """Milliseconds to find what is ready for a shape: (of new shapes, of the same once more)."""
    context = engine.context(threads=threads)
    largest, *rest = sorted(around(engine), key=lambda shapes: -sum(map(math.prod, shapes.values())))
    # its memory will do for the others, as in a process that has been at work for a while
    context.prepare(largest)
    new: list[float] = []
    known: list[float] = []
    for times in (new, known):
        for shapes in rest:
            start = time.perf_counter()
            context.prepare(shapes)
            times.append(1e3 * (time.perf_counter() - start))
    return new, known


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+")
    ask.add_argument(
        "--shapes",
        action="append",
        default=[],
        metavar="NAME=SIZES",
        help="as of `pelton build`; of the inputs that a model has",
    )
    ask.add_argument("--level", type=int, default=3)
    ask.add_argument("--threads", type=int)
    ask.add_argument("--turns", type=int, default=15)
    ask.add_argument("--cache-dir")
    a = ask.parse_args()
    print("| model | open ms | fixed ms | open / fixed | off | new shape ms (median, most) | known shape µs |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in a.models:
        ask_for = dict(s.split("=", 1) for s in a.shapes)
        common = {"level": a.level, "threads": a.threads, "cache_dir": a.cache_dir}
        engine = pelton.build(model, shapes=ask_for or None, **common)
        fixed = pelton.build(model, shapes=engine.shapes(), **common)
        feeds = draw_inputs(fixed, {})
        contexts = [e.context(threads=a.threads) for e in (engine, fixed)]
        outputs = [c.run(feeds) for c in contexts]
        off = max(
            float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in zip(*(o.values() for o in outputs))
        )
        turns: list[list[float]] = []
        for turn in range(a.turns):
            row = [0.0, 0.0]
            for i in (0, 1) if turn % 2 else (1, 0):
                contexts[i].run(feeds)
                times: list[float] = []
                while len(times) < 5 or sum(times) < TURN:
                    start = time.perf_counter()
                    contexts[i].run(feeds)
                    times.append(1e3 * (time.perf_counter() - start))
                row[i] = statistics.median(times)
            turns.append(row)
        new, known = planning(engine, a.threads)
        own, other = (statistics.median(row[i] for row in turns) for i in (0, 1))
        print(
            f"| {pathlib.Path(model).stem} | {own:.2f} | {other:.2f} | {statistics.median(x / y for x, y in turns):.3f}"
            f" | {off:.0e} | {statistics.median(new):.1f}, {max(new):.1f} | {1e3 * statistics.median(known):.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
