"""Layers of SSD: prior boxes, and detections beside loops written from Caffe's definition."""

import math

import numpy as np
import pytest
from caffe_models import layer, run, text

import pelton
from pelton.errors import ModelError
from pelton.importers import load
from pelton.ir.evaluate import evaluate
from pelton.ops.detection import suppress

PRIORS, CLASSES = 23, 4


def prior_boxes(height, width, image, p, step=None, offset=0.5):
    """PriorBoxLayer::Forward_cpu."""
    step_h, step_w = step or (image[0] / height, image[1] / width)
    ratios = [1.0]
    for ratio in p.get("aspect_ratio", ()):
        if not any(abs(ratio - r) < 1e-6 for r in ratios):
            ratios += [ratio, 1 / ratio] if p.get("flip", True) else [ratio]
    found = []
    for i in range(height):
        for j in range(width):
            x, y = (j + offset) * step_w, (i + offset) * step_h
            for k, low in enumerate(p["min_size"]):
                sides = [(low, low)]
                if "max_size" in p:
                    sides.append((math.sqrt(low * p["max_size"][k]),) * 2)
                sides += [(low * math.sqrt(r), low / math.sqrt(r)) for r in ratios if abs(r - 1) >= 1e-6]
                for w, h in sides:
                    found += [(x - w / 2) / image[1], (y - h / 2) / image[0]]
                    found += [(x + w / 2) / image[1], (y + h / 2) / image[0]]
    return np.array(found)


@pytest.mark.parametrize(
    "given, params",
    [
        (dict(min_size=[30]), "min_size: 30"),
        (dict(min_size=[30], max_size=[60], aspect_ratio=[2, 3]), "min_size: 30 max_size: 60 aspect_ratio: [2, 3]"),
        (
            dict(min_size=[20, 40], max_size=[30, 50], aspect_ratio=[2, 0.5, 1], flip=False),
            "min_size: [20, 40] max_size: [30, 50] aspect_ratio: [2, 0.5, 1] flip: false",
        ),
        (dict(min_size=[30], aspect_ratio=[2, 2, 0.5]), "min_size: 30 aspect_ratio: [2, 2, 0.5]"),
    ],
)
def test_prior_boxes(given, params):
    net = text(
        {"x": (1, 8, 3, 5), "image": (1, 3, 90, 120)},
        layer("PriorBox", f"prior_box_param {{ {params} }}", ("x", "image")),
    )
    _, _, found = run(net)
    boxes, variance = found["y"][0]
    np.testing.assert_allclose(boxes, prior_boxes(3, 5, (90, 120), given), rtol=1e-5, atol=1e-6)
    assert np.all(variance == np.float32(0.1))


def test_prior_boxes_of_given_steps_and_variances():
    params = "min_size: 30 clip: true step_h: 16 step_w: 20 offset: 0.25 img_size: 64"
    params += " variance: 0.1 variance: 0.2 variance: 0.3 variance: 0.4"
    _, _, found = run(text((1, 8, 3, 5), layer("PriorBox", f"prior_box_param {{ {params} }}")))
    want = prior_boxes(3, 5, (64, 64), dict(min_size=[30]), (16, 20), 0.25).clip(0, 1)
    np.testing.assert_allclose(found["y"][0, 0], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found["y"][0, 1].reshape(-1, 4), np.broadcast_to(np.float32([0.1, 0.2, 0.3, 0.4]), (15, 4))
    )


def decoded(where, priors, variances, kind, encoded):
    v = np.ones(4) if encoded else variances
    if kind == "CORNER":
        return priors + v * where
    sides = priors[2:] - priors[:2]
    if kind == "CORNER_SIZE":
        return priors + v * where * np.concatenate([sides, sides])
    centre = v[:2] * where[:2] * sides + (priors[:2] + priors[2:]) / 2
    half = np.exp(v[2:] * where[2:]) * sides / 2
    return np.concatenate([centre - half, centre + half])


def overlap(a, b):
    """JaccardOverlap"""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if min(sides) <= 0:
        return 0.0
    areas = [0.0 if any(x[2:] < x[:2]) else np.prod(x[2:] - x[:2]) for x in (a, b)]
    return np.prod(sides) / (sum(areas) - np.prod(sides))


