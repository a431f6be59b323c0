#!/usr/bin/env python3
"""Draws the boxes that a YOLO network of Darknet finds in a picture.

    python examples/darknet.py dog.jpg --cfg yolov2.cfg --weights yolov2.weights --names coco.names -o boxes.png

Without weights (and none beside the configuration) they are random, and so are the boxes. Needs Pillow, which
`pip install "pelton[demo]"` brings along.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pelton
from PIL import ImageDraw
from pelton import preprocessing

COLORS = ("red", "lime", "deepskyblue", "orange", "magenta", "yellow", "cyan", "white")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("picture", type=Path)
    ask.add_argument("--cfg", type=Path, required=True)
    ask.add_argument("--weights", type=Path)
    ask.add_argument("--names", type=Path, required=True, help="names of the classes, one per line")
    ask.add_argument("--size", type=int, help="pixels of the network's input along each side (default: as in the cfg)")
    ask.add_argument("--score", type=float, default=0.25, help="the score to exceed")
    ask.add_argument("--level", type=int, default=2, help="effort of the build, 0 to 5")
    ask.add_argument("-o", "--output", type=Path, default=Path("boxes.png"))
    a = ask.parse_args()

    names, shapes = preprocessing.read_labels(a.names), {"data": (1, 3, a.size, a.size)} if a.size else None
    how = f"score={a.score},iou=0.45,keep=100"
    engine = pelton.build(a.cfg, weights=a.weights, shapes=shapes, detections=how, level=a.level)

    picture = preprocessing.open_picture(a.picture).convert("RGB")
    _, _, height, width = shape = engine.inputs[0].shape
    prepare = preprocessing.parse(f"{height}x{width} letterbox=127")  # as Darknet's own program has it
    (found,) = engine.run({"data": prepare.array(picture, shape)})["detections"]
    boxes = prepare.boxes_in_picture(found[:, :4] * (width, height, width, height), picture.size)

    draw = ImageDraw.Draw(picture)
    for (left, top, right, bottom), score, label in zip(boxes[::-1], found[::-1, 4], found[::-1, 5]):  # best on top
        if label < 0:
            continue  # fewer boxes than there is room for
        draw.rectangle((left, top, right, bottom), outline=COLORS[int(label) % len(COLORS)], width=3)
        draw.text((left + 5, top + 5), f"{names[int(label)]} {score:.0%}", fill=COLORS[int(label) % len(COLORS)])
        print(f"{names[int(label)]:12} {score:6.1%}  {left:5.0f} {top:5.0f} {right:5.0f} {bottom:5.0f}")
    picture.save(a.output)


if __name__ == "__main__":
    main()
