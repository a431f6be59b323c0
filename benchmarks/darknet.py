#!/usr/bin/env python3
"""Times a Darknet network with Pelton and with OpenCV's dnn, in turns, with the same weights.

    python benchmarks/darknet.py yolov2.cfg [--weights FILE] [--size 416] [--threads 2] [--rounds 15] [--level 3]

Without weights, both use the same random ones. A round is one run of each. Prints the medians, and the median of the
rounds' ratios with its quartiles. Needs opencv-python-headless: version 4 reads Darknet files, version 5 gets the
network as ONNX.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np

import pelton
from pelton import exporters, importers
from pelton.importers.darknet.cfg import Section
from pelton.importers.darknet.network import INPUT, network_of
from pelton.importers.darknet.weights import RandomWeights

HEADER = np.array([0, 2, 0, 0, 0], "<i4").tobytes()  # major, minor, revision, images seen


class WrittenWeights(RandomWeights):
    """Random weights that are written to a file as they are taken."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self.file = file
        file.write(HEADER)

    def take(self, section: Section, what: str, *shape: int) -> np.ndarray:
        found = super().take(section, what, *shape)
        self.file.write(found.astype("<f4").tobytes())
        return found


def read_by_opencv(cfg: Path, weights: Path, shape: tuple[int, ...]) -> cv2.dnn.Net:
    if hasattr(cv2.dnn, "readNetFromDarknet"):
        return cv2.dnn.readNetFromDarknet(str(cfg), str(weights))
    model = exporters.to_onnx(importers.load(importers.ModelFiles(str(cfg), str(weights)), {INPUT: shape}).graph)
    return cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("cfg", type=Path)
    ask.add_argument("--weights", type=Path)
    ask.add_argument("--size", type=int, default=416)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--rounds", type=int, default=15)
    ask.add_argument("--level", type=int, default=3)
    a = ask.parse_args()
    with tempfile.TemporaryDirectory(prefix="pelton-darknet-") as folder:
        weights = a.weights or Path(folder) / "random.weights"
        if a.weights is None:
            with open(weights, "wb") as file:
                network_of(str(a.cfg), a.cfg.read_bytes(), WrittenWeights(file))
        x = np.random.default_rng(0).random((1, 3, a.size, a.size), np.float32)
        shapes = {INPUT: x.shape}
        engine = pelton.build(a.cfg, weights=weights, shapes=shapes, threads=a.threads, level=a.level)
        peer = read_by_opencv(a.cfg, weights, x.shape)
    context = engine.context(threads=a.threads)
    names = peer.getUnconnectedOutLayersNames()
    cv2.setNumThreads(a.threads)

    def run_peer() -> list[np.ndarray]:
        peer.setInput(x)
        return list(peer.forward(names))

    ours, theirs = context.run({INPUT: x}), run_peer()
    for (name, mine), other in zip(ours.items(), theirs):
        boxes = slice(None, 5) if mine.ndim == 3 else slice(None)  # OpenCV selects among the scores behind them
        off = np.abs(mine[..., boxes] - other.reshape(mine.shape)[..., boxes]).max() / np.abs(other).max()
        print(f"{name}: {off:.1e} of the largest apart")
    pairs = [(timed(lambda: context.run({INPUT: x})), timed(run_peer)) for _ in range(a.rounds)]
    mine, other = (statistics.median(times) for times in zip(*pairs))
    low, ratio, high = statistics.quantiles([b / a for a, b in pairs], n=4)
    print(f"{a.cfg.name} {a.size}, {a.threads} threads: Pelton {mine:.1f} ms, OpenCV {cv2.__version__} {other:.1f} ms")
    print(f"OpenCV / Pelton: {ratio:.2f} ({low:.2f} to {high:.2f})")


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of one run."""
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