def detections(where, scores, priors, variances, p):
    """DetectionOutputLayer::Forward_cpu, as rows by images and labels."""
    rows = []
    for image in range(len(where)):
        picked = []
        for c in range(CLASSES):
            if c == p["background"]:
                continue
            of = where[image, :, c if where.shape[2] > 1 else 0]
            boxes = [decoded(of[i], priors[i], variances[i], p["kind"], p["encoded"]) for i in range(PRIORS)]
            order = sorted(
                (i for i in range(PRIORS) if scores[image, i, c] > p["score"]), key=lambda i: -scores[image, i, c]
            )
            kept, limit = [], p["overlap"]
            for i in order[: p["top_k"]] if p["top_k"] >= 0 else order:
                if all(overlap(boxes[i], boxes[k]) <= limit for k in kept):
                    kept.append(i)
                    if p["eta"] < 1 and limit > 0.5:
                        limit *= p["eta"]
            picked += [(c, scores[image, i, c], *boxes[i]) for i in kept]
        best = sorted(picked, key=lambda row: -row[1])[: p["keep"]] if p["keep"] >= 0 else picked
        rows += [(image, *row) for row in picked if row in best]
    return np.array(rows).reshape(-1, 7)


@pytest.mark.parametrize("kind", ["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
@pytest.mark.parametrize(
    "more",
    [
        dict(),
        dict(shared=False, batch=3),
        dict(top_k=5, keep=-1, background=2),
        dict(eta=0.7, overlap=0.6, background=-1, encoded=True),
        dict(score=0.9999, batch=2),
    ],
    ids=str,
)
def test_detections(kind, more):
    p = dict(
        kind=kind, shared=True, background=0, overlap=0.3, top_k=-1, keep=9, score=0.2, eta=1.0, encoded=False, batch=1
    )
    p |= more
    sets = 1 if p["shared"] else CLASSES
    said = {
        "num_classes": CLASSES,
        "share_location": str(p["shared"]).lower(),
        "background_label_id": p["background"],
        "code_type": kind,
        "confidence_threshold": p["score"],
        "keep_top_k": p["keep"],
        "variance_encoded_in_target": str(p["encoded"]).lower(),
    }
    params = " ".join(f"{name}: {value}" for name, value in said.items())
    params += f" nms_param {{ nms_threshold: {p['overlap']} top_k: {p['top_k']} eta: {p['eta']} }}"
    shapes = {
        "where": (p["batch"], PRIORS * sets * 4),
        "scores": (p["batch"], PRIORS * CLASSES),
        "priors": (1, 2, PRIORS * 4),
    }
    net = text(shapes, layer("DetectionOutput", f"detection_output_param {{ {params} }}", tuple(shapes)))
    rng = np.random.default_rng(len(str(p)))
    where = rng.standard_normal((p["batch"], PRIORS, sets, 4)).astype(np.float32)
    scores = rng.dirichlet([0.5] * CLASSES, (p["batch"], PRIORS)).astype(np.float32)
    centres, halves = rng.random((PRIORS, 2)), rng.uniform(0.05, 0.3, (PRIORS, 2))
    priors = np.concatenate([centres - halves, centres + halves], 1).astype(np.float32)
    variances = np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), (PRIORS, 1))
    feeds = {
        "where": where.reshape(shapes["where"]),
        "scores": scores.reshape(shapes["scores"]),
        "priors": np.stack([priors.ravel(), variances.ravel()])[None],
    }
    _, _, found = run(net, feeds)
    want = detections(where.astype(np.float64), scores, priors.astype(np.float64), variances.astype(np.float64), p)
    rows = found["y"][0, 0]
    assert found["y"].shape[:2] == (1, 1) and len(rows) % p["batch"] == 0
    each = rows.reshape(p["batch"], -1, 7)
    for image, part in enumerate(each):  # what is left out is at the end of each image
        count = int((want[:, 0] == image).sum())
        assert np.all(part[:count, 0] == image) and np.all(part[count:, 0] == -1) and not part[count:, 1:].any()
    np.testing.assert_allclose(rows[rows[:, 0] >= 0], want, rtol=1e-4, atol=1e-5)
    assert len(want) or more.get("score", 0) > 0.99


