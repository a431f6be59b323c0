"""Recognition: activations, softmax, norms and attention, from the parts that exporters write them in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import broadcast_shapes
from pelton.ops.op import Term

from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import (
    array,
    elements,
    is_constant,
    is_filled_with,
    producer_of,
    require,
    rule,
    scalar,
    when,
)
from pelton.ops.words import (
    add,
    attention,
    clip,
    div,
    erf,
    exp,
    expand,
    gelu,
    gelu_tanh,
    greater,
    greater_equal,
    group_norm,
    hard_sigmoid,
    hard_swish,
    instance_norm,
    iota,
    layer_norm,
    leaky_relu,
    less,
    less_equal,
    log,
    log_softmax,
    matmul,
    maximum,
    mish,
    mul,
    neg,
    pow_,
    prelu,
    reciprocal,
    reduce_max,
    reduce_mean,
    reduce_sum,
    reshape,
    rms_norm,
    sigmoid,
    softmax,
    softplus,
    sqrt,
    sub,
    swish,
    tanh,
    transpose,
    trilu,
    where,
)

X, ROW, IMAGE = "f32[2, 3, 8]", "=f32[8]", "f32[2, 4, 3, 5]"
LITTLE = -1e4  # e to the power of this is 0, even where scores differ by thousands
NOTHING = -1e8  # scores vanish beside it in f32, so that rows of which nothing is seen stay means of all


# --- activations


@rule(lambda x: reciprocal(add(exp(neg(x)), 1)), examples=[dict(x=X)])
def sigmoid_parts(x):
    """1 / (1 + e⁻ˣ)"""
    return sigmoid(x)


@rule(lambda x: log(add(exp(x), 1)), examples=[dict(x=X)])
def softplus_parts(x):
    """log(1 + eˣ)"""
    return softplus(x)


@rule(
    lambda x: mul(x, sigmoid(x)),
    lambda x: div(x, add(exp(neg(x)), 1)),
    lambda x, a: mul(x, sigmoid(mul(x, a))),
    examples=[dict(x=X, a=1.702)],
)
def swish_parts(x, a=None):
    """x · sigmoid(α · x)"""
    return swish(x, alpha=1.0 if a is None else float(scalar(a)))


@rule(lambda x: mul(x, tanh(softplus(x))), examples=[dict(x=X)])
def mish_parts(x):
    """x · tanh(softplus(x))"""
    return mish(x)


@rule(
    lambda x, a, b: clip(add(mul(x, a), b), 0, 1),
    lambda x, b, d: div(clip(add(x, b), 0, d), d),
    lambda x, b: mul(clip(add(x, b), 0, 6), 1 / 6),
    examples=[dict(x=X, a=0.2, b=0.5), dict(x=X, b=3.0, d=6.0)],
)
def hard_sigmoid_parts(x, b, a=None, d=None):
    """α · x + β, limited to 0 … 1; a limit d is taken out of a quotient by d."""
    when(x.type.dtype.is_float)
    if a is not None:
        return hard_sigmoid(x, alpha=float(scalar(a)), beta=float(scalar(b)))
    limit = 6.0 if d is None else float(scalar(d))
    when(limit > 0)
    return hard_sigmoid(x, alpha=1 / limit, beta=scalar(b) / limit)


@rule(lambda x: mul(x, hard_sigmoid(x, alpha=ANY, beta=ANY)), examples=[dict(x=X, alpha=1 / 6, beta=0.5)])
def hard_swish_parts(x, alpha, beta):
    """x · hard_sigmoid(x), with 1/6 and 1/2"""
    when(abs(alpha * 6 - 1) < 1e-6 and beta == 0.5)
    return hard_swish(x)


@rule(
    lambda x: div(mul(x, clip(add(x, 3), 0, 6)), 6),
    lambda x: mul(mul(x, clip(add(x, 3), 0, 6)), 1 / 6),
    lambda x: mul(mul(x, 1 / 6), clip(add(x, 3), 0, 6)),
    examples=[dict(x=X)],
)
def hard_swish_clip(x):
    """x · clip(x + 3, 0, 6) / 6"""
    when(x.type.dtype.is_float)
    return hard_swish(x)


@rule(lambda x, a: maximum(x, mul(x, a)), lambda x, a: prelu(x, a), examples=[dict(x=X, a=0.1)])
def leaky_relu_parts(x, a, node):
    """max(x, α · x), or a PReLU with one slope for all"""
    when(x.type.dtype.is_float)
    slope = float(scalar(a))
    when(node.op is prelu or 0 <= slope <= 1)
    return leaky_relu(x, alpha=slope)


def _halves(x, gate):
    """The spellings of 0.5 · x · gate."""
    return mul(mul(x, gate), 0.5), mul(mul(x, 0.5), gate), mul(x, mul(gate, 0.5)), div(mul(x, gate), 2)


def _spellings(*parts: Callable, whole: Callable, count: int) -> list[Callable]:
    return [lambda x, part=part, k=k: whole(x, part(x))[k] for part in parts for k in range(count)]


@rule(
    *_spellings(
        lambda x: add(erf(mul(x, math.sqrt(0.5))), 1),
        lambda x: add(erf(div(x, math.sqrt(2))), 1),
        whole=_halves,
        count=4,
    ),
    examples=[dict(x=X)],
)
def gelu_parts(x):
    """0.5 · x · (1 + erf(x / √2))"""
    return gelu(x)


_CUBES = (lambda x: mul(mul(x, x), x), lambda x: pow_(x, 3))


@rule(
    *_spellings(
        *[
            lambda x, cube=cube: add(tanh(mul(add(x, mul(cube(x), 0.044715)), math.sqrt(2 / math.pi))), 1)
            for cube in _CUBES
        ],
        lambda x: add(tanh(mul(mul(x, math.sqrt(2 / math.pi)), add(mul(mul(x, 0.044715), x), 1))), 1),
        lambda x: add(tanh(mul(mul(x, math.sqrt(2 / math.pi)), add(mul(mul(x, x), 0.044715), 1))), 1),
        whole=_halves,
        count=4,
    ),
    examples=[dict(x=X)],
)
def gelu_tanh_parts(x):
    """0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))"""
    return gelu_tanh(x)


# --- softmax


def _shares(e, axes):
    """The spellings of e / Σ e."""
    total = reduce_sum(e, axes=axes)
    return div(e, total), mul(e, reciprocal(total))


@rule(
    *[lambda x, *, axes, k=k: _shares(exp(sub(x, reduce_max(x, axes=axes))), axes)[k] for k in range(2)],
    *[lambda x, *, axes, k=k: _shares(exp(x), axes)[k] for k in range(2)],
    examples=[dict(x=X, axes=(2,))],
)
def softmax_parts(x, axes):
    """eˣ / Σ eˣ, with or without the maximum taken off first."""
    when(len(axes) == 1)
    return softmax(x, axis=axes[0])


@rule(lambda x: log(softmax(x, axis=ANY)), examples=[dict(x=X, axis=1)])
def log_softmax_parts(x, axis):
    """log(softmax(x))"""
    return log_softmax(x, axis=axis)


# --- norms


def _over_root(x, power, epsilon):
    """The spellings of x / √(power + ε)."""
    biased = add(power, epsilon)
    return div(x, sqrt(biased)), mul(x, reciprocal(sqrt(biased))), mul(x, pow_(biased, -0.5)), div(x, pow_(biased, 0.5))


def _layer(x, epsilon, axes, square, k):
    centred = sub(x, reduce_mean(x, axes=axes))
    return _over_root(centred, reduce_mean(square(centred), axes=axes), epsilon)[k]


_SQUARES = (lambda d: mul(d, d), lambda d: pow_(d, 2))


def _first_of_last(x: Value, axes: tuple[int, ...]) -> int:
    """The first of the axes, which have to be the last ones of x."""
    when(sorted(axes) == list(range(x.type.rank - len(axes), x.type.rank)))
    return min(axes)


@rule(
    *[
        lambda x, eps, *, axes, square=square, k=k: _layer(x, eps, axes, square, k)
        for square in _SQUARES
        for k in range(4)
    ],
    examples=[dict(x=X, eps=1e-5, axes=(2,)), dict(x=X, eps=1e-3, axes=(1, 2)), dict(x=IMAGE, eps=1e-5, axes=(2, 3))],
)
def layer_norm_parts(x, eps, axes):
    """(x − mean) / √(variance + ε), over all of space an instance norm; scale and bias join by rules of their own."""
    axis, epsilon = _first_of_last(x, axes), float(scalar(eps))
    if axis == 2 and x.type.rank > 3:
        ones = np.ones(x.type.shape[1])
        return instance_norm(x, ones, 0 * ones, epsilon=epsilon)
    ones = np.ones(x.type.shape[axis:])
    return layer_norm(x, ones, 0 * ones, axis=axis, epsilon=epsilon)


def _scaled_root(x, eps, axes, square):
    mean = reduce_mean(x, axes=axes)
    centred = sub(x, mean)
    return mean, reciprocal(sqrt(add(reduce_mean(square(centred), axes=axes), eps)))


def _affine_first(x, eps, g, b, axes, square):
    """x · (g / √(variance + ε)) + (b − mean · (g / √(variance + ε))), the way of Keras."""
    mean, root = _scaled_root(x, eps, axes, square)
    factor = mul(root, g)
    return add(mul(x, factor), sub(b, mul(mean, factor)))


@rule(
    *[lambda x, eps, g, b, *, axes, square=square: _affine_first(x, eps, g, b, axes, square) for square in _SQUARES],
    examples=[dict(x=X, eps=1e-5, g=ROW, b=ROW, axes=(2,))],
)
def layer_norm_affine_first(x, eps, g, b, axes):
    """x · f + (bias − mean · f), with the scale and the root in the factor f."""
    axis = _first_of_last(x, axes)
    return layer_norm(x, _spread(g, x, axis), _spread(b, x, axis), axis=axis, epsilon=float(scalar(eps)))


@rule(
    *[
        lambda x, eps, *, axes, square=square, k=k: _over_root(x, reduce_mean(square(x), axes=axes), eps)[k]
        for square in _SQUARES
        for k in range(4)
    ],
    examples=[dict(x=X, eps=1e-6, axes=(2,))],
)
def rms_norm_parts(x, eps, axes):
    """x / √(mean x² + ε)"""
    axis = _first_of_last(x, axes)
    return rms_norm(x, np.ones(x.type.shape[axis:]), axis=axis, epsilon=float(scalar(eps)))


def _spread(c: Value, x: Value, axis: int) -> Any:
    """A factor or shift of a norm over the last axes, in their shape; what varies elsewhere is none."""
    shape = x.type.shape[axis:]
    when(c.type.rank <= len(shape) and all(d in (1, n) for d, n in zip(reversed(c.type.shape), reversed(shape))))
    return (
        np.broadcast_to(array(c), shape) if is_constant(c) else c if c.type.shape == shape else expand(c, shape=shape)
    )


def _per_channel(c: Value, x: Value) -> Any:
    """A factor or shift per channel of x, as a vector; what varies elsewhere is none."""
    shape = (*[1] * (x.type.rank - c.type.rank), *c.type.shape)
    when(len(shape) == x.type.rank and shape[1] in (1, x.type.shape[1]) and math.prod(shape) == shape[1])
    if is_constant(c):
        return np.broadcast_to(array(c).reshape(-1), x.type.shape[1:2])
    when(shape[1] == x.type.shape[1])
    return c if c.type.rank == 1 else reshape(c, shape=x.type.shape[1:2])


def _scale(norm: Callable[..., Term], g: Value, b: Value, c: Value, factor: Any) -> Term:
    """A norm, of scale g and bias b so far, times a factor: c in the shape that the norm wants."""
    if is_filled_with(g, 1) and is_filled_with(b, 0):
        return norm(factor, b)
    when(is_constant(g, b, c))
    return norm(array(g) * factor, array(b) * factor)


def _shift(norm: Callable[..., Term], g: Value, b: Value, c: Value, shift: Any) -> Term:
    if is_filled_with(b, 0):
        return norm(g, shift)
    when(is_constant(b, c))
    return norm(g, array(b) + shift)


_PLAIN = dict(g=np.ones(8, np.float32), b=np.zeros(8, np.float32))
_LAYERS = [dict(_PLAIN, x=X, c="f32[8]", axis=2, epsilon=1e-3), dict(x=X, g=ROW, b=ROW, c=0.5, axis=2)]
_CHANNELS = [
    dict(x=IMAGE, g="=f32[4]", b="=f32[4]", c="=f32[1, 4, 1, 1]", groups=2),
    dict(x=IMAGE, g=np.ones(4, np.float32), b=np.zeros(4, np.float32), c="f32[4, 1, 1]", groups=2),
]
_CHANNEL_NORMS = (instance_norm, group_norm)


@rule(lambda x, g, b, c, **at: mul(layer_norm(x, g, b, **at), c), examples=_LAYERS)
def layer_norm_scale(x, g, b, c, axis, epsilon):
    """A factor behind a layer norm is one of its scale and its bias."""
    return _scale(lambda g, b: layer_norm(x, g, b, axis=axis, epsilon=epsilon), g, b, c, _spread(c, x, axis))


@rule(lambda x, g, b, c, **at: add(layer_norm(x, g, b, **at), c), examples=_LAYERS)
def layer_norm_shift(x, g, b, c, axis, epsilon):
    """A shift behind a layer norm joins its bias."""
    return _shift(lambda g, b: layer_norm(x, g, b, axis=axis, epsilon=epsilon), g, b, c, _spread(c, x, axis))


@rule(*[lambda x, g, b, c, norm=norm, **at: mul(norm(x, g, b, **at), c) for norm in _CHANNEL_NORMS], examples=_CHANNELS)
def channel_norm_scale(x, g, b, c, **at):
    """A factor per channel behind an instance or group norm is one of its scale and its bias."""
    norm = group_norm if "groups" in at else instance_norm
    return _scale(lambda g, b: norm(x, g, b, **at), g, b, c, _per_channel(c, x))


@rule(*[lambda x, g, b, c, norm=norm, **at: add(norm(x, g, b, **at), c) for norm in _CHANNEL_NORMS], examples=_CHANNELS)
def channel_norm_shift(x, g, b, c, **at):
    """A shift per channel behind an instance or group norm joins its bias."""
    norm = group_norm if "groups" in at else instance_norm
    return _shift(lambda g, b: norm(x, g, b, **at), g, b, c, _per_channel(c, x))


@rule(
    lambda x, g, c, **at: mul(rms_norm(x, g, **at), c),
    examples=[dict(x=X, g=np.ones(8, np.float32), c="f32[8]", axis=2), dict(x=X, g=ROW, c=ROW, axis=2)],
)
def rms_norm_scale(x, g, c, axis, epsilon):
    """A factor behind an RMS norm joins its scale."""
    factor = _spread(c, x, axis)
    if not is_filled_with(g, 1):
        when(is_constant(g, c))
        factor = array(g) * factor
    return rms_norm(x, factor, axis=axis, epsilon=epsilon)


@rule(
    lambda x, g, b, *, grouped, shape, epsilon: reshape(
        instance_norm(reshape(x, shape=grouped), g, b, epsilon=epsilon), shape=shape
    ),
    examples=[
        dict(x="f32[2, 6, 3, 3]", g="=f32[3]", b="=f32[3]", grouped=(2, 3, 18), shape=(2, 6, 3, 3), epsilon=1e-5)
    ],
)
def group_norm_parts(x, g, b, grouped, shape, epsilon):
    """Groups of channels laid side by side, normalised as instances."""
    when(
        shape == x.type.shape
        and len(shape) >= 2
        and grouped[0] == shape[0]
        and shape[1] % grouped[1] == 0
        and is_constant(g, b)
    )
    scale, bias = (np.repeat(array(c), shape[1] // grouped[1]) for c in (g, b))
    return group_norm(x, scale, bias, groups=grouped[1], epsilon=epsilon)


# --- attention


def _scores(q, kt, c, d):
    """The spellings of q · kᵀ, times a number, by a number."""
    product = matmul(q, kt)
    return product, mul(product, c), div(product, d)


def _attention(
    q: Value, kt: Value, v: Value, mask: Any, shape: tuple[int, ...], c: Value | None, d: Value | None, axis: int
) -> Term:
    """The composite; `shape` is that of the mask."""
    rank = q.type.rank
    when(rank == kt.type.rank == v.type.rank == axis + 1 >= 2)
    scores = (*broadcast_shapes(q.type.shape[:-2], kt.type.shape[:-2]), q.type.shape[-2], kt.type.shape[-1])
    when(broadcast_shapes(scores, shape) == scores)
    scale = 1.0 if c is None else float(scalar(c))
    if d is not None:
        when(scalar(d) != 0)
        scale = 1 / float(scalar(d))
    k = transpose(kt, perm=(*range(rank - 2), rank - 1, rank - 2))
    return attention(q, k, v, mask, scale=scale)


_QKV = dict(q="f32[2, 3, 5, 8]", kt="f32[2, 3, 8, 7]", v="f32[2, 3, 7, 4]", m="f32[2, 1, 1, 7]", c=0.25, d=4.0, axis=3)
_READY = dict(q="f32[2, 3, 5, 8]", k="f32[2, 3, 7, 8]", v="f32[2, 3, 7, 4]", m=0.0, scale=0.5)


@rule(
    *[lambda q, kt, v, c, d, *, axis, k=k: matmul(softmax(_scores(q, kt, c, d)[k], axis=axis), v) for k in range(3)],
    *[
        lambda q, kt, v, m, c, d, *, axis, k=k: matmul(softmax(add(_scores(q, kt, c, d)[k], m), axis=axis), v)
        for k in range(3)
    ],
    examples=[_QKV],
)
def attention_parts(q, kt, v, axis, m=None, c=None, d=None):
    """softmax(scale · q·kᵀ + mask) · v"""
    return _attention(q, kt, v, 0.0, (), c, d, axis) if m is None else _attention(q, kt, v, m, m.type.shape, c, d, axis)


@rule(
    *[
        lambda q, kt, v, keep, low, c, d, *, axis, k=k: matmul(
            softmax(where(keep, _scores(q, kt, c, d)[k], low), axis=axis), v
        )
        for k in range(3)
    ],
    inexact=True,
    examples=[dict(_QKV, keep=np.tri(5, 7, dtype=bool), low=-1e9)],
    rejections=[(dict(_QKV, keep="bool[5, 7]", low=-3.0), "too small")],
)
def attention_where(q, kt, v, keep, low, axis, c=None, d=None):
    """What is masked by a choice is masked by adding: e to the power of so little is nothing."""
    sees = is_constant(keep) and array(keep).any(axis=-1).all()
    require(scalar(low) <= (LITTLE if sees else NOTHING), f"a mask of {scalar(low)} is too small to leave nothing")
    return _attention(q, kt, v, where(keep, np.zeros_like(elements(low)), low), keep.type.shape, c, d, axis)


@rule(
    *[
        lambda q, k, v, m, c, at=at, **how: attention(*at(q, k, c), v, m, **how)
        for at in (
            lambda q, k, c: (mul(q, c), k),
            lambda q, k, c: (q, mul(k, c)),
            lambda q, k, c: (q, transpose(mul(k, c), perm=ANY)),
        )
    ],
    examples=[dict(_READY, c=0.5), dict(_READY, c=0.5, perm=(0, 1, 2, 3))],
)
def attention_scale(q, k, v, m, c, scale, causal, perm=None):
    """A factor of the queries or the keys is one of the scores."""
    return attention(q, transpose(k, perm=perm) if perm else k, v, m, scale=scale * float(scalar(c)), causal=causal)


def _number(v: Value) -> float | None:
    """What all elements of a value are, where that is seen."""
    maker = producer_of(v)
    held = maker.inputs[0] if maker is not None and maker.op in (expand, reshape) else v
    return (
        array(held).flat[0].item()
        if is_constant(held) and held.type.size != 0 and is_filled_with(held, array(held).flat[0])
        else None
    )


def _places(v: Value, axis: int) -> bool:
    """Whether a value is 0, 1, … along an axis."""
    maker = producer_of(v)
    if maker is not None and maker.op is reshape:
        return v.type.shape[axis] == v.type.size and _places(maker.inputs[0], -1)
    return maker is not None and maker.op is iota and axis == -1


# op → which operand has the columns; the other one has the rows
_AHEAD, _BEHIND = {greater: 0, less: 1}, {less_equal: 0, greater_equal: 1}


def _tells(v: Value, ahead: bool) -> bool:
    """Whether a choice is true for what lies ahead of each row, or for the rest."""
    maker = producer_of(v)
    if maker is None:
        return False
    if maker.op in (reshape, expand):
        return maker.inputs[0].type.shape[-2:] == v.type.shape[-2:] and _tells(maker.inputs[0], ahead)
    if maker.op is trilu:
        return (
            maker.attrs == ({"k": 1, "upper": True} if ahead else {"k": 0, "upper": False})
            and _number(maker.inputs[0]) == 1
        )
    columns = (_AHEAD if ahead else _BEHIND).get(maker.op)
    return columns is not None and _places(maker.inputs[columns], -1) and _places(maker.inputs[1 - columns], -2)


def _hides_ahead(v: Value, rows: int, columns: int) -> bool:
    """Whether a mask hides what lies ahead of each row, and nothing else."""
    if v.type.shape[-2:] != (rows, columns) or rows != columns or rows == 1:
        return False
    if is_constant(v):
        mask, behind = array(v), np.tri(rows, columns, dtype=bool)
        return bool((mask[..., behind] == 0).all() and (mask[..., ~behind] <= LITTLE).all())
    maker = producer_of(v)
    if maker is None:
        return False
    if maker.op in (reshape, expand):
        return _hides_ahead(maker.inputs[0], rows, columns)
    if maker.op is trilu:
        filled = _number(maker.inputs[0])
        return maker.attrs == {"k": 1, "upper": True} and filled is not None and filled <= LITTLE
    if maker.op is not where or maker.inputs[0].type.shape[-2:] != (rows, columns):
        return False
    low, high = map(_number, maker.inputs[1:])
    return (
        low is not None
        and high is not None
        and (
            _tells(maker.inputs[0], True)
            and low <= LITTLE
            and high == 0
            or _tells(maker.inputs[0], False)
            and low == 0
            and high <= LITTLE
        )
    )


_SQUARE = dict(_READY, k="f32[2, 3, 5, 8]", v="f32[2, 3, 5, 4]")
_ZERO, _LOW = np.array(0, np.float32), np.array(-1e9, np.float32)
_ALL_LOW = expand(_LOW, shape=(5, 5))
_MAY = reshape(trilu(expand(np.array(True), shape=(5, 5)), k=0, upper=False), shape=(1, 1, 5, 5))
_MAY_NOT = greater(iota(size=5), reshape(iota(size=5), shape=(5, 1)))


@rule(
    lambda q, k, v, m, *, scale: attention(q, k, v, m, scale=scale),
    inexact=True,
    examples=[
        dict(_SQUARE, m=np.triu(np.full((1, 5, 5), -1e9, np.float32), 1)),
        dict(_SQUARE, m=trilu(_ALL_LOW, k=1)),
        dict(_SQUARE, m=where(_MAY, _ZERO, _LOW)),
        dict(_SQUARE, m=where(_MAY_NOT, _LOW, _ZERO)),
    ],
)
def attention_causal(q, k, v, m, scale):
    """A mask that hides what lies ahead, and nothing else."""
    when(_hides_ahead(m, q.type.shape[-2], k.type.shape[-2]))
    return attention(q, k, v, 0.0, scale=scale, causal=True)
