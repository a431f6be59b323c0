"""Boxes by a YOLO of Ultralytics (v8 to v12, as ONNX), drawn into the picture; here faces, by nudenet's weights.

pip install 'pelton[build]' pillow scikit-image && pip install --no-deps nudenet
python examples/yolo.py [picture.jpg yolo11n.onnx]
"""

import ast
import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pelton
from PIL import ImageDraw
from pelton import preprocessing


def suppress(boxes: np.ndarray, scores: np.ndarray, most: float = 0.45) -> list[int]:
    """Non-maximum suppression: the boxes [n, 4] that overlap no better one by more than `most` of what both cover."""
    kept: list[int] = []
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for i in np.argsort(-scores):
        size = np.minimum(boxes[i, 2:], boxes[kept, 2:]) - np.maximum(boxes[i, :2], boxes[kept, :2])
        common = size.clip(0).prod(1)
        if (common <= most * (area[i] + area[kept] - common)).all():
            kept.append(int(i))
    return kept


def example() -> tuple[np.ndarray, Path]:
    """A picture of scikit-image, and the network that nudenet brings along."""
    from skimage import data

    spec = importlib.util.find_spec("nudenet")
    return data.astronaut(), Path(spec and spec.origin or "").with_name("320n.onnx")


def main() -> None:
    source, model = sys.argv[1:] if len(sys.argv) == 3 else example()
    said = {p.key: ast.literal_eval(p.value) for p in onnx.load(model).metadata_props if p.key in ("names", "imgsz")}
    height, width = said["imgsz"]
    engine = pelton.build(model, shapes={"images": (1, 3, height, width)}, level=0)

    picture = preprocessing.open_picture(source).convert("RGB")
    prepare = preprocessing.parse(f"{height}x{width} letterbox")
    (found,) = engine(prepare.array(picture, engine.inputs[0].shape))  # [4 + classes, boxes]
    found = found[:, found[4:].max(0) > 0.4]
    corners = np.concatenate([found[:2] - found[2:4] / 2, found[:2] + found[2:4] / 2]).T
    boxes = prepare.boxes_in_picture(corners, picture.size)
    for i in suppress(boxes, found[4:].max(0)):
        ImageDraw.Draw(picture).rectangle(tuple(boxes[i]), outline="red", width=3)
        name = said["names"][int(found[4:, i].argmax())]
        print(f"{name} {found[4:, i].max():.2f} at {boxes[i].round().astype(int).tolist()}")
    picture.save("boxes.png")


if __name__ == "__main__":
    main()
