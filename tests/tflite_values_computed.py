"""Reductions, images and picks among the cases of `tflite_values`."""

from __future__ import annotations

import numpy as np
from tflite_cases import Q, F, ints, normal, resized, transposed
from tflite_values import I32, IMAGE, Free, Values, bytes_of, fills, moves, number


def reductions():
    y = Free("f32", (2, 3, 4))

    def of(f, keeps=False):
        return lambda x, a: f(x, axis=tuple(int(i) % 3 for i in np.atleast_1d(a)), keepdims=keeps)

    for op, f in (("SUM", np.sum), ("MEAN", np.mean), ("REDUCE_MAX", np.max), ("REDUCE_MIN", np.min)):
        for keeps in (False, True):
            yield Values(
                op,
                (y, Free("i32", (2,))),
                of(f, keeps),
                ((normal(2, 3, 4), ints(0, 2)), (normal(2, 3, 4), ints(-1, 1))),
                "ReducerOptions",
                dict(keep_dims=keeps),
                outputs=(("f32", 3 if keeps else 1),),
                wrong=(((normal(2, 3, 4), ints(0, 3)), f"{op} needs an axis between -3 and 2, got 3"),),
                label=f"keeps {keeps}",
            )
    yield Values(
        "REDUCE_PROD",
        (y, Free("i32", (1,))),
        of(np.prod),
        ((normal(2, 3, 4), ints(0)), (normal(2, 3, 4), ints(2))),
        "ReducerOptions",
    )
    image = Q((1, 4, 3, 5), "i8", 0.05, 3)
    yield Values(
        "MEAN",
        (image, Free("i32", (2,))),
        lambda x, a: x.mean(tuple(a)),
        ((bytes_of(1, 4, 3, 5), ints(1, 2)), (bytes_of(1, 4, 3, 5), ints(2, 3))),
        "ReducerOptions",
        outputs=(Q((1, 5), "i8", 0.03, -2),),
        label="quantized",
    )
    for op, f in (("REDUCE_ANY", np.any), ("REDUCE_ALL", np.all)):
        yield Values(
            op,
            (Free("bool", (2, 3, 4)), Free("i32", (1,))),
            of(f),
            tuple((normal(2, 3, 4) > 0.3, ints(a)) for a in (0, 1)),
            "ReducerOptions",
            outputs=(("bool", 2),),
        )
    yield Values(
        "ARG_MAX",
        (y, Free("i32", ())),
        lambda x, a: x.argmax(int(a)),
        ((normal(2, 3, 4), number(0)), (normal(2, 3, 4), number(-1))),
        "ArgMaxOptions",
        dict(output_type=2),
        outputs=(("i32", 2),),
    )
    yield Values(
        "CUMSUM",
        (y, Free("i32", ())),
        lambda x, a: np.cumsum(x, int(a)),
        ((normal(2, 3, 4), number(0)), (normal(2, 3, 4), number(2))),
        "CumsumOptions",
        outputs=(("f32", 3),),
        wrong=(((normal(2, 3, 4), number(4)), "CUMSUM needs an axis between -3 and 2, got 4"),),
    )
    groups = (ints(0, 0, 1, 2, 2), ints(0, 1, 1, 1, 2))

    def joined(x, of, count):
        found = np.zeros((count, x.shape[1]), F)
        np.add.at(found, of[of >= 0], x[of >= 0])
        return found

    yield Values(
        "SEGMENT_SUM",
        (Free("f32", (5, 3)), Free("i32", (5,))),
        lambda x, of: joined(x, of, of.max() + 1),
        tuple((normal(5, 3), g) for g in groups),
    )
    yield Values(
        "UNSORTED_SEGMENT_SUM",
        (Free("f32", (5, 3)), Free("i32", (5,)), Free("i32", ())),
        lambda x, of, count: joined(x, of, int(count)),
        tuple((normal(5, 3), g, number(c)) for g, c in zip(groups, (3, 6))),
    )


