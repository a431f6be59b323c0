"""Rows for an engine in a cluster, and the check of what comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import pelton

MODEL = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
ROWS = 512


def save_engine(folder: Path) -> Path:
    """Builds the engine of the model into a folder, for batches of 1 to 32; returns its path."""
    path = folder / "resnet20.pelton"
    pelton.build(MODEL, {"image": "1..8..32x3x32x32"}, level=0, threads=1).save(path)
    return path


def draw_images() -> np.ndarray:
    """Returns ROWS pictures of random numbers."""
    return np.random.default_rng(0).standard_normal((ROWS, 3, 32, 32)).astype(np.float32)


def check(ids: np.ndarray, logits: np.ndarray, path: Path, images: np.ndarray) -> None:
    """Fails unless each picture came back once, with the logits that the engine has in this process."""
    engine = pelton.load(path)
    want = np.concatenate([engine.run({"image": part})["logits"] for part in np.array_split(images, 16)])
    order = np.argsort(ids)
    assert np.array_equal(ids[order], np.arange(ROWS))  # none lost, none doubled
    np.testing.assert_allclose(logits[order], want, rtol=1e-4, atol=1e-5)
