"""Networks that need no other package: those of tests/ and of pelton, and a detector of Darknet's kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
SIDE, CLASSES = 320, 20
NET = f"[net]\nwidth={SIDE}\nheight={SIDE}\nchannels=3\n"
ANCHORS = "10,14, 23,27, 37,58, 81,82, 135,169, 344,319"


def networks(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yields names and sources, whose weights are random but for ResNet-20; files are written to the folder."""
    from models import inverted_residuals, small_cnn, wide_cnn
    from quantized_models import qdq_cnn

    yield "resnet20_cifar10", ROOT / "src/pelton/data/resnet20_cifar10.onnx"
    yield "small_cnn", small_cnn()
    yield "wide_cnn", wide_cnn()
    yield "inverted_residuals", inverted_residuals()
    yield "qdq_cnn", qdq_cnn()
    detector = folder / "small_yolo.cfg"
    detector.write_text(small_yolo())
    yield detector.stem, detector


def small_yolo() -> str:
    """Returns a network of YOLOv3's kind in Darknet's form: leaky ReLUs, two scales, boxes and scores in one output."""

    def conv(filters: int, size: int, kind: str = "leaky") -> str:
        norm = "" if kind == "linear" else "batch_normalize=1\n"
        return f"[convolutional]\n{norm}filters={filters}\nsize={size}\nstride=1\npad=1\nactivation={kind}\n"

    def head(mask: str) -> str:
        return (
            conv(3 * (5 + CLASSES), 1, "linear") + f"[yolo]\nmask={mask}\nanchors={ANCHORS}\nclasses={CLASSES}\nnum=6\n"
        )

    pool = "[maxpool]\nsize=2\nstride=2\n"
    trunk = "".join(conv(filters, 3) + pool for filters in (16, 32, 64, 128)) + conv(256, 3)  # layer 8
    low = pool + conv(256, 3) + conv(128, 1)  # up to layer 11
    up = "[route]\nlayers=11\n" + conv(64, 1) + "[upsample]\nstride=2\n[route]\nlayers=-1,8\n" + conv(128, 3)
    return NET + trunk + low + head("3,4,5") + up + head("0,1,2")
