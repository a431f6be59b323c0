"""The timed models, their inputs, and the tolerance of their outputs."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..child import ROOT, Failed

GENERATOR = ROOT / "benchmarks" / "models.py"
# Of the largest output. With every result rounded, as nobody can avoid, the suite is off by up to 6e-3 in fp16 and 8e-2
# in bf16.
TOLERANCE = {"fp32": 2e-3, "tf32": 2e-2, "fp16": 2e-2, "bf16": 1.2e-1}
# least, of `follows`: two inputs may differ by less in their outputs than bf16 is allowed to be off
FOLLOWS = 0.5
# bytes: inputs that are used in turns take more than twice what the largest of caches holds
L2 = 128 << 20
MOST_SETS = 256


@dataclass(frozen=True)
class Entry:
    """A model at a batch size. `peers`: what it is timed beside."""

    model: str
    batch: int = 1
    peers: tuple[str, ...] = ("torch", "torch.compile")

    @property
    def name(self) -> str:
        return self.model + (f"_b{self.batch}" if self.batch > 1 else "")

    def path(self, folder: Path) -> Path:
        return folder / f"{self.name}.onnx"


WITH_JAX = ("torch", "torch.compile", "jax")
ENTRIES = {
    e.name: e
    for e in (
        Entry("resnet50", 1, WITH_JAX),
        Entry("resnet50", 8, WITH_JAX),
        Entry("resnet50", 128, WITH_JAX),
        Entry("googlenet"),
        Entry("mobilenet_v2"),
        Entry("yolov2"),
        Entry("bert_base", 1, WITH_JAX),
        Entry("bert_base", 32, WITH_JAX),
        Entry("lstm"),
    )
}
MODELS = tuple(dict.fromkeys(e.model for e in ENTRIES.values()))


def generated(entry: Entry, folder: Path) -> Path:
    """The ONNX file of a model, written by benchmarks/models.py where it is not there yet."""
    path = entry.path(folder)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # so that nobody takes a file that is half written for the model
        with tempfile.TemporaryDirectory(dir=folder) as half:
            done = subprocess.run(
                [sys.executable, str(GENERATOR), half, entry.model, "--batch", str(entry.batch)],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise Failed(
                    f"{entry.name} cannot be generated: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
                )
            os.replace(entry.path(Path(half)), path)
    return path


def drawn(ports: Mapping[str, tuple[tuple[int, ...], np.dtype]], seed: int) -> dict[str, np.ndarray]:
    """Random inputs: normal floats, words by number, and masks behind whose end nothing counts."""
    rng, found = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, (shape, dtype) in ports.items():
        if name == "mask":
            found[name] = (np.arange(shape[-1]) < rng.integers(shape[-1] // 2, shape[-1] + 1, (*shape[:-1], 1))).astype(
                dtype
            )
        elif dtype.kind == "f":
            found[name] = rng.standard_normal(shape, np.float32).astype(dtype)
        else:
            found[name] = rng.integers(0, 1000, shape).astype(dtype)
    return found


def ports(graph: Any) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Input name → shape and type, of a program."""
    return {v.name: (v.type.shape, np.dtype(v.type.dtype.numpy)) for v in graph.inputs}


def sets(ports: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> int:
    """How many different inputs a runtime gets in turns: so many that none is in a cache when its turn comes, where
    that is to be had."""
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in ports.values())
    return min(MOST_SETS, max(2, -(-L2 // size)))


def off(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> float:
    """The largest difference, of the largest output; infinite where one is missing, of another shape, or no number."""
    worst = 0.0
    for name, wanted in want.items():
        found = got.get(name)
        if found is None or found.shape != wanted.shape or not np.isfinite(found.astype(np.float64)).all():
            return math.inf
        worst = max(worst, float(np.abs(found.astype(np.float64) - wanted).max() / np.abs(wanted).max()))
    return worst


def follows(got: Sequence[Mapping[str, np.ndarray]], want: Sequence[Mapping[str, np.ndarray]]) -> float:
    """How what another input changes goes with what it should change, the least of the outputs: 1 for the same, around
    0 where the input makes no difference, or another one."""
    least = 1.0
    for name in want[0]:
        found, wanted = (
            np.subtract(*(np.asarray(of[name], np.float64).reshape(-1) for of in pair)) for pair in (got, want)
        )
        lengths = float(np.linalg.norm(found) * np.linalg.norm(wanted))
        least = min(least, float(found @ wanted) / lengths if lengths > 0 else 0.0)
    return least


def finite(number: float) -> float:
    """JSON has no infinity."""
    return number if math.isfinite(number) else 1e30