def images():
    image = Free("f32", IMAGE)
    for op, linear in (("RESIZE_BILINEAR", True), ("RESIZE_NEAREST_NEIGHBOR", False)):
        for flags in ({}, {"align_corners": True}, {"half_pixel": True}):
            yield Values(
                op,
                (image, Free("i32", (2,))),
                resized_to(linear, **flags),
                tuple((normal(*IMAGE), ints(*s)) for s in ((10, 8), (3, 7), (5, 4))),
                "ResizeBilinearOptions" if linear else "ResizeNearestNeighborOptions",
                flags,
                outputs=(("f32", 4),),
                wrong=(((normal(*IMAGE), ints(0, 3)), op),),
                label=next(iter(flags), "plain"),
            )
    block, edges = Free("i32", (2,)), Free("i32", (2, 2))
    yield Values(
        "SPACE_TO_BATCH_ND",
        (image, ints(2, 2), edges),
        lambda x, b, e: to_batch(x, b, e),
        tuple((normal(*IMAGE), np.asarray(e, I32)) for e in ([[1, 0], [0, 0]], [[0, 3], [1, 1]])),
        outputs=(("f32", 4),),
        label="edges",
    )
    yield Values(
        "SPACE_TO_BATCH_ND",
        (image, block, edges),
        lambda x, b, e: to_batch(x, b, e),
        (
            (normal(*IMAGE), ints(2, 2), np.asarray([[1, 0], [0, 0]], I32)),
            (normal(*IMAGE), ints(5, 1), np.asarray([[0, 0], [1, 1]], I32)),
        ),
        outputs=(("f32", 4),),
        label="block",
    )
    yield Values(
        "BATCH_TO_SPACE_ND",
        (Free("f32", (4, 3, 2, 3)), ints(2, 2), edges),
        from_batch,
        tuple((normal(4, 3, 2, 3), np.asarray(e, I32)) for e in ([[1, 0], [0, 0]], [[0, 2], [1, 1]])),
        outputs=(("f32", 4),),
    )
    weights = normal(2, 3, 3, 3)
    for padding in (0, 1):
        sizes = ((1, 10, 8, 2), (1, 9, 7, 2)) if padding == 0 else ((1, 11, 9, 2), (1, 12, 10, 2))
        yield Values(
            "TRANSPOSE_CONV",
            (Free("i32", (4,)), weights, image),
            lambda s, w, x, padding=padding: transposed(tuple(s), (2, 2), padding)(s, w, x),
            tuple((ints(*s), normal(*IMAGE)) for s in sizes),
            "TransposeConvOptions",
            dict(padding=padding, stride_h=2, stride_w=2),
            outputs=(("f32", 4),),
            label=str(padding),
        )


def resized_to(linear, align_corners=False, half_pixel=False):
    return lambda x, s: resized(tuple(int(d) for d in s), linear, align_corners, half_pixel)(x, s)


def to_batch(x, b, e):
    x = np.pad(x, [(0, 0), *map(tuple, e), (0, 0)])
    n, h, w, c = x.shape
    y = x.reshape(n, h // b[0], b[0], w // b[1], b[1], c).transpose(2, 4, 0, 1, 3, 5)
    return y.reshape(-1, h // b[0], w // b[1], c)


def from_batch(x, b, e):
    n, h, w, c = x.shape
    y = x.reshape(b[0], b[1], -1, h, w, c).transpose(2, 3, 0, 4, 1, 5).reshape(-1, h * b[0], w * b[1], c)
    return y[:, e[0, 0] : y.shape[1] - e[0, 1], e[1, 0] : y.shape[2] - e[1, 1]]


def picks():
    def put(x, u, at):
        x, at = x.copy(), [min(max(a, 0), d - n) for a, d, n in zip(at, x.shape, u.shape)]
        x[tuple(slice(a, a + n) for a, n in zip(at, u.shape))] = u
        return x

    yield Values(
        "DYNAMIC_UPDATE_SLICE",
        (Free("f32", (3, 4)), Free("f32", (2, 2)), Free("i32", (2,))),
        put,
        tuple((normal(3, 4), normal(2, 2), ints(*at)) for at in ((0, 1), (1, 7), (-1, 2))),
    )
    yield Values(
        "WHERE",
        (Free("bool", (3, 4)),),
        lambda x: np.argwhere(x).astype(np.int64),
        tuple((normal(3, 4) > at,) for at in (0, 1, 9)),
        outputs=(("i64", 2),),
    )
    yield Values(
        "UNIQUE",
        (Free("i32", (6,)),),
        lambda x: (
            np.asarray(list(dict.fromkeys(x.tolist())), I32),
            np.asarray([list(dict.fromkeys(x.tolist())).index(v) for v in x.tolist()], I32),
        ),
        ((ints(3, 1, 3, 2, 1, 9),), (ints(5, 5, 5, 5, 5, 5),)),
        "UniqueOptions",
        dict(idx_out_type=2),
        outputs=(("i32", 1), ("i32", 1)),
    )
    yield Values(
        "GATHER",
        (Free("f32", (-1, 5, 3)), Free("i32", (-1, 2))),
        lambda x, i: np.stack([a[j] for a, j in zip(x, i)]),
        tuple((normal(n, 5, 3), ints(*range(2 * n)).reshape(n, 2) % 5) for n in (2, 4)),
        "GatherOptions",
        dict(axis=1, batch_dims=1),
        outputs=(("f32", 3),),
        label="dynamic batch",
    )
    boxes = np.asarray([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [0, 2.05, 1, 3.05]], F)

    def suppressed(b, s, keep, overlap, least):
        order, kept = [i for i in np.argsort(-s) if s[i] > least], []
        for i in order:
            if len(kept) < keep and all(iou(b[i], b[j]) <= overlap for j in kept):
                kept.append(i)
        return np.asarray([*kept, *[0] * (int(keep) - len(kept))], I32), number(len(kept))

    yield Values(
        "NON_MAX_SUPPRESSION_V4",
        (Free("f32", (4, 4)), Free("f32", (4,)), Free("i32", ()), Free("f32", ()), Free("f32", ())),
        suppressed,
        (
            (boxes, np.asarray([0.9, 0.8, 0.7, 0.6], F), number(3), number(0.5, F), number(0, F)),
            (boxes, np.asarray([0.1, 0.8, 0.7, 0.9], F), number(2), number(0.99, F), number(0.3, F)),
        ),
        outputs=(("i32", 1), ("i32", 0)),
    )


def iou(a, b):
    common = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


VALUES = [*moves(), *fills(), *reductions(), *images(), *picks()]
