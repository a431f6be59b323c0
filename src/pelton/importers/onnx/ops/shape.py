"""Readers of operators that rearrange tensors, and of those that read or compute shapes, dynamic ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pelton.ir import dims
from pelton.ir.dims import Dim, Size, Undecided, equal, exact, is_known, maximum, minimum
from pelton.ir.types import I64, broadcast_shapes
from pelton.ops.shape import length

from pelton.importers.onnx.file import array_of, dense
from pelton.importers.onnx.node import Reading, Binding, reads

MAX_CONSTANT = 1 << 26  # elements of a constant that the importer computes
MAX_RANGE = 64  # elements of a range up to which sizes are kept individually
END = (1 << 31) - 1  # exporters write this or more for "up to the end"


# --- constants and shapes


@reads("Constant")
def constant(n: Reading) -> Binding:
    for name in ("value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings"):
        if name in n.attributes:
            kind = name.removeprefix("value_").rstrip("s")
            return n.constant(np.asarray(n.attr(name), {"float": np.float32, "int": np.int64, "string": object}[kind]))
    if "sparse_value" in n.attributes:
        return n.constant(dense(n.attr("sparse_value"), n.program.source))
    if "value" not in n.attributes:
        raise n.refuse("Constant needs a value")
    return n.constant(array_of(n.attr("value"), n.program.source))


@reads("ConstantOfShape")
def constant_of_shape(n: Reading) -> Binding:
    shape, value = n.integers(0, "shape"), n.attr("value")
    fill = (
        np.zeros((), np.float32)
        if value is None or not value.dims and not value.ByteSize()
        else array_of(value, n.program.source)
    )
    if fill.size != 1 or any(d < 0 for d in shape):
        raise n.refuse(
            f"ConstantOfShape needs one value and sizes of at least 0, got {fill.size} values and shape {shape}"
        )
    return n.expand(n.constant(fill.reshape(())), shape)


@reads("Shape")
def shape(n: Reading) -> Binding:
    sizes = n.input(0).type.shape
    return n.sizes(sizes[slice(n.attr("start", 0), n.attr("end"))])


@reads("Size")
def size(n: Reading) -> Binding:
    return n.sizes(n.input(0).type.size)


@reads("Range")
def range_(n: Reading) -> Binding:
    start, limit, delta = (n.numbers(i, what) for i, what in enumerate(("start", "limit", "delta")))
    if not start.size == limit.size == delta.size == 1 or delta.item() == 0:
        raise n.refuse("Range needs a start, a limit and a delta other than 0, one number each")
    if any(a.dtype == object for a in (start, limit, delta)):
        return _range_of_dynamic_length(n, start.item(), limit.item(), delta.item())
    first, last, step = (
        np.asarray(a, np.float64 if n.input(0).type.dtype.is_float else None).item() for a in (start, limit, delta)
    )
    if not all(map(math.isfinite, (first, last, step))):
        raise n.refuse(f"Range needs finite numbers, got {first} to {last} by {step}")
    count = max(0, math.ceil((last - first) / step)) if isinstance(first, float) else len(range(first, last, step))
    if count > MAX_CONSTANT:
        raise n.refuse(
            f"Range from {first} to {last} by {step} has {count} elements; at most {MAX_CONSTANT} are supported"
        )
    return n.constant(first + np.arange(count) * step, n.input(0).type.dtype)


def _range_of_dynamic_length(n: Reading, first: Size, last: Size, step: Any) -> Binding:
    """Returns first + step · (0, 1, …), with a dynamic number of elements."""
    if (
        not isinstance(step, (int, float))
        or step != int(step)
        or not all(isinstance(x, (int, Dim)) or x == int(x) for x in (first, last))
    ):
        raise n.refuse(
            f"Range needs integers where its length depends on dynamic dimensions, got {first} to {last} by {step}"
        )
    step, dtype = int(step), n.input(0).type.dtype
    count = length(first if isinstance(first, Dim) else int(first), last if isinstance(last, Dim) else int(last), step)
    if is_known(count) and count <= MAX_RANGE and dtype.is_integer:
        return n.builder.from_sizes(
            np.array([first + i * step for i in range(count)], object), dtype, next(filter(None, n.node.output), "")
        )
    values = n.count(count, dtype)
    if step != 1:
        values = n.emit("mul", values, n.like(values, step))
    return values if not isinstance(first, Dim) and first == 0 else n.emit("add", values, n.input(0))


@reads("EyeLike")
def eye_like(n: Reading) -> Binding:
    x, to = n.input(0), n.attr("dtype")
    if x.type.rank == 2 and not x.type.known:
        rows, columns = x.type.shape
        below = n.emit("add", n.reshape(n.count(rows), (rows, 1)), n.constant(n.attr("k"), I64))
        return n.cast(n.emit("equal", n.count(columns), below), x.type.dtype if to is None else n.dtype(to))
    if x.type.rank != 2 or x.type.size > MAX_CONSTANT:
        raise n.refuse(f"EyeLike needs a matrix of at most {MAX_CONSTANT} elements, got {x.type}")
    return n.constant(
        np.eye(x.type.shape[0], x.type.shape[1], n.attr("k")), x.type.dtype if to is None else n.dtype(to)
    )


# --- reshaping


@reads("Reshape")
def reshape(n: Reading) -> Binding:
    """Reshapes; 0 keeps the size of that axis (unless allowzero), −1 takes the remaining elements."""
    x, target = n.input(0), n.integers(1, "shape")
    sizes = list(target)
    for i, d in enumerate(sizes):
        if d == 0 and not n.flag("allowzero"):
            if i >= x.type.rank:
                raise n.refuse(
                    f"Reshape to {list(target)} needs an axis {i} whose size 0 keeps, but the input is {x.type}"
                )
            sizes[i] = x.type.shape[i]
    if sizes.count(-1) == 1:
        rest = math.prod(d for d in sizes if isinstance(d, Dim) or d != -1)
        remaining = exact(x.type.size, rest) if rest else None
        if remaining is None:
            whole = x.type.size // rest * rest if rest else 0
            _compare_with_symbols(x.type.shape, sizes, whole - x.type.size)
            _ask_equal(whole, x.type.size, whole - x.type.size)
            raise n.refuse(f"Reshape of {x.type} to {list(target)} leaves no whole size for -1")
        sizes[sizes.index(-1)] = remaining
    elif math.prod(sizes) != x.type.size:
        _compare_with_symbols(x.type.shape, sizes, math.prod(sizes) - x.type.size)
    if any(d < 0 for d in sizes):
        raise n.refuse(f"Reshape needs sizes of at least 0 and at most one -1, got {list(target)}")
    return n.reshape(x, sizes)


def _compare_with_symbols(shape: Sequence[Size], target: Sequence[Size], needed: Size) -> None:
    """Raises Undecided if a target size may equal the dynamic dimension of its axis: exporters bake such sizes.
    `needed` is 0 if the reshape is possible."""
    for d, size in zip(shape, target):
        if isinstance(d, Dim) and not isinstance(size, Dim) and size > 0:
            _ask_equal(d, size, needed)


def _ask_equal(a: Size, b: Size, needed: Size) -> None:
    """Raises Undecided, with the requirement `needed`, if dynamic dimensions decide the equality of two sizes."""
    try:
        equal(a, b)
    except Undecided as e:
        raise Undecided(str(e), e.difference, e.relation, (needed,)) from None


@reads("Flatten")
def flatten(n: Reading) -> Binding:
    x, axis = n.input(0), n.attr("axis")
    if not -x.type.rank <= axis <= x.type.rank:
        raise n.refuse(f"Flatten needs an axis between {-x.type.rank} and {x.type.rank}, got {axis}")
    axis = axis + x.type.rank if axis < 0 else axis
    return n.reshape(x, (math.prod(x.type.shape[:axis]), math.prod(x.type.shape[axis:])))


@reads("Squeeze")
def squeeze(n: Reading) -> Binding:
    x = n.input(0)
    ints = n.some_integers(1, "axes") if n.opset >= 13 else n.attr("axes")
    axes = (
        n.axes(ints, x.type.rank) if ints is not None else tuple(i for i, d in enumerate(x.type.shape) if equal(d, 1))
    )
    if not all(equal(x.type.shape[a], 1) for a in axes):
        raise n.refuse(f"Squeeze needs axes of size 1, got axes {list(axes)} of {x.type}")
    return n.reshape(x, [d for i, d in enumerate(x.type.shape) if i not in axes])


@reads("Unsqueeze")
def unsqueeze(n: Reading) -> Binding:
    x, axes = n.input(0), n.integers(1, "axes") if n.opset >= 13 else n.attr("axes")
    sizes = list(x.type.shape)
    for axis in n.axes(axes, x.type.rank + len(axes)):
        sizes.insert(axis, 1)
    return n.reshape(x, sizes)


@reads("Transpose")
def transpose(n: Reading) -> Binding:
    x = n.input(0)
    return n.transpose(x, n.attr("perm") or range(x.type.rank - 1, -1, -1))


@reads("Expand")
def expand(n: Reading) -> Binding:
    """Broadcasts in both directions: a 1 in the target shape keeps the input's size."""
    x, target = n.input(0), n.integers(1, "shape")
    try:
        return n.expand(x, broadcast_shapes(x.type.shape, target))
    except Undecided:
        raise
    except ValueError:
        raise n.refuse(
            f"Expand needs a shape that broadcasts with its input, got {list(target)} and {x.type}"
        ) from None


