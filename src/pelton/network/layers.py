"""Layers by their usual arguments: strides and paddings as numbers, optional biases and axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.errors import InputError
from pelton.ir.dims import Size, exact, is_known, maximum

from .operators import Operators
from .tensor import Operand, NetworkTensor

Ints = int | Sequence[int]
Padding = Ints | str | Sequence[tuple[int, int]]
PADDINGS = "a number, one for each axis, (before, after) for each axis, 'same', 'same_lower' or 'valid'"


class Layers(Operators):
    """Layers of networks. Images are [batch, channels, space…] with one, two or three axes of space."""

    # --- windows

    def convolution(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand = None,
        *,
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        name: str = "",
    ) -> NetworkTensor:
        """A convolution of x [batch, channels, space…] with weight [outputs, channels / groups, window…].

        padding: a number, one for each axis, (before, after) for each axis, "same" (outputs of ⌈size / stride⌉, the odd
        element behind), "same_lower" (the odd element in front) or "valid" (none).
        """
        x, w = self._image(x), self.tensor_of(weight)
        kernel = w.shape[2:]
        window = self._window(x, kernel, stride, padding, dilation)
        b = np.zeros(_number(w.shape[0]), x.dtype.numpy) if bias is None else bias
        return self._one("convolution", (x, w, b), {**window, "group": groups}, name)

    def deconvolution(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand = None,
        *,
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        output_padding: Ints = 0,
        name: str = "",
    ) -> NetworkTensor:
        """A transposed convolution with weight [channels, outputs / groups, window…]: (size − 1) · stride − padding +
        (window − 1) · dilation + output_padding + 1 elements along each axis. padding as of `convolution`, "same" for
        size · stride elements."""
        x, w = self._image(x), self.tensor_of(weight)
        space, kernel = x.rank - 2, w.shape[2:]
        strides, dilations, extra = (
            _each(v, space, what)
            for v, what in ((stride, "stride"), (dilation, "dilation"), (output_padding, "output_padding"))
        )
        if isinstance(padding, str) and padding != "valid":
            totals = [max((k - 1) * d + 1 - s, 0) for k, d, s in zip(kernel, dilations, strides)]
            extra = tuple(max(s - (k - 1) * d - 1, 0) for k, d, s in zip(kernel, dilations, strides))
            pads = _split(totals, padding)
        else:
            pads = _pads(padding, space)
        b = np.zeros(_number(w.shape[1]) * groups, x.dtype.numpy) if bias is None else bias
        attrs = dict(strides=strides, pads=pads, dilations=dilations, group=groups, output_padding=extra)
        return self._one("conv_transpose", (x, w, b), attrs, name)

    def max_pool(
        self,
        x: Operand,
        kernel: Ints,
        *,
        stride: Ints | None = None,
        padding: Padding = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        name: str = "",
    ) -> NetworkTensor:
        """The largest element of each window. stride: the kernel by default. ceil_mode: windows may begin inside and
        end outside."""
        x = self._image(x)
        size = _each(kernel, x.rank - 2, "kernel")
        window = self._window(x, size, size if stride is None else stride, padding, dilation)
        return self._one("max_pool", (x,), {"kernel": size, **window, "ceil_mode": ceil_mode}, name)

    def average_pool(
        self,
        x: Operand,
        kernel: Ints,
        *,
        stride: Ints | None = None,
        padding: Padding = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        name: str = "",
    ) -> NetworkTensor:
        """The mean of each window; of all its elements, padding included, if `count_include_pad`."""
        x = self._image(x)
        size = _each(kernel, x.rank - 2, "kernel")
        window = self._window(x, size, size if stride is None else stride, padding, dilation)
        attrs = {"kernel": size, **window, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
        return self._one("average_pool", (x,), attrs, name)

    def global_average_pool(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """The mean over space: [batch, channels, 1…]."""
        x = self._image(x)
        return self._one("reduce_mean", (x,), dict(axes=tuple(range(2, x.rank)), keepdims=True), name)

    # --- products

    def linear(self, x: Operand, weight: Operand, bias: Operand = None, *, name: str = "") -> NetworkTensor:
        """x · weightᵀ + bias, with x [..., inputs] and weight [outputs, inputs]."""
        w = self.tensor_of(weight)
        product = self._one("matmul", (x, self.transpose(w, (1, 0))), {}, name if bias is None else "")
        return product if bias is None else self._one("add", (product, bias), {}, name)

    # --- normalization, activations

    def batch_norm(
        self,
        x: Operand,
        scale: Operand,
        bias: Operand,
        mean: Operand,
        variance: Operand,
        *,
        epsilon: float = 1e-5,
        name: str = "",
    ) -> NetworkTensor:
        """(x − mean) / √(variance + epsilon) · scale + bias, by the channels of axis 1."""
        return self._one("batch_norm", (x, scale, bias, mean, variance), dict(epsilon=epsilon), name)

    def softmax(self, x: Operand, axis: int = -1, *, name: str = "") -> NetworkTensor:
        """exp(x) / Σ exp(x) along an axis."""
        return self._one("softmax", (x,), dict(axis=axis), name)

    def log_softmax(self, x: Operand, axis: int = -1, *, name: str = "") -> NetworkTensor:
        """x − log Σ exp(x) along an axis."""
        return self._one("log_softmax", (x,), dict(axis=axis), name)

    # --- shapes

    def reshape(self, x: Operand, shape: Sequence[Size], *, name: str = "") -> NetworkTensor:
        """The elements of x in another shape; one size may be −1, for all remaining elements."""
        x, shape = self.tensor_of(x), tuple(shape)
        if rest := [i for i, d in enumerate(shape) if is_known(d) and d == -1]:
            others = math.prod(d for i, d in enumerate(shape) if i != rest[0])
            if len(rest) > 1 or is_known(others) and others == 0:
                raise InputError(f"one size of a shape may be -1, all others must be positive, got {list(shape)}")
            quotient = x.type.size // others
            shape = tuple(quotient if i == rest[0] else d for i, d in enumerate(shape))
        if is_known(*shape, *x.shape) and math.prod(shape) != x.type.size:
            raise InputError(f"{x!r} cannot be reshaped to {list(shape)}, of another number of elements")
        return x if shape == x.shape else self._one("reshape", (x,), dict(shape=shape), name)

    def flatten(self, x: Operand, axis: int = 1, *, name: str = "") -> NetworkTensor:
        """[sizes in front of the axis, multiplied; the others, multiplied]."""
        x = self.tensor_of(x)
        front = _axis(axis, x.rank + 1)
        return self.reshape(x, (math.prod(x.shape[:front]), math.prod(x.shape[front:])), name=name)

    def squeeze(self, x: Operand, axes: Ints, *, name: str = "") -> NetworkTensor:
        """x without these axes, which are of size 1."""
        x = self.tensor_of(x)
        gone = {_axis(a, x.rank) for a in ((axes,) if isinstance(axes, int) else axes)}
        return self.reshape(x, [d for i, d in enumerate(x.shape) if i not in gone], name=name)

    def unsqueeze(self, x: Operand, axes: Ints, *, name: str = "") -> NetworkTensor:
        """x with axes of size 1, at these positions of the result."""
        x, axes = self.tensor_of(x), (axes,) if isinstance(axes, int) else tuple(axes)
        new, sizes = {_axis(a, x.rank + len(axes)) for a in axes}, iter(x.shape)
        shape = [1 if i in new else next(sizes) for i in range(x.rank + len(axes))]
        return self.reshape(x, shape, name=name)

    def transpose(self, x: Operand, perm: Sequence[int] | None = None, *, name: str = "") -> NetworkTensor:
        """x with its axes in the order of perm; in reverse by default."""
        x = self.tensor_of(x)
        perm = tuple(_axis(a, x.rank) for a in (range(x.rank)[::-1] if perm is None else perm))
        return x if perm == tuple(range(x.rank)) else self._one("transpose", (x,), dict(perm=perm), name)

    def expand(self, x: Operand, shape: Sequence[Size], *, name: str = "") -> NetworkTensor:
        """x broadcast to a shape."""
        return self._one("expand", (x,), dict(shape=tuple(shape)), name)

    def concat(self, tensors: Sequence[Operand], axis: int, *, name: str = "") -> NetworkTensor:
        """Tensors joined along an axis."""
        return self._one("concat", tuple(tensors), dict(axis=axis), name)

    def split(
        self, x: Operand, sizes: int | Sequence[Size], axis: int = 0, *, name: str = ""
    ) -> tuple[NetworkTensor, ...]:
        """Parts of x along an axis: a number of equal ones, or parts of these sizes."""
        x = self.tensor_of(x)
        along = _axis(axis, x.rank)
        if isinstance(sizes, int):
            if is_known(x.shape[along]) and x.shape[along] % sizes:
                raise InputError(f"{x!r} cannot be split into {sizes} equal parts along axis {along}")
            sizes = (x.shape[along] // sizes,) * sizes
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return tuple(
            self.slice(x, starts=(e - s,), ends=(e,), axes=(along,), steps=(1,), name=name) for s, e in zip(sizes, ends)
        )

    def index(self, x: NetworkTensor, index: Any, *, name: str = "") -> NetworkTensor:
        """x[index] with integers, slices, None and …; `gather` takes computed indices."""
        parts = list(index) if isinstance(index, tuple) else [index]
        count = sum(p is not None and p is not Ellipsis for p in parts)
        dots = [i for i, p in enumerate(parts) if p is Ellipsis]
        if count > x.rank or len(dots) > 1:
            raise InputError(f"{x!r} has {x.rank} axes, got {count} indices")
        at = dots[0] if dots else len(parts)
        parts[at : at + 1] = [slice(None)] * (x.rank - count)
        cut, gone, new, axis = list[tuple[int, Size, Size, int]](), list[int](), list[int](), 0
        for part in parts:
            if part is None:
                new.append(axis - len(gone) + len(new))
                continue
            size = x.shape[axis]
            if isinstance(part, slice):
                start, end, step = part.indices(size) if is_known(size) else _bounds(part, size)
                if (start, end, step) != (0, size, 1):
                    cut.append((axis, start, end, step))
            elif isinstance(part, (int, np.integer)):
                if is_known(size) and not -size <= part < size:
                    raise InputError(f"{x!r} has {size} elements along axis {axis}, got the index {part}")
                start = part + size if part < 0 else int(part)
                cut.append((axis, start, start + 1, 1))
                gone.append(axis)
            else:
                raise InputError(f"an index must be an integer, a slice, None or …, got {part!r}")
            axis += 1
        if cut:
            axes, starts, ends, steps = zip(*cut)
            x = self.slice(x, starts=starts, ends=ends, axes=axes, steps=steps, name=name)
        x = self.squeeze(x, gone) if gone else x
        return self.unsqueeze(x, new) if new else x

    def pad(
        self,
        x: Operand,
        padding: Sequence[tuple[int, int]],
        value: Operand = 0,
        *,
        mode: str = "constant",
        name: str = "",
    ) -> NetworkTensor:
        """x with (before, after) more elements along each axis; mode: constant, edge, reflect or wrap."""
        x = self.tensor_of(x)
        pads = (*(b for b, _ in padding), *(a for _, a in padding))
        if len(pads) != 2 * x.rank:
            raise InputError(f"{x!r} needs (before, after) for each of {x.rank} axes, got {list(padding)}")
        return self._one("pad", (x, value), dict(pads=pads, mode=mode), name)

    def resize(
        self,
        x: Operand,
        size: Sequence[int] | None = None,
        *,
        scale: float | Sequence[float] | None = None,
        mode: str = "nearest",
        coordinates: str = "half_pixel",
        name: str = "",
        **attrs: Any,
    ) -> NetworkTensor:
        """An image resized to a size of its space, or by a factor (sizes are rounded down); mode: nearest, linear or
        cubic; coordinates and further attributes as in ONNX's Resize."""
        x = self._image(x)
        space = x.shape[2:]
        if (size is None) == (scale is None):
            raise InputError("resize needs either a size or a scale")
        if scale is not None:
            factors = (scale,) * len(space) if isinstance(scale, (int, float)) else tuple(scale)
            size = [math.floor(d * f) if is_known(d) else d * int(f) for d, f in zip(space, factors)]
        else:
            factors = tuple(map(_factor, size or (), space))
        attrs |= dict(shape=(*x.shape[:2], *(size or ())), scales=(1.0, 1.0, *map(float, factors)))
        return self._one("resize", (x,), dict(attrs, mode=mode, coordinates=coordinates), name)

    # --- picking

    def gather(self, x: Operand, indices: Operand, axis: int = 0, *, name: str = "") -> NetworkTensor:
        """Elements of x along an axis, by indices of any shape; negative ones count from the end."""
        return self._one("gather", (x, self._indices(indices)), dict(axis=axis), name)

    def one_hot(
        self, indices: Operand, depth: int, *, axis: int = -1, on: float = 1.0, off: float = 0.0, name: str = ""
    ) -> NetworkTensor:
        """`on` at the indices along a new axis of `depth` elements at this position of the result; `off` elsewhere."""
        x = self._indices(indices)
        attrs = dict(depth=depth, axis=_axis(axis, x.rank + 1))
        return self._one("one_hot", (x, np.array([off, on], np.float32)), attrs, name)

    def embedding(self, table: Operand, indices: Operand, *, name: str = "") -> NetworkTensor:
        """Rows of a table [rows, features] by indices."""
        return self.gather(table, indices, name=name)

    # --- parts of these

    def _one(self, op: str, operands: tuple[Any, ...], attrs: dict[str, Any], name: str) -> NetworkTensor:
        (tensor,) = self.apply(op, operands, attrs, name)
        return tensor

    def _indices(self, x: Operand) -> NetworkTensor:
        return self.tensor_of(np.asarray(x, np.int64) if not isinstance(x, (NetworkTensor, np.ndarray)) else x)

    def _image(self, x: Operand) -> NetworkTensor:
        x = self.tensor_of(x)
        if x.rank < 3:
            raise InputError(f"needs an image [batch, channels, space…] of three axes and more, got {x!r}")
        return x

    def _window(self, x: NetworkTensor, kernel: Sequence[Size], stride: Ints, padding: Padding, dilation: Ints) -> dict:
        space = x.rank - 2
        if len(kernel) != space:
            raise InputError(f"needs a window of {space} axes for {x!r}, got {list(kernel)}")
        strides, dilations = _each(stride, space, "stride"), _each(dilation, space, "dilation")
        if padding == "valid":
            pads: tuple[Size, ...] = (0,) * (2 * space)
        elif isinstance(padding, str):
            reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
            totals = [maximum((-(-n // s) - 1) * s + r, n) - n for n, s, r in zip(x.shape[2:], strides, reach)]
            pads = _split(totals, padding)
        else:
            pads = _pads(padding, space)
        return dict(strides=strides, pads=pads, dilations=dilations)


def _factor(size: Size, before: Size) -> float:
    """Returns the scale of a resized axis; 0 if it depends on the sizes, which stands for their quotient."""
    if is_known(size, before):
        return size / before
    factor = exact(size, before)
    return float(factor) if factor is not None and is_known(factor) else 0.0


def _number(size: Size) -> int:
    if not is_known(size):
        raise InputError(f"a number of channels must be known, got {size}")
    return int(size)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise InputError(f"needs an axis between {-rank} and {rank - 1}, got {axis}")
    return axis % max(rank, 1)


def _each(given: Ints, count: int, what: str) -> tuple[int, ...]:
    values = (given,) * count if isinstance(given, (int, np.integer)) else tuple(given)
    if len(values) != count or not all(isinstance(v, (int, np.integer)) for v in values):
        raise InputError(f"{what} must be a number, or one for each of {count} axes, got {given!r}")
    return tuple(map(int, values))


def _pads(padding: Any, space: int) -> tuple[int, ...]:
    """Returns (before…, after…) of each axis."""
    pairs = [
        p if isinstance(p, (tuple, list)) else (p, p)
        for p in ((padding,) * space if isinstance(padding, (int, np.integer)) else padding)
    ]
    if len(pairs) != space or not all(len(p) == 2 and all(isinstance(v, (int, np.integer)) for v in p) for p in pairs):
        raise InputError(f"padding must be {PADDINGS}, here of {space} axes, got {padding!r}")
    return (*(int(b) for b, _ in pairs), *(int(a) for _, a in pairs))


def _split(totals: Sequence[Size], padding: str) -> tuple[Size, ...]:
    if padding not in ("same", "same_upper", "same_lower"):
        raise InputError(f"padding must be {PADDINGS}, got {padding!r}")
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(more + less if padding == "same_lower" else less + more)


def _bounds(part: slice, size: Size) -> tuple[Size, Size, Size]:
    """Returns start, end and step of a slice of an axis of dynamic size; an end of -1 is before the first element."""
    step = 1 if part.step is None else part.step
    first, last = (0, size) if step > 0 else (size - 1, -1)
    start, end = (None if at is None else at + size * (is_known(at) and at < 0) for at in (part.start, part.stop))
    return first if start is None else start, last if end is None else end, step
