"""Cases of TFLite operators that move and pick elements."""

from __future__ import annotations

import numpy as np
from tflite_cases import IMAGE, F, Case, ints, normal


def shapes():
    yield Case("RESHAPE", (IMAGE, ints(2, -1, 5)), lambda x, _: x.reshape(2, -1, 5))
    yield Case(
        "RESHAPE", (IMAGE,), lambda x: x.reshape(2, -1), "ReshapeOptions", dict(new_shape=[2, -1]), label="option"
    )
    yield Case("SQUEEZE", ((2, 1, 3, 1),), lambda x: x[:, 0], "SqueezeOptions", dict(axes=[-3]))
    yield Case("SQUEEZE", ((2, 1, 3, 1),), lambda x: x[:, 0, :, 0], "SqueezeOptions", label="all")
    yield Case("EXPAND_DIMS", ((2, 3), np.asarray(-2, np.int32)), lambda x, _: x[:, None])
    yield Case("TRANSPOSE", (IMAGE, ints(3, 0, 2, 1)), lambda x, p: x.transpose(p))
    for axis in (1, -1):
        yield Case(
            "CONCATENATION",
            (IMAGE, normal(*IMAGE), IMAGE),
            lambda *xs, axis=axis: np.concatenate(xs, axis),
            "ConcatenationOptions",
            dict(axis=axis),
            label=str(axis),
        )
    axis = np.asarray(2, np.int32)
    yield Case(
        "SPLIT", (axis, IMAGE), lambda a, x: tuple(np.split(x, 3, 2)), "SplitOptions", dict(splits=3), ("f32",) * 3
    )
    yield Case(
        "SPLIT_V",
        (IMAGE, ints(1, -1), axis),
        lambda x, *_: (x[:, :, :1], x[:, :, 1:]),
        "SplitVOptions",
        dict(splits=2),
        ("f32",) * 2,
    )
    yield Case("PACK", ((3, 4), (3, 4)), lambda *xs: np.stack(xs, 1), "PackOptions", dict(count=2, axis=1))
    yield Case(
        "UNPACK", ((3, 2, 4),), lambda x: (x[:, 0], x[:, 1]), "UnpackOptions", dict(count=2, axis=1), ("f32",) * 2
    )
    edges = np.asarray([[0, 0], [1, 2], [0, 3], [0, 1]], np.int32)
    yield Case("PAD", (IMAGE, edges), lambda x, e: np.pad(x, e))
    yield Case("PADV2", (IMAGE, edges, np.asarray(2.5, F)), lambda x, e, v: np.pad(x, e, constant_values=v))
    for mode, name in ((0, "reflect"), (1, "symmetric")):
        yield Case(
            "MIRROR_PAD",
            (IMAGE, edges),
            lambda x, e, name=name: np.pad(x, e, name),
            "MirrorPadOptions",
            dict(mode=mode),
            label=name,
        )
    yield Case("SLICE", (IMAGE, ints(0, 1, 2, 0), ints(-1, 3, 2, 4)), lambda x, *_: x[:, 1:4, 2:4, :4])
    masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 4}

    def cut(begin, end, steps, masks, f, label):
        return Case(
            "STRIDED_SLICE",
            (IMAGE, ints(*begin), ints(*end), ints(*steps)),
            f,
            "StridedSliceOptions",
            masks,
            label=label,
        )

    yield cut((0, -5, 3), (0, 6, 4), (1, 2, 1), masks, lambda x, *_: x[:, -5:6:2, 3], "shrunk")
    yield cut((0, 5), (2, 1), (1, -2), {}, lambda x, *_: x[0:2, 5:1:-2], "backwards")
    yield cut((0, 5), (2, 0), (1, -1), {"end_mask": 2}, lambda x, *_: x[0:2, 5::-1], "to the front")
    yield cut(
        (0, 0, 1),
        (0, 0, 3),
        (1, 1, 1),
        {"ellipsis_mask": 1, "new_axis_mask": 2},
        lambda x, *_: x[..., None, 1:3],
        "ellipsis",
    )
    yield Case("REVERSE_V2", (IMAGE, ints(2)), lambda x, _: x[:, :, ::-1])
    yield Case("TILE", ((2, 3), ints(2, 3)), np.tile)
    yield Case("BROADCAST_TO", ((2, 1, 3), ints(2, 4, 3)), lambda x, s: np.broadcast_to(x, s), options=dict(version=2))
    yield Case("SHAPE", (IMAGE,), lambda x: np.asarray(x.shape, np.int32), "ShapeOptions", dict(out_type=2), ("i32",))
    yield Case("RANK", (IMAGE,), lambda x: np.asarray(4, np.int32), outputs=("i32",))


