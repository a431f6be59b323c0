"""Box selection at the end of networks, by an option: engines beside loops."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton import importers

NET = b"""[net]
width=32
height=32
channels=3
[convolutional]
filters=16
size=3
stride=4
pad=1
activation=linear
[yolo]
anchors=4,5, 9,8
num=2
classes=3
[route]
layers=0
[maxpool]
size=2
stride=2
[yolo]
anchors=14,15, 20,9
num=2
classes=3
"""


def intersection_over_union(a, b):
    w, h = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    common = max(w, 0) * max(h, 0)
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


def selected(boxes, score, iou, keep):
    """What users write themselves behind a network: one list of boxes for each class, then the best of all."""
    found = []
    for c in range(boxes.shape[1] - 5):
        taken = []
        for row in sorted(boxes, key=lambda row: -row[5 + c]):
            box = np.concatenate([row[:2] - row[2:4] / 2, row[:2] + row[2:4] / 2])
            if row[5 + c] > score and all(intersection_over_union(box, other) <= iou for other in taken):
                taken.append(box)
                found.append([*box, row[5 + c], c])
    found = sorted(found, key=lambda row: -row[4])[:keep]
    return np.array(found + [[0, 0, 0, 0, 0, -1]] * (keep - len(found)))


@pytest.mark.parametrize(
    "how, given",
    [("score=0.9,iou=0.3,keep=70", (0.9, 0.3, 70)), ("keep=7", (0.25, 0.45, 7)), (True, (0.25, 0.45, 100))],
)
def test_an_engine_selects_what_loops_select(how, given):
    x = np.random.default_rng(0).random((2, 3, 32, 32), np.float32) * 4
    plain = pelton.build(NET, level=0, threads=2)
    boxes = np.concatenate(list(plain.run({"data": x}).values()), 1).astype(np.float64)
    assert boxes.shape == (2, 160, 8)
    engine = pelton.build(NET, level=0, threads=2, detections=how)
    assert [(o.name, tuple(o.shape)[1:]) for o in engine.outputs] == [("detections", (given[2], 6))]
    found = engine.run({"data": x})["detections"]
    want = np.stack([selected(b, *given) for b in boxes])
    filled = (want[..., 5] >= 0).sum(1)
    assert filled.min() > 3 and (filled.max() < given[2]) == (given[0] == 0.9)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    assert not plain.meta.get("host_steps") and not engine.meta.get("host_steps")


def test_what_cannot_be_selected_is_said():
    for how, message in (
        ("scores=1", r"detections knows score, iou, keep.*did you mean 'score'"),
        ("score=high", "got 'score=high'"),
        ("iou=2", "are from 0 to 1"),
        ("keep=0", "keep of detections is an integer from 1"),
        (3, "detections is True or a text"),
    ):
        with pytest.raises(pelton.InputError, match=message):
            pelton.build(NET, level=0, detections=how)
    with pytest.raises(pelton.InputError, match="none were found in this model"):
        pelton.build(NET, level=0, detections=True, outputs=("convolutional_0",))
    with pytest.raises(pelton.ModelError, match="with the same classes.*yolo_1 8, yolo_5 21"):
        other = NET.replace(b"20,9\nnum=2\nclasses=3", b"20,9\nnum=2\nclasses=16").replace(
            b"[yolo]\nanchors=14", b"[convolutional]\nfilters=42\n[yolo]\nanchors=14"
        )
        pelton.build(other, level=0, detections=True)


def test_networks_say_themselves_what_their_boxes_are():
    net = pelton.Network()
    net.output(net.input("x", "f32[1, 20, 7]"), "raw")
    net.output(net.sigmoid(net.tensor("x")), "boxes")
    net.box_outputs.append("boxes")
    found = importers.select_detections(importers.load(net), "keep=3")
    assert [v.name for v in found.graph.outputs] == ["detections", "raw"]
    assert found.graph.outputs[0].type.shape == (1, 3, 6)


def test_the_example_draws_boxes(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    pixels = np.random.default_rng(2).integers(0, 256, (60, 80, 3), np.uint8)
    pillow.fromarray(pixels).save(tmp_path / "picture.png")
    (tmp_path / "net.cfg").write_bytes(NET)
    (tmp_path / "names").write_text("one\ntwo\nthree\n")
    example = Path(__file__).parents[1] / "examples" / "darknet.py"
    command = [sys.executable, str(example), "picture.png", "--cfg", "net.cfg", "--names", "names", "--level", "0"]
    done = subprocess.run([*command, "--size", "64"], cwd=tmp_path, capture_output=True, text=True, check=True)
    drawn = np.asarray(pillow.open(tmp_path / "boxes.png"))
    assert drawn.shape == pixels.shape and (drawn != pixels).any()
    assert all(line.split()[0] in ("one", "two", "three") for line in done.stdout.splitlines())
    assert 0 < len(done.stdout.splitlines()) <= 100