@reads("Tile")
def tile(n: Reading) -> Binding:
    return n.emit("tile", n.input(0), repeats=n.integers(1, "repeats"))


# --- concatenating, splitting and slicing


@reads("Concat")
def concat(n: Reading) -> Binding:
    first = n.input(0)
    axis = n.axis(n.attr("axis"), first.type.rank)
    return first if len(n.inputs) == 1 else n.emit("concat", *n.inputs, axis=axis)


@reads("Split")
def split(n: Reading) -> tuple[Binding, ...]:
    """Splits by sizes, an attribute before opset 13, an input since.

    Without them, or with num_outputs (18), parts are equal, except that the last may be smaller.
    """
    x = n.input(0)
    axis = n.axis(n.attr("axis", 0), x.type.rank)
    whole, parts = x.type.shape[axis], len(n.node.output)
    sizes = n.attr("split") if n.opset < 13 else n.some_integers(1, "sizes")
    if not sizes:
        if n.attr("num_outputs", parts) != parts or n.opset < 18 and not equal(whole % parts, 0):
            raise n.refuse(
                f"Split needs a size divisible by its {parts} outputs, or num_outputs as many, got {whole} and"
                f" {n.attr('num_outputs')}"
            )
        chunk = -(-whole // parts)
        sizes = [minimum(chunk, maximum(0, whole - i * chunk)) for i in range(parts)]
    elif not equal(sum(sizes), whole) or any(s < 0 for s in sizes) or len(sizes) < len(n.node.output):
        raise n.refuse(f"Split needs a size per output, with sum {whole}, got {list(sizes)} for {len(n.node.output)}")
    ends = list(accumulate(sizes))
    return tuple(
        n.slice(x, axis, end - length, end) if n.is_output_used(i) else None
        for i, (end, length) in enumerate(zip(ends[: len(n.node.output)], sizes))
    )


@reads("Slice")
def slice_(n: Reading) -> Binding:
    """Reads bounds, attributes before opset 10, inputs since; clamps them, and counts negative ones from the end."""
    x = n.input(0)
    if n.opset < 10:
        starts, ends, axes, steps = n.attr("starts"), n.attr("ends"), n.attr("axes"), None
    else:
        types = [v.type for i in range(1, 5) if (v := n.optional(i)) is not None]
        if any(t.rank > 1 or t.known and t.size > x.type.rank for t in types):
            raise n.refuse(
                f"Slice of {x.type} needs vectors of at most {x.type.rank} starts, ends, axes and steps, got"
                f" {', '.join(map(str, types))}"
            )
        starts, ends = n.integers(1, "starts"), n.integers(2, "ends")
        axes, steps = n.some_integers(3, "axes"), n.some_integers(4, "steps")
    axes = axes if axes is not None else tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise n.refuse(
            "Slice needs a start, an end, an axis and a step other than 0 each, "
            f"got {list(starts)}, {list(ends)}, {list(axes)}, {list(steps)}"
        )
    axes = tuple(n.axis(a, x.type.rank) for a in axes)
    bounds = [_clamp_bounds(n, s, e, step, x.type.shape[a]) for s, e, a, step in zip(starts, ends, axes, steps)]
    cut = [(a, *b) for a, b in zip(axes, bounds) if b != (0, x.type.shape[a], 1)]
    if not cut:
        return x
    cut = [(a, 0, 0, 1) if length(*b) == 0 else (a, *b) for a, *b in cut]
    axes, starts, ends, steps = zip(*cut)
    return n.emit("slice", x, starts=starts, ends=ends, axes=axes, steps=steps)


def _clamp_bounds(n: Reading, start: Size, end: Size, step: int, size: Size) -> tuple[Size, Size, int]:
    """Returns clamped start, end and step of an axis's slice; an end of −1 with a negative step includes element 0."""
    if is_known(start, end, size):
        return slice(start, end, step).indices(size)
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def clamp(at: Size) -> Size:
        if not isinstance(at, Dim) and abs(at) >= END:  # the last element in the direction of the sign
            return high if at > 0 else low
        at = at if at >= 0 else at + size
        if (
            dims.bounds(at - high)[1] > 0
            and not isinstance(size, Dim)
            and any(s.name in n.program.unspecified for s in dims.symbols(at))
        ):
            # its bounds are unspecified
            raise Undecided(f"a slice up to {at} of an axis of {size}", high - at, ">=")
        return minimum(maximum(at, low), high)

    return clamp(start), clamp(end), step


@reads("Pad")
def pad(n: Reading) -> Binding:
    """Reads attributes before opset 11, inputs since, with axes from 18 on."""
    x = n.input(0)
    if n.opset < 11:
        pads, value, axes = n.attr("pads"), n.like(x, n.attr("value")), None
    else:
        pads, axes = n.integers(1, "pads"), n.some_integers(3, "axes")
        fill = n.optional(2)
        value = n.like(x, 0) if fill is None else n.reshape(fill, ())
    axes = tuple(range(x.type.rank)) if axes is None else tuple(n.axis(a, x.type.rank) for a in axes)
    if len(pads) != 2 * len(axes):
        raise n.refuse(f"Pad needs two pads for each of {len(axes)} axes, got {list(pads)}")
    every = [0] * (2 * x.type.rank)
    for i, axis in enumerate(axes):
        every[axis], every[axis + x.type.rank] = pads[i], pads[i + len(axes)]
    return n.emit("pad", x, value, pads=tuple(every), mode=n.attr("mode")) if any(every) else x


@reads("Trilu")
def trilu(n: Reading) -> Binding:
    """Reads a diagonal; one that depends on the data is compared with column − row."""
    x, offset, upper = n.input(0), n.optional(1), n.flag("upper")
    if offset is None or n.builder.elements(offset) is not None:
        (k,) = n.some_integers(1, "diagonal") or (0,)
        return n.emit("trilu", x, k=k, upper=upper)
    if x.type.rank < 2:
        raise n.refuse(f"Trilu needs matrices, got {x.type}")
    rows, columns = x.type.shape[-2:]
    diagonal = n.emit("sub", n.count(columns), n.reshape(n.count(rows), (rows, 1)))
    kept = n.emit("greater_equal" if upper else "less_equal", diagonal, n.cast(n.reshape(offset, ()), I64))
    return n.emit("where", kept, x, n.like(x, 0))