def test_boxes_that_are_none_and_equal_ones():
    boxes = np.array([[0.5, 0.5, 0.1, 0.1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0.0, 0, 1, 0.5]])
    assert suppress(boxes, 0.4) == [0, 1, 3]
    assert suppress(boxes[:0], 0.4) == []


@pytest.mark.parametrize("eta, host", [(1, 0), (0.9, 1)])
def test_an_engine_detects_by_kernels_or_says_that_it_does_not(tmp_path, eta, host):
    path = tmp_path / "net.prototxt"
    path.write_text(
        text(
            {"data": (1, 3, 32, 32)},
            layer("Convolution", "convolution_param { num_output: 8 kernel_size: 3 stride: 4 }", ("data",), ("c",)),
            layer("Convolution", "convolution_param { num_output: 12 kernel_size: 3 pad: 1 }", ("c",), ("loc",)),
            layer("Convolution", "convolution_param { num_output: 9 kernel_size: 3 pad: 1 }", ("c",), ("conf",)),
            *(
                layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", (b,), (f"{b}_p",))
                + layer("Flatten", "", (f"{b}_p",), (f"{b}_f",))
                for b in ("loc", "conf")
            ),
            layer("PriorBox", "prior_box_param { min_size: 8 aspect_ratio: 2 }", ("c", "data"), ("prior",)),
            layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }", ("conf_f",), ("r",)),
            layer("Softmax", "softmax_param { axis: 2 }", ("r",), ("s",)),
            layer("Flatten", "", ("s",), ("f",)),
            layer(
                "DetectionOutput",
                "detection_output_param { num_classes: 3 keep_top_k: 20 code_type: CENTER_SIZE"
                f" confidence_threshold: 0.4 nms_param {{ top_k: 50 eta: {eta} }} }}",
                ("loc_f", "f", "prior"),
                ("out",),
            ),
        )
    )
    engine = pelton.build(path, shapes={"data": "1..1..2x3x32x32"}, level=0, threads=1)
    assert sum(bool(step.host) for step in engine.steps) == host
    for batch in (1, 2):
        x = np.random.default_rng(0).standard_normal((batch, 3, 32, 32)).astype(np.float32)
        found = engine.run({"data": x})["out"]
        exact = evaluate(load(path, {"data": x.shape}).graph, {"data": x})["out"]
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)
        assert found.shape == (1, 1, 20 * batch, 7)
        of = found[0, 0, found[0, 0, :, 0] >= 0]
        assert len(of) and set(of[:, 0]) == set(range(batch)) and np.all(of[:, 2] > 0.4)


@pytest.mark.parametrize(
    "params, reason",
    [
        ("", "needs a min_size above 0"),
        ("min_size: 0", "needs a min_size above 0"),
        ("min_size: 3 max_size: 2", "max_size above its min_size"),
        ("min_size: 3 max_size: 4 max_size: 5", "max_size as often"),
        ("min_size: 3 aspect_ratio: 0", "aspect ratios above 0"),
        ("min_size: 3 variance: 1 variance: 2", "a variance above 0, or four"),
        ("min_size: 3 step: 3 step_h: 2", "either step or both"),
        ("min_size: 3 img_h: 3", "either img_size or both"),
    ],
)
def test_prior_boxes_that_are_none(params, reason):
    net = text({"x": (1, 8, 3, 5), "i": (1, 3, 9, 9)}, layer("PriorBox", f"prior_box_param {{ {params} }}", ("x", "i")))
    with pytest.raises(ModelError, match=reason):
        load(net.encode())


def test_detections_of_wrong_sizes():
    for shapes, reason in (
        (((1, 8), (1, 6), (1, 2, 4)), "cannot be reshaped"),
        (((1, 4), (1, 5), (1, 2, 4)), "cannot be reshaped"),
        (((1, 4), (1, 3), (1, 8)), r"needs prior boxes \[1, 2"),
        (((1, 4), (1, 3)), "needs the operands where, scores, priors, got 2"),
    ):
        given = dict(zip("abc", shapes))
        net = text(given, layer("DetectionOutput", "detection_output_param { num_classes: 3 }", tuple(given)))
        with pytest.raises(ModelError, match=reason):
            load(net.encode())
