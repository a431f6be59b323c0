"""Layers of several operators, or of one with its usual operands and axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.errors import InputError
from pelton.ir.dims import Size, is_known
from pelton.ir.types import BOOL, DType

from .declarations import element_type
from .einsum import einsum
from .layers import Ints, Layers, _axis, _number
from .tensor import NetworkTensor, Operand


class ComposedLayers(Layers):
    """Further layers of networks, which fill in operands that users leave out."""

    # --- elements

    def cast(
        self, x: Operand, to: str | DType, *, saturate: bool = True, round_mode: str = "up", name: str = ""
    ) -> NetworkTensor:
        """x in another element type, by its name, such as "f16" or "i64": floats to integers towards zero, anything to
        bool by `!= 0`."""
        x, to = self.tensor_of(x), element_type(to)
        if DType.STRING in (x.dtype, to):
            raise InputError(f"cast is for numbers and bool, got {x.dtype.value} to {to.value}")
        return self._one("cast", (x,), dict(to=to, saturate=saturate, round_mode=round_mode), name)

    def clip(self, x: Operand, low: Operand = None, high: Operand = None, *, name: str = "") -> NetworkTensor:
        """x within [low, high]; a bound may be left out."""
        x = self.tensor_of(x)
        low, high = (
            x.dtype.numpy.type(end) if x.dtype.is_integer and bound is None else bound
            for bound, end in ((low, x.dtype.lowest), (high, x.dtype.highest))
        )
        return self._one("clip", (x, -np.inf if low is None else low, np.inf if high is None else high), {}, name)

    def scale(
        self, x: Operand, scale: Operand = 1, shift: Operand = 0, power: Operand = 1, *, axis: int = 1, name: str = ""
    ) -> NetworkTensor:
        """(x · scale + shift) ** power; a vector has an element for each along the axis."""
        x = self.tensor_of(x)
        ones = [1] * (x.rank - 1 - _axis(axis, x.rank))
        for op, operand, neutral in (("mul", scale, 1), ("add", shift, 0), ("pow", power, 1)):
            if isinstance(operand, (int, float)) and operand == neutral:
                continue
            by = operand if isinstance(operand, (int, float)) else self.tensor_of(operand)
            if isinstance(by, NetworkTensor) and by.rank == 1:
                by = self.reshape(by, (*by.shape, *ones))
            x = self._one(op, (x, by), {}, name)
        return x

    # --- constants and shapes

    def full(self, value: float, shape: Sequence[Size], dtype: str | DType = "f32", *, name: str = "") -> NetworkTensor:
        """A tensor filled with one number; its sizes may be dynamic."""
        return self.expand(self.constant(value, dtype=dtype), tuple(shape), name=name)

    def iota(self, size: Size, dtype: str | DType = "i64", *, name: str = "") -> NetworkTensor:
        """0, 1, … size − 1."""
        return self._one("iota", (), dict(size=size, dtype=element_type(dtype)), name)

    def shape_of(self, x: Operand, *, name: str = "") -> NetworkTensor:
        """The sizes of x as data, i64[rank]; `x.shape` has them as numbers and expressions, for layers."""
        shape = self.tensor_of(x).shape
        return self._one("sizes", (), dict(values=shape, shape=(len(shape),)), name)

    def stack(self, tensors: Sequence[Operand], axis: int = 0, *, name: str = "") -> NetworkTensor:
        """Tensors of one type joined along a new axis."""
        return self.concat([self.unsqueeze(self.tensor_of(t), axis) for t in tensors], axis, name=name)

    def unstack(self, x: Operand, axis: int = 0) -> tuple[NetworkTensor, ...]:
        """The parts of x along an axis of known size, without it."""
        x = self.tensor_of(x)
        count = _number(x.shape[_axis(axis, x.rank)])
        return tuple(self.squeeze(part, axis) for part in self.split(x, count, axis))

    def tile(self, x: Operand, repeats: Sequence[Size], *, name: str = "") -> NetworkTensor:
        """x repeated along each axis."""
        return self._one("tile", (x,), dict(repeats=tuple(repeats)), name)

    def flip(self, x: Operand, axes: Ints, *, name: str = "") -> NetworkTensor:
        """x with the order of its elements reversed along axes."""
        x = self.tensor_of(x)
        along = tuple(_axis(a, x.rank) for a in ((axes,) if isinstance(axes, int) else axes))
        starts, backwards = tuple(x.shape[a] - 1 for a in along), (-1,) * len(along)
        return self.slice(x, starts=starts, ends=backwards, axes=along, steps=backwards, name=name)

    def roll(self, x: Operand, shift: int, axis: int, *, name: str = "") -> NetworkTensor:
        """x moved along an axis by `shift` elements, those at the end to the beginning, as numpy.roll."""
        x = self.tensor_of(x)
        along = _axis(axis, x.rank)
        size = x.shape[along]
        end = shift % size if is_known(size) and size else shift  # elements that move to the beginning
        if end == 0:
            return x
        front = size - end if end > 0 else -end
        return self.concat(self.split(x, (front, size - front), along)[::-1], along, name=name)

    def upsample(self, x: Operand, factor: Ints, mode: str = "nearest", *, name: str = "") -> NetworkTensor:
        """An image enlarged by whole factors, its elements repeated or interpolated."""
        return self.resize(x, scale=factor, mode=mode, name=name)

    def reverse_sequence(
        self, x: Operand, lengths: Operand, *, time_axis: int = 0, batch_axis: int = 1, name: str = ""
    ) -> NetworkTensor:
        """Each sequence of x reversed up to its length, i64[batch]; later elements stay."""
        x = self.tensor_of(x)
        time, batch = _axis(time_axis, x.rank), _axis(batch_axis, x.rank)
        steps = self.reshape(self.iota(x.shape[time]), [-1 if a == time else 1 for a in range(x.rank)])
        ends = self.reshape(self.cast(lengths, "i64"), [-1 if a == batch else 1 for a in range(x.rank)])
        places = self.where(steps < ends, ends - 1 - steps, steps)
        return self._one("gather_elements", (x, self.expand(places, x.shape)), dict(axis=time), name)

    # --- reductions

    def _reduced(self, op: str, x: Operand, axes: Ints | None, keepdims: bool, name: str) -> NetworkTensor:
        x = self.tensor_of(x)
        if axes is None:
            axes = range(x.rank)
        along = (axes,) if isinstance(axes, int) else tuple(axes)
        return self._one(op, (x,), dict(axes=along, keepdims=keepdims), name)

    def reduce_sum(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """Σ x over axes, all by default."""
        return self._reduced("reduce_sum", x, axes, keepdims, name)

    def reduce_mean(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """The mean of x over axes, all by default."""
        return self._reduced("reduce_mean", x, axes, keepdims, name)

    def reduce_max(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """The largest element of x over axes, all by default."""
        return self._reduced("reduce_max", x, axes, keepdims, name)

    def reduce_min(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """The smallest element of x over axes, all by default."""
        return self._reduced("reduce_min", x, axes, keepdims, name)

    def reduce_prod(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """Π x over axes, all by default."""
        return self._reduced("reduce_prod", x, axes, keepdims, name)

    def reduce_l1(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """Σ |x| over axes, all by default."""
        return self._reduced("reduce_l1", x, axes, keepdims, name)

    def reduce_l2(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """√Σ x² over axes, all by default."""
        return self._reduced("reduce_l2", x, axes, keepdims, name)

    def reduce_sum_square(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """Σ x² over axes, all by default."""
        return self._reduced("reduce_sum_square", x, axes, keepdims, name)

    def reduce_log_sum(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """log Σ x over axes, all by default."""
        return self._reduced("reduce_log_sum", x, axes, keepdims, name)

    def reduce_log_sum_exp(
        self, x: Operand, axes: Ints | None = None, keepdims: bool = True, *, name: str = ""
    ) -> NetworkTensor:
        """log Σ exp(x) over axes, all by default."""
        return self._reduced("reduce_log_sum_exp", x, axes, keepdims, name)

    # --- products

    def einsum(self, equation: str, *operands: Operand, name: str = "") -> NetworkTensor:
        """Sums of products by Einstein's convention, such as "bik,bkj->bij"; letters, no ellipsis."""
        return einsum(self, equation, [self.tensor_of(x) for x in operands], name)

    def attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        mask: Operand = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        name: str = "",
    ) -> NetworkTensor:
        """softmax(q · kᵀ · scale + mask) · v with [..., heads, rows, depth]; causal: row i reads columns 0 to i.

        mask: added, or a bool that is true where a row may read. scale: 1 / √depth by default. Queries may have more
        heads than keys: each key then serves several in a row.
        """
        q, k, v = (self.tensor_of(t) for t in (q, k, v))
        groups = 1
        if q.rank == k.rank == v.rank >= 3 and is_known(q.shape[-3], k.shape[-3]) and k.shape[-3] > 1:
            groups = q.shape[-3] // k.shape[-3]
        k, v = (self._repeated(t, groups) for t in (k, v))
        if mask is None:
            mask = np.zeros((), q.dtype.numpy)
        elif isinstance(mask, NetworkTensor) and mask.dtype is BOOL or getattr(mask, "dtype", None) == np.bool_:
            mask = self._one("where", (mask, *(np.array(n, q.dtype.numpy) for n in (0, -np.inf))), {}, "")
        depth = q.shape[-1]
        if scale is None:
            scale = 1 / math.sqrt(_number(depth))
        return self._one("attention", (q, k, v, mask), dict(scale=float(scale), causal=causal), name)

    def _repeated(self, x: NetworkTensor, groups: int) -> NetworkTensor:
        """Repeats each head as often as it is read, one after the other."""
        if groups == 1:
            return x
        *batch, heads, rows, depth = x.shape
        wide = self.expand(self.reshape(x, (*batch, heads, 1, rows, depth)), (*batch, heads, groups, rows, depth))
        return self.reshape(wide, (*batch, heads * groups, rows, depth))

    # --- normalization

    def layer_norm(
        self,
        x: Operand,
        scale: Operand = None,
        bias: Operand = None,
        *,
        axis: int = -1,
        epsilon: float = 1e-5,
        name: str = "",
    ) -> NetworkTensor:
        """(x − mean) / √(variance + epsilon) · scale + bias over the axes from `axis` on."""
        x = self.tensor_of(x)
        shape = x.shape[_axis(axis, x.rank) :]
        scale, bias = self._filled(scale, 1, shape, x), self._filled(bias, 0, shape, x)
        return self._one("layer_norm", (x, scale, bias), dict(axis=axis, epsilon=epsilon), name)

    def rms_norm(
        self, x: Operand, scale: Operand = None, *, axis: int = -1, epsilon: float = 1e-5, name: str = ""
    ) -> NetworkTensor:
        """x / √(mean of x² + epsilon) · scale over the axes from `axis` on."""
        x = self.tensor_of(x)
        scale = self._filled(scale, 1, x.shape[_axis(axis, x.rank) :], x)
        return self._one("rms_norm", (x, scale), dict(axis=axis, epsilon=epsilon), name)

    def instance_norm(
        self, x: Operand, scale: Operand = None, bias: Operand = None, *, epsilon: float = 1e-5, name: str = ""
    ) -> NetworkTensor:
        """Each channel of each image by its own mean and variance, then scale and bias [channels]."""
        x = self._image(x)
        scale, bias = self._filled(scale, 1, x.shape[1:2], x), self._filled(bias, 0, x.shape[1:2], x)
        return self._one("instance_norm", (x, scale, bias), dict(epsilon=epsilon), name)

    def group_norm(
        self,
        x: Operand,
        scale: Operand = None,
        bias: Operand = None,
        *,
        groups: int,
        epsilon: float = 1e-5,
        name: str = "",
    ) -> NetworkTensor:
        """Each group of channels of each image by its own mean and variance, then scale and bias [channels]."""
        x = self.tensor_of(x)
        scale, bias = self._filled(scale, 1, x.shape[1:2], x), self._filled(bias, 0, x.shape[1:2], x)
        return self._one("group_norm", (x, scale, bias), dict(groups=groups, epsilon=epsilon), name)

    def l2_normalize(self, x: Operand, axis: Ints = -1, *, epsilon: float = 1e-12, name: str = "") -> NetworkTensor:
        """x / max(√Σ x², epsilon) along an axis, or several."""
        x = self.tensor_of(x)
        norm = self._reduced("reduce_l2", x, axis, True, "")
        return self._one("div", (x, self.maximum(norm, epsilon)), {}, name)

    def _filled(self, given: Operand, number: float, shape: Sequence[Size], x: NetworkTensor) -> Operand:
        """Returns an operand, or a tensor of this number with x's type in this shape."""
        return np.full([_number(d) for d in shape], number, x.dtype.numpy) if given is None else given

    # --- picking

    def top_k(
        self,
        x: Operand,
        k: Size,
        axis: int = -1,
        *,
        largest: bool = True,
        sorted: bool = True,
        name: str = "",
    ) -> tuple[NetworkTensor, ...]:
        """The k largest (or smallest) elements along an axis and their indices, in order; the first ones of equals."""
        return self.apply("top_k", (x,), dict(k=k, axis=axis, largest=largest, sorted=sorted), name)

    # --- recurrent layers

    def lstm(
        self,
        x: Operand,
        w: Operand,
        r: Operand,
        b: Operand = None,
        initial_h: Operand = None,
        initial_c: Operand = None,
        p: Operand = None,
        *,
        name: str = "",
        **attrs: Any,
    ) -> tuple[NetworkTensor, ...]:
        """An LSTM over x [time, batch, inputs] with w [directions, 4 · hidden, inputs], r [directions, 4 · hidden,
        hidden], gates i, o, f, c; b [directions, 8 · hidden], states [directions, batch, hidden] and peepholes p
        [directions, 3 · hidden] are zeros by default. Returns all outputs [time, directions, batch, hidden], and the
        last h and c. Attributes are those of ONNX's LSTM: direction, activations, clip, …."""
        x, r, hidden, state = self._recurrent(x, r, attrs)
        b, h, c, p = (
            self._zeros(operand, shape, x)
            for operand, shape in (
                (b, (state[0], 8 * hidden)),
                (initial_h, state),
                (initial_c, state),
                (p, (state[0], 3 * hidden)),
            )
        )
        return self.apply("lstm", (x, w, r, b, h, c, p), attrs, name)

    def gru(
        self,
        x: Operand,
        w: Operand,
        r: Operand,
        b: Operand = None,
        initial_h: Operand = None,
        *,
        name: str = "",
        **attrs: Any,
    ) -> tuple[NetworkTensor, ...]:
        """A GRU over x [time, batch, inputs] with w [directions, 3 · hidden, inputs], r [directions, 3 · hidden,
        hidden], gates z, r, n, and b [directions, 6 · hidden]; returns all outputs, and the last state. Attributes are
        those of ONNX's GRU: direction, linear_before_reset, activations, clip, …."""
        x, r, hidden, state = self._recurrent(x, r, attrs)
        b, h = self._zeros(b, (state[0], 6 * hidden), x), self._zeros(initial_h, state, x)
        return self.apply("gru", (x, w, r, b, h), attrs, name)

    def rnn(
        self,
        x: Operand,
        w: Operand,
        r: Operand,
        b: Operand = None,
        initial_h: Operand = None,
        *,
        name: str = "",
        **attrs: Any,
    ) -> tuple[NetworkTensor, ...]:
        """h′ = f(x · wᵀ + h · rᵀ + b) over x [time, batch, inputs], f tanh by default (`activations`); returns all
        outputs, and the last state. Attributes are those of ONNX's RNN."""
        x, r, hidden, state = self._recurrent(x, r, attrs)
        b, h = self._zeros(b, (state[0], 2 * hidden), x), self._zeros(initial_h, state, x)
        return self.apply("rnn", (x, w, r, b, h), attrs, name)

    def _recurrent(
        self, x: Operand, r: Operand, attrs: dict[str, Any]
    ) -> tuple[NetworkTensor, NetworkTensor, int, tuple[Size, ...]]:
        """Returns x and r, the number of units, which becomes an attribute, and the shape of a state."""
        x, r = self.tensor_of(x), self.tensor_of(r)
        if x.rank != 3 or r.rank != 3:
            raise InputError(
                f"needs x [time, batch, inputs] and r [directions, gates · hidden, hidden], got {x!r}, {r!r}"
            )
        hidden = attrs.setdefault("hidden", _number(r.shape[2]))
        return x, r, hidden, (r.shape[0], x.shape[1], hidden)

    def _zeros(self, given: Operand, shape: Sequence[Size], x: NetworkTensor) -> Operand:
        if given is not None:
            return given
        return np.zeros([int(d) for d in shape], x.dtype.numpy) if is_known(*shape) else self.full(0, shape, x.dtype)