def picks():
    table = normal(7, 3)
    rows = ints(4, 0, 6)
    yield Case("GATHER", (IMAGE, ints(3, 1)), lambda x, i: np.take(x, i, 1), "GatherOptions", dict(axis=1))
    batched = np.asarray([[3, 1], [0, 5]], np.int32)
    yield Case(
        "GATHER",
        (IMAGE, batched),
        lambda x, i: np.stack([np.take(a, j, 1) for a, j in zip(x, i)]),
        "GatherOptions",
        dict(axis=2, batch_dims=1),
        label="batched",
    )
    yield Case(
        "EMBEDDING_LOOKUP",
        (
            rows,
            table,
        ),
        lambda i, t: t[i],
        label="table",
    )
    places = np.asarray([[1, 2], [0, 5]], np.int32)
    yield Case("GATHER_ND", (IMAGE, places), lambda x, i: x[i[:, 0], i[:, 1]] if x.shape[0] > 1 else x)
    hot = (np.asarray(4, np.int32), np.asarray(2, F), np.asarray(-1, F))
    yield Case(
        "ONE_HOT",
        (ints(1, 3, 9), *hot),
        lambda i, d, a, b: np.where(i[:, None] == np.arange(4), a, b),
        "OneHotOptions",
        dict(axis=-1),
    )

    def put(x, u, at):
        x = x.copy()
        x[1:3, 2:4] = u
        return x

    yield Case("DYNAMIC_UPDATE_SLICE", ((3, 4), (2, 2), ints(1, 7)), put)
    lengths = ints(3, 6)
    yield Case(
        "REVERSE_SEQUENCE",
        ((2, 6, 3), lengths),
        lambda x, _: np.stack([np.concatenate([a[:n][::-1], a[n:]]) for a, n in zip(x, lengths)]),
        "ReverseSequenceOptions",
        dict(seq_dim=1, batch_dim=0),
    )
    yield Case("SPARSE_TO_DENSE", (ints(3, 1), ints(5), (2,), np.asarray(7, F)), lambda p, s, v, d: dense(p, s, v, d))
    yield Case(
        "SPARSE_TO_DENSE",
        (np.asarray([[0, 3], [2, 1]], np.int32), ints(3, 4), (2,), np.asarray(-1, F)),
        lambda p, s, v, d: dense(p, s, v, d),
        label="matrix",
    )
    yield Case("BROADCAST_ARGS", (ints(4, 1, 3), ints(5, 1)), lambda a, b: ints(4, 5, 3), outputs=("i32",))


def dense(places, shape, values, default):
    found = np.full(tuple(shape), default)
    found[tuple(places.reshape(len(values), -1).T)] = values
    return found


def diagonals():
    yield Case("MATRIX_DIAG", ((2, 5),), lambda x: np.stack([np.diag(a) for a in x]))
    for shape in ((2, 3, 5), (2, 5, 3), (4, 4)):

        def put(x, diagonal):
            x, at = x.copy(), np.arange(min(x.shape[-2:]))
            x[..., at, at] = diagonal
            return x

        yield Case("MATRIX_SET_DIAG", (shape, (*shape[:-2], min(shape[-2:]))), put)


def segments():
    groups, scattered = ints(0, 0, 1, 2, 2), ints(3, 0, -1, 3, 0)
    lowest, highest = np.finfo(F).min, np.finfo(F).max
    joins = {"SUM": (np.add, 0), "PROD": (np.multiply, 1), "MAX": (np.maximum, lowest), "MIN": (np.minimum, highest)}

    def joined(x, of, count, f, begin):
        found = np.full((count, *x.shape[1:]), begin, F)
        f.at(found, of[of >= 0], x[of >= 0])
        return found

    yield Case("SEGMENT_SUM", ((5, 3), groups), lambda x, of: joined(x, of, 3, np.add, 0))
    for name, (f, begin) in joins.items():
        yield Case(
            f"UNSORTED_SEGMENT_{name}",
            ((5, 3), scattered, np.asarray(5, np.int32)),
            lambda x, of, count, f=f, begin=begin: joined(x, of, int(count), f, begin),
        )
