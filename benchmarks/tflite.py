"""Times TFLite models with LiteRT and Pelton: python benchmarks/tflite.py MODEL.tflite… [--level N] [--threads N]

Prints a line per model: medians of microseconds of a run by LiteRT (XNNPACK on) and by Pelton, their ratio, and the
largest difference of outputs, relative to the largest element, or in steps of quantized outputs. The two alternate
every few milliseconds, so both run under the same conditions. Needs ai-edge-litert and pelton[build].
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pelton
from pelton.importers import tflite

TURN = 0.03  # seconds that one of the two runs at a time


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+", type=Path)
    ask.add_argument("--level", type=int, default=1)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--turns", type=int, default=30)
    ask.add_argument("--shapes", default="", help="sizes of the first input, such as 1x16000")
    given = ask.parse_args()
    ratios = []
    for path in given.models:
        shape = tuple(map(int, given.shapes.split("x"))) if given.shapes else None
        try:
            theirs, inputs = litert(path, given.threads, shape)
        except RuntimeError as e:
            print(f"{path.name:44} LiteRT: {str(e).splitlines()[0]}", flush=True)
            continue
        ours = engine(path, given, inputs, shape)
        t, o = in_turns(theirs, ours, given.turns)
        ratios.append(t / o)
        print(
            f"{path.parent.name + '/' + path.name:60} LiteRT {t * 1e6:9.1f} µs  Pelton {o * 1e6:9.1f} µs "
            f" {t / o:5.2f} times as fast  off by {difference(theirs(), ours()):.2g}",
            flush=True,
        )
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{len(ratios)} models: geometric mean {mean:.2f}, least {min(ratios):.2f}")


Run = Callable[[], list[np.ndarray]]


def litert(path: Path, threads: int, shape: tuple[int, ...] | None) -> tuple[Run, list[np.ndarray]]:
    """What runs a model by LiteRT once, inputs set and outputs fetched, and the inputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    details = interpreter.get_input_details()
    if shape is not None:
        interpreter.resize_tensor_input(details[0]["index"], shape)
    interpreter.allocate_tensors()
    details, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    rng = np.random.default_rng(0)
    inputs = [drawn(tuple(d["shape"]), d["dtype"], rng) for d in details]

    def run() -> list[np.ndarray]:
        for detail, array in zip(details, inputs):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]) for d in outputs]

    return run, inputs


def drawn(shape: tuple[int, ...], dtype: type, rng: np.random.Generator) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return rng.random(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def engine(path: Path, given: argparse.Namespace, inputs: list[np.ndarray], shape: tuple[int, ...] | None) -> Run:
    """What runs a model by Pelton once; states go from one run to the next, as they do within LiteRT."""
    net = tflite.read(path)
    name = net.inputs[0].name
    built = pelton.build(path, level=given.level, threads=given.threads, shapes={name: shape} if shape else None)
    context, after = built.context(given.threads), [*built.state_outputs.items()]
    names = [p.name for p in built.inputs if p.name not in built.state_outputs]
    results = [p.name for p in built.outputs if p.name not in built.state_outputs.values()]
    feeds = {**dict(zip(names, inputs)), **built.initial_states()}

    def run() -> list[np.ndarray]:
        found = context.run(feeds)
        for state, output in after:
            feeds[state] = found[output]
        return [found[name] for name in results]

    return run


def in_turns(first: Run, second: Run, turns: int) -> tuple[float, float]:
    """Median seconds of a run of each, after one turn to warm up."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for run, found in zip((first, second), times):
            end = time.perf_counter() + TURN
            while (begin := time.perf_counter()) < end:
                run()
                if turn:
                    found.append(time.perf_counter() - begin)
    return statistics.median(times[0]), statistics.median(times[1])


def difference(theirs: list[np.ndarray], ours: list[np.ndarray]) -> float:
    worst = 0.0
    for a, b in zip(theirs, ours):
        off = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)
        worst = max(worst, off if a.dtype.kind != "f" else off / max(np.abs(a).max(initial=0), 1e-30))
    return worst


if __name__ == "__main__":
    main()
