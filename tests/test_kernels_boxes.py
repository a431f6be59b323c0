"""Box suppression to a fixed number: kernels, and the reference beside cases worked out by hand."""

import numpy as np
import pytest
from kernel_harness import Case, check, declare, named, program, varying, walk

from pelton.ops import get


def boxes(batch, n, seed=0):
    """Boxes that overlap a lot."""
    rng = np.random.default_rng(seed)
    center, size = rng.uniform(0, 1, (batch, n, 2)), rng.uniform(-0.05, 0.4, (batch, n, 2))
    return np.concatenate([center - size / 2, center + size / 2], 2)


def scores(batch, classes, n, ties=False):
    drawn = np.random.default_rng(1).random((batch, classes, n))
    return np.round(drawn * 8) / 8 if ties else drawn


def case(batch, n, classes, orders=None, ties=False, **attrs):
    op = ("y", "multiclass_nms", "x s", dict(keep=10, **attrs) if "keep" not in attrs else attrs)
    arrays = dict(x=boxes(batch, n), s=scores(batch, classes, n, ties))
    name = named(batch, n, classes, *attrs.items(), *([orders] if orders else []), *(["ties"] if ties else []))
    return Case(name, program(op, x=f"f32[{batch}, {n}, 4]", s=f"f32[{batch}, {classes}, {n}]"), orders or {}, arrays)


declare(
    "nms",
    case(2, 40, 3, score=0.5, overlap=0.3),
    case(2, 40, 3, score=0.5, overlap=0.3, ties=True),
    case(3, 50, 7, dict(x=(0, 2, 1), s=(2, 1, 0), y=(2, 0, 1)), overlap=0.2, background=0, top_k=5),
    case(1, 300, 2, overlap=0.1, keep=200, score=-1.0),
    case(2, 21, 3, overlap=0.4, keep=20, score=-np.inf),
    case(2, 33, 5, overlap=0.3, per_class=False),
    case(2, 33, 5, ties=True, overlap=0.1, per_class=False),
    case(2, 33, 5, overlap=0.3, per_class=False, background=3, score=0.9, keep=1),
    case(1, 1, 1, keep=4),
    case(1, 20, 1, background=0),
    varying("%x: f32[n, m, 4], %s: f32[n, m, m]", "%y = multiclass_nms(%x, %s) {keep=5, overlap=0.3}"),
)


@pytest.mark.parametrize("template, case", walk("nms"))
def test_against_the_reference(template, case):
    check(template, case)


def reference(corners, by_class, **attrs):
    return get("multiclass_nms").reference(np.array([corners], float), np.array([by_class], float), **attrs)[0]


SQUARES = [(0, 0, 2, 2), (0, 0, 2, 1), (5, 5, 6, 6), (0, 0, 2, 2)]  # the second has half of the first


def test_a_box_is_dropped_for_more_than_the_overlap():
    given = [[0.9, 0.8, 0.7, 0.6]]
    rows = [(*box, score, 0) for box, score in zip(SQUARES, given[0])]
    empty = (0, 0, 0, 0, 0, -1)
    assert reference(SQUARES, given, keep=4, overlap=0.5).tolist() == [*map(list, rows[:3]), list(empty)]
    assert reference(SQUARES, given, keep=4, overlap=0.49).tolist() == [
        list(r) for r in (rows[0], rows[2], empty, empty)
    ]
    assert reference(SQUARES, given, keep=2, overlap=1.0).tolist() == [list(r) for r in rows[:2]]
    assert reference(SQUARES, given, keep=1, score=0.9, overlap=0.5).tolist() == [list(empty)]
    assert reference(SQUARES, given, keep=4, top_k=2, overlap=0.4)[:, 4].tolist() == [0.9, 0, 0, 0]


def test_classes_suppress_each_other_where_asked():
    given = [[0.9, 0.0, 0.0, 0.3], [0.0, 0.0, 0.2, 0.8], [1.0, 1.0, 1.0, 1.0]]
    found = reference(SQUARES, given, keep=4, background=2)
    assert found[:, 4:].tolist() == [[0.9, 0], [0.8, 1], [0.2, 1], [0, -1]]
    found = reference(SQUARES, given, keep=4, background=2, per_class=False)
    assert found[:, 4:].tolist() == [[0.9, 0], [0.2, 1], [0, -1], [0, -1]]


def test_scores_that_are_no_numbers_are_below_all():
    found = reference(SQUARES, [[np.nan, 0.5, np.nan, 0.25]], keep=2, overlap=0.6)
    assert found[:, 4].tolist() == [0.5, 0.25]
