"""Darknet networks beside OpenCV's reader, with random weights: outputs of every layer and network."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import pelton

sys.path.insert(0, str(Path(__file__).parents[1]))
from darknet_files import sections, written  # noqa: E402

cv2 = pytest.importorskip("cv2", reason="needs opencv-python-headless")
DATA = Path(__file__).parents[3] / "shared" / "data" / "darknet"
CLOSE = 1e-4  # of the largest element


def peer(cfg, weights, x, outputs=None):
    net = cv2.dnn.readNetFromDarknet(str(cfg), str(weights))
    names = outputs or net.getUnconnectedOutLayersNames()
    net.setInput(x)
    return dict(zip(names, net.forward(names)))


def agree(ours, theirs, where):
    assert ours.size == theirs.size, where
    far = np.abs(ours.reshape(theirs.shape) - theirs).max() / np.abs(theirs).max()
    assert far < CLOSE, f"{where}: {far:.1e}"


def unselected(text):
    """A configuration whose yolo layers keep all boxes in OpenCV, too."""
    return re.sub(r"\[(yolo|region)\]", r"[\1]\nthresh=0\nnms_threshold=0", text)


def without_steps(text):
    """The same network for OpenCV, which has no shortcuts from larger images: every second pixel is a pool."""
    parts, strides = re.split(r"(?=^\[)", text, flags=re.M), [1]
    for i, part in enumerate(parts):
        strides.append(int(found[1]) if (found := re.search(r"^stride=(\d)", part, re.M)) else 1)
        if part.startswith("[shortcut]") and max(strides[-4:]) > 1:
            pooled = "[route]\nlayers=-4\n[maxpool]\nsize=1\nstride=2\n[route]\nlayers=-3\n"
            parts[i] = pooled + part.replace("from=-4", "from=-2")
    return "".join(parts)


@pytest.mark.parametrize("name", ["yolov2", "yolov2-voc", "yolov2-tiny-voc", "yolov3-tiny", "resnet50"])
@pytest.mark.parametrize("size", [None, (320, 320)])
def test_networks_that_others_wrote(tmp_path, name, size):
    if not (DATA / f"{name}.cfg").exists():
        pytest.skip(f"needs {name}.cfg in {DATA}")
    text = unselected((DATA / f"{name}.cfg").read_text())
    cfg, weights = written(tmp_path, text, seed=len(name))
    options = sections(text)[0][1]
    height, width = size or (int(options["height"]), int(options["width"]))
    x = np.random.default_rng(1).random((1, 3, height, width), np.float32)
    engine = pelton.build(cfg, weights=weights, shapes={"data": x.shape}, level=0, threads=2)
    (tmp_path / "peer.cfg").write_text(without_steps(text))
    ours, theirs = list(engine.run({"data": x}).values()), list(peer(tmp_path / "peer.cfg", weights, x).values())
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        if "[region]" in text:
            agree_where_selected(a, b.reshape(a.shape), name)
        else:
            agree(a, b, name)


def agree_where_selected(ours, theirs, where):
    """Scores as far as OpenCV kept them: its region layers always suppress boxes."""
    agree(ours[..., :5], theirs[..., :5], where)
    kept = theirs[..., 5:] > 0
    assert kept.any()
    agree(ours[..., 5:][kept], theirs[..., 5:][kept], where)


def test_an_engine_selects_the_boxes_that_opencv_selects(tmp_path):
    """Its region layer suppresses at 0.4, and leaves the scores of what it keeps."""
    if not (DATA / "yolov2-voc.cfg").exists():
        pytest.skip(f"needs yolov2-voc.cfg in {DATA}")
    text = re.sub(r"thresh *= *\.6", "thresh=0.3", (DATA / "yolov2-voc.cfg").read_text())
    cfg, weights = written(tmp_path, text, seed=3)
    x = np.random.default_rng(4).random((1, 3, 224, 224), np.float32)
    options = dict(shapes={"data": x.shape}, level=0, threads=2, detections="score=0.3,iou=0.4,keep=1000")
    (ours,) = pelton.build(cfg, weights=weights, **options).run({"data": x})["detections"]
    (rows,) = peer(cfg, weights, x).values()
    places, labels = np.nonzero(rows[:, 5:])
    boxes, scores = rows[places, :4], rows[places, 5 + labels]
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
    theirs = np.concatenate([corners, scores[:, None], labels[:, None]], 1)[np.argsort(-scores, kind="stable")]
    assert 20 < len(theirs) < 1000 and (ours[len(theirs) :, 5] == -1).all()
    agree(ours[: len(theirs)], theirs, "detections")


def conv(filters, size=1, activation="linear", **options):
    more = "".join(f"{k}={v}\n" for k, v in options.items())
    return f"[convolutional]\nfilters={filters}\nsize={size}\nactivation={activation}\n{more}"


YOLO = "[yolo]\nmask=1,0\nanchors=10,14, 23,27, 37,58\nclasses=3\nnum=3\n"
SMALL = {
    "groups": conv(8, 3, "leaky", pad=1, groups=1) + conv(12, 3, "mish", pad=1, groups=4, batch_normalize=1),
    "padding": conv(5, 3, "swish", padding=2, stride=2) + conv(7, 2, "logistic", padding=1),
    "pools": conv(5, 3, pad=1)
    + "".join(f"[maxpool]\nsize={n}\nstride={k}\n" for n, k in ((2, 1), (3, 1), (3, 2), (2, 2)))
    + "[maxpool]\nsize=3\nstride=1\npadding=1\n",
    "routes": conv(8, 3, pad=1)
    + "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"
    + conv(6, 3, pad=1)
    + "[route]\nlayers=-1,0,-2\n",
    "shortcuts": conv(8, 3, pad=1)
    + conv(5, 3, pad=1)
    + "[shortcut]\nfrom=0\nactivation=leaky\n"
    + conv(9)
    + "[shortcut]\nfrom=-2\nactivation=linear\n",
    "upsample": conv(4, 3, pad=1) + "[upsample]\nstride=2\n[upsample]\nstride=3\n",
    "reorg": conv(16, 3, pad=1) + "[reorg]\nstride=2\n" + conv(9),
    "scales": conv(6, 3, pad=1) + "[avgpool]\n" + conv(6, activation="logistic") + "[scale_channels]\nfrom=0\n",
    "sam": conv(6, 3, pad=1) + conv(6, activation="logistic") + "[sam]\nfrom=0\n",
    "yolo": conv(16, 3, pad=1) + YOLO,
    "scaled": conv(16, 3, pad=1) + YOLO + "scale_x_y=1.2\n",
    "new coordinates": conv(16, 3, "logistic", pad=1) + YOLO + "scale_x_y=2.0\nnew_coords=1\n",
    "region": conv(16, 3, pad=1) + "[region]\nanchors=1,2,3,1.5\nclasses=3\ncoords=4\nnum=2\nsoftmax=1\n",
}


@pytest.mark.parametrize("name", SMALL)
def test_layers(tmp_path, name):
    text = unselected("[net]\nwidth=24\nheight=24\nchannels=3\n" + SMALL[name])
    cfg, weights = written(tmp_path, text)
    x = np.random.default_rng(2).random((1, 3, 24, 24), np.float32)
    (ours,) = pelton.build(cfg, level=0, threads=1).run({"data": x}).values()
    try:
        (theirs,) = peer(cfg, weights, x).values()
    except cv2.error as e:
        pytest.skip(f"OpenCV cannot: {e}")
    if name == "region":
        agree_where_selected(ours, theirs.reshape(ours.shape), name)
    else:
        agree(ours, theirs, name)
