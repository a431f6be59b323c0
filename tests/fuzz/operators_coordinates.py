"""Operators of random graphs with random attributes: sampling, moves and indices."""

from __future__ import annotations

import numpy as np

from .proposals import (
    INTEGERS,
    NUMBERS,
    Graph,
    Proposed,
    dtype_of,
    int64s,
    proposes,
    shape_of,
    some_attributes,
    some_axis,
    some_ints,
)


@proposes(3)
def resized(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(3, 4))
    mode = g.either("nearest", "linear", "linear", "cubic", "cubic")
    # of which onnx takes the wrong four elements where rounding puts it a little outside
    curved = mode == "cubic"
    coordinates = g.either(
        "asymmetric",
        "half_pixel",
        "align_corners",
        "pytorch_half_pixel",
        "half_pixel" if curved else "half_pixel_symmetric",
    )
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attrs["nearest_mode"] = g.either("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        attrs["coordinate_transformation_mode"] = g.either("asymmetric", "half_pixel")
    elif mode == "cubic":
        attrs.update(some_attributes(g, cubic_coeff_a=-0.5, exclude_outside=1))
    if mode != "nearest" and g.rng.random() < 0.3:
        attrs["antialias"] = 1
    axes = [2] if len(shape_of(g, x)) == 3 else [2, 3]
    if coordinates == "pytorch_half_pixel":  # onnx has one element elsewhere than PyTorch
        return "Resize", [x, "", "", int64s(g, *some_ints(g, len(axes), 2, 9))], 1, {**attrs, "axes": axes}
    if g.rng.random() < 0.5:
        operands = [x, "", g.constant(np.array(g.either((2, 0.5), (1.5, 1.25), (0.75, 3))[: len(axes)], np.float32))]
        attrs = {**attrs, "axes": axes}
        return "Resize", operands, 1, attrs
    attrs.update(some_attributes(g, keep_aspect_ratio_policy=g.either("not_larger", "not_smaller", "stretch")))
    return "Resize", [x, "", "", int64s(g, *some_ints(g, len(axes), 1, 9))], 1, {**attrs, "axes": axes}


@proposes(2)
def sampled(g: Graph) -> Proposed:
    x = g.pick("float32", rank=4)
    if 0 in shape_of(g, x):
        raise LookupError
    grid = g.constant(g.rng.uniform(-1.3, 1.3, (shape_of(g, x)[0], 3, 2, 2)).astype(np.float32))
    return (
        "GridSample",
        [x, grid],
        1,
        {
            "align_corners": g.either(0, 1),
            **g.either(
                # onnx holds a cubic curve at the border only far from it
                {"mode": "cubic", "padding_mode": g.either("zeros", "reflection")},
                {"mode": g.either("nearest", "linear"), "padding_mode": g.either("zeros", "border", "reflection")},
            ),
        },
    )


@proposes(4)
def moved(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    shape, axis = shape_of(g, x), some_axis(g, x)
    rank, size = len(shape), shape[axis]
    op = g.either(
        "Flatten",
        "Shape",
        "Pad",
        "Split",
        "Trilu",
        "OneHot",
        "CenterCropPad",
        "Slice",
        "GatherND",
        "ScatterElements",
        "Transpose",
    )
    if op == "Flatten":
        return op, [x], 1, {"axis": int(g.rng.integers(-rank, rank + 1))}
    if op == "Shape":
        return (
            op,
            [x],
            1,
            some_attributes(g, start=int(g.rng.integers(-rank, rank)), end=int(g.rng.integers(-rank, rank + 1))),
        )
    if op == "Pad":
        pads = some_ints(g, 2, -min(size - 1, 1), 2)
        return (
            op,
            [x, int64s(g, *pads), "", int64s(g, axis)],
            1,
            {"mode": g.either("constant", "edge", "reflect", "wrap")},
        )
    if op == "Split":
        return op, [x], 2, {"axis": axis, "num_outputs": 2}
    if op == "Trilu" and rank >= 2:
        return op, [x, g.constant(np.int64(g.rng.integers(-2, 3)))], 1, {"upper": g.either(0, 1)}
    if op == "OneHot":
        at = g.constant(g.rng.integers(-5, 5, (3, 2)))
        return op, [at, g.constant(np.int64(5)), g.random(dtype_of(g, x), 2)], 1, {"axis": int(g.rng.integers(-3, 3))}
    if op == "CenterCropPad":
        return op, [x, int64s(g, int(g.rng.integers(1, 7)))], 1, {"axes": [axis]}
    if op == "Slice":
        axes = sorted(int(a) for a in g.rng.permutation(rank)[:2])
        starts, ends, steps = (some_ints(g, len(axes), low, high) for low, high in ((-4, 3), (-6, 6), (1, 2)))
        turns = [g.either(-1, 1) for _ in axes]
        operands = [
            x,
            int64s(g, *starts),
            int64s(g, *ends),
            int64s(g, *axes),
            int64s(g, *(s * t for s, t in zip(steps, turns))),
        ]
        return op, operands, 1, {}
    if op == "GatherND" and rank >= 2 and shape[0]:
        at = np.stack([g.rng.integers(-shape[1], shape[1], (shape[0], 3))], -1)
        return op, [x, g.constant(at)], 1, {"batch_dims": 1}
    if op == "ScatterElements":
        at = g.rng.integers(-size, size, shape)
        operands = [x, g.constant(at), g.random(dtype_of(g, x), *shape)]
        attrs = {"axis": axis, "reduction": g.either("max", "min")}
        return op, operands, 1, attrs
    return "Transpose", [x], 1, {}


@proposes()
def turned(g: Graph) -> Proposed:
    x = g.pick("float32", "int32", "int64", rank=g.either(2, 3))
    time = g.either(0, 1)
    steps, batch = shape_of(g, x)[time], shape_of(g, x)[1 - time]
    operands = [x, g.constant(g.rng.integers(1, steps + 1, batch))]
    attrs = {"time_axis": time, "batch_axis": 1 - time}
    return "ReverseSequence", operands, 1, attrs


@proposes()
def unblocked(g: Graph) -> Proposed:
    x, kernel = g.input("float32", (2, 2 * 6, 3 * 4)), (2, 3)
    return "Col2Im", [x, int64s(g, 4, 6), int64s(g, *kernel)], 1, {}


@proposes()
def blocks(g: Graph) -> Proposed:
    x = g.pick("int8", "uint8", "int32", rank=2)
    rows = -(-shape_of(g, x)[1] // 2)
    operands = [x, g.constant(g.rng.uniform(0.1, 0.5, (shape_of(g, x)[0], rows)).astype(np.float32))]
    attrs = {"axis": 1, "block_size": 2}
    return "DequantizeLinear", operands, 1, attrs


@proposes()
def whole(g: Graph) -> Proposed:
    return g.either("ArgMax", "ArgMin"), [g.pick(*INTEGERS)], 1, {}
