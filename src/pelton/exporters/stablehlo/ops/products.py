"""Writers of matrix products and convolutions; integers of a byte are multiplied as such, with exact sums."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.ir.graph import Node
from pelton.ir.types import F32, F64, I8, DType, TensorType, broadcast_shapes

from ..blocks import Operations, SsaValue
from ..casts import cast
from ..literals import integers, pairs
from ..registry import summed_as, writes
from .indices import numbers

SHIFT = 128  # what is subtracted from unsigned bytes, to multiply them as signed ones


def _precision(dtype: DType) -> str:
    """Returns the precision of both operands: of f32, all bits, where TPUs would round to bf16."""
    kind = "HIGHEST" if dtype in (F32, F64) else "DEFAULT"
    return f"[{', '.join([f'#stablehlo<precision {kind}>'] * 2)}]"


def _summed(x: SsaValue, accumulate: DType | None) -> DType:
    return accumulate or summed_as(x.dtype)


def _is_byte(x: SsaValue) -> bool:
    return x.dtype.is_integer and x.dtype.bits == 8


def _signed(s: Operations, x: SsaValue) -> tuple[SsaValue, int]:
    """Returns bytes as signed ones, and what was subtracted."""
    if x.dtype is I8:
        return x, 0
    return s.one("bitcast_convert", [s.binary("xor", x, SHIFT)], x.type.with_dtype(I8)), SHIFT


def dot(
    s: Operations, a: SsaValue, b: SsaValue, batch: int, over: tuple[int, int], to: DType | None = None
) -> SsaValue:
    """Writes a product of matrices: the first `batch` axes are those of both, and `over` are summed."""
    rest = [[n for i, n in enumerate(x.shape) if i >= batch and i != axis] for x, axis in ((a, over[0]), (b, over[1]))]
    same = numbers(range(batch))
    places = (
        f"#stablehlo.dot<lhs_batching_dimensions = {same}, rhs_batching_dimensions = {same},"
        f" lhs_contracting_dimensions = [{over[0]}], rhs_contracting_dimensions = [{over[1]}]>"
    )
    attrs = {"dot_dimension_numbers": places, "precision_config": _precision(a.dtype)}
    type = TensorType(to or a.dtype, (*a.shape[:batch], *rest[0], *rest[1]))
    return s.one("dot_general", [a, b], type, attrs)


def _matrices(s: Operations, a: SsaValue, b: SsaValue, to: DType) -> SsaValue:
    """Writes a product of matrices [batch…, m, k] and [batch…, k, n], whose batches broadcast."""
    if len(b.shape) == 2:
        return dot(s, a, b, 0, (len(a.shape) - 1, 0), to)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (s.broadcast(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return dot(s, a, b, len(batch), (len(batch) + 1, len(batch)), to)


@writes("matmul")
def matmul(s: Operations, node: Node, a: SsaValue, b: SsaValue) -> SsaValue:
    accumulate, a_zero, b_zero = (node.attrs[k] for k in ("accumulate", "a_zero", "b_zero"))
    result, within = node.outputs[0].type, _summed(a, accumulate)
    a = a if len(a.shape) > 1 else s.reshape(a, (1, *a.shape))
    b = b if len(b.shape) > 1 else s.reshape(b, (*b.shape, 1))
    if _is_byte(a) and _is_byte(b) and accumulate is not None:
        y = _bytes_product(s, a, b, within, a_zero, b_zero)
    elif accumulate is not None and a.dtype.is_integer:
        less = [s.subtract(cast(s, x, within), zero) for x, zero in ((a, a_zero), (b, b_zero))]
        y = _matrices(s, less[0], less[1], within)
    else:
        a, b = _multiplied(s, a, b)
        y = _matrices(s, a, b, within)
    return cast(s, s.reshape(y, result.shape), result.dtype)


def _multiplied(s: Operations, *operands: SsaValue) -> list[SsaValue]:
    """Returns operands in a type that has products: floats of a byte as f32."""
    return [s.convert(x, F32) if x.dtype.is_float and x.dtype.size == 1 else x for x in operands]


def _bytes_product(s: Operations, a: SsaValue, b: SsaValue, within: DType, a_zero: int, b_zero: int) -> SsaValue:
    """Writes Σ (a − a_zero) (b − b_zero) as Σ ab − b_zero Σ a − a_zero Σ b + k · a_zero · b_zero."""
    (a, of_a), (b, of_b) = _signed(s, a), _signed(s, b)
    a_zero, b_zero = a_zero - of_a, b_zero - of_b
    y, inner = _matrices(s, a, b, within), a.shape[-1]
    if b_zero:
        rows = s.reduce("add", s.convert(a, within), [len(a.shape) - 1], 0)
        y = s.subtract(y, s.multiply(s.reshape(rows, (*rows.shape, 1)), b_zero))
    if a_zero:
        columns = s.reduce("add", s.convert(b, within), [len(b.shape) - 2], 0)
        columns = s.reshape(columns, (*columns.shape[:-1], 1, columns.shape[-1]))
        y = s.subtract(y, s.multiply(columns, a_zero))
    return s.add(y, inner * a_zero * b_zero) if a_zero and b_zero else y


def _convolve(
    s: Operations,
    x: SsaValue,
    w: SsaValue,
    to: DType,
    *,
    sides: Sequence[tuple[int, int]],
    strides: Sequence[int],
    dilations: Sequence[int],
    apart: Sequence[int],
    group: int,
) -> SsaValue:
    """Writes a convolution of x [batch, channels, space…] and w [filters, channels, space…]; `apart` dilates x."""
    space = len(sides)
    sizes = [
        ((n - 1) * gap + 1 + a + b - d * (k - 1) - 1) // stride + 1 if n else 0
        for n, k, gap, (a, b), d, stride in zip(x.shape[2:], w.shape[2:], apart, sides, dilations, strides)
    ]
    axes = ", ".join(map(str, range(space)))
    attrs = {
        "window_strides": integers(strides),
        "padding": pairs(sides),
        "lhs_dilation": integers(apart),
        "rhs_dilation": integers(dilations),
        "dimension_numbers": f"#stablehlo.conv<[b, f, {axes}]x[o, i, {axes}]->[b, f, {axes}]>",
        "feature_group_count": f"{group} : i64",
        "batch_group_count": "1 : i64",
        "precision_config": _precision(x.dtype),
    }
    return s.one("convolution", [x, w], TensorType(to, (x.shape[0], w.shape[0], *sizes)), attrs)


def _biased(s: Operations, y: SsaValue, b: SsaValue) -> SsaValue:
    """Adds a number to each channel, unless all are known as 0."""
    if b.array is not None and not b.array.any():
        return y
    return s.add(y, s.spread(s.convert(b, y.dtype), y.shape, [1]))


@writes("convolution")
def convolution(
    s: Operations, node: Node, x: SsaValue, w: SsaValue, b: SsaValue, padding: SsaValue | None = None
) -> SsaValue:
    a, result = node.attrs, node.outputs[0].type
    within, space = _summed(x, a["accumulate"]), len(x.shape) - 2
    sides = list(zip(a["pads"][:space], a["pads"][space:]))
    shared = dict(strides=a["strides"], dilations=a["dilations"], apart=[1] * space, group=a["group"])
    unsigned = x.dtype.is_integer and not x.dtype.is_signed
    exact = a["accumulate"] is not None and _is_byte(x) and w.dtype is I8
    if padding is not None or a["pad_value"] or exact and unsigned:
        x = s.pad(x, a["pad_value"] if padding is None else padding, [(0, 0), (0, 0), *sides])
        sides = [(0, 0)] * space
    if exact:
        x, shift = _signed(s, x)
        y = _convolve(s, x, w, within, sides=sides, **shared)
        if shift:
            each = s.reduce("add", s.convert(w, within), range(1, len(w.shape)), 0)
            y = s.add(y, s.spread(s.multiply(each, shift), y.shape, [1]))
    else:
        integer = x.dtype.is_integer
        x, w = (cast(s, v, within) for v in (x, w)) if integer else _multiplied(s, x, w)
        y = _convolve(s, x, w, within, sides=sides, **shared)
    return cast(s, _biased(s, y, b), result.dtype)


@writes("conv_transpose")
def conv_transpose(s: Operations, node: Node, x: SsaValue, w: SsaValue, b: SsaValue) -> SsaValue:
    """Writes a convolution of x, with zeros between its elements, with the reversed filters."""
    a, space, dtype = node.attrs, len(x.shape) - 2, x.dtype
    group, (channels, each, *kernel) = a["group"], w.shape
    axes = range(3, 3 + space)
    split = s.reshape(w, (group, channels // group, each, *kernel))
    filters = s.reshape(s.transpose(split, (0, 2, 1, *axes)), (group * each, channels // group, *kernel))
    filters = s.reverse(filters, range(2, 2 + space))
    sides = [
        (d * (k - 1) - before, d * (k - 1) - after + extra)
        for d, k, before, after, extra in zip(
            a["dilations"], kernel, a["pads"][:space], a["pads"][space:], a["output_padding"]
        )
    ]
    x, filters = _multiplied(s, x, filters)
    shared = dict(strides=[1] * space, dilations=a["dilations"], apart=a["strides"], group=group)
    y = _convolve(s, x, filters, _summed(x, None), sides=sides, **shared)
    return cast(s, _biased(s, y, b), dtype)
