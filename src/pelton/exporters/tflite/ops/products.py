"""Writers of matrix products, softmax and the normalization of neighboring channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import F32

from pelton.ops import words

from ..forms import Perm, channels_last, identity
from ..fusion import takes_weights
from ..tensors import NoForm, Scaling
from ..writing import TFLiteWriting, writes
from .windows import bias_of, weights_of


@writes("matmul")
def matmul(w: TFLiteWriting) -> None:
    for name in ("accumulate", "to", "a_zero", "b_zero"):
        if w.attrs[name]:
            raise NoForm("TFLite's products of plain integers are not written")
    a, b = w.node.inputs
    if w.output.dtype is not F32:
        raise NoForm(f"TFLite's products are of f32, got {w.output.dtype.value}")
    if takes_weights(w.model, w.node):
        _fully_connected(w, a, b)
    else:
        _batched(w, a, b)


def _fully_connected(w: TFLiteWriting, a: Value, b: Value) -> None:
    """Writes x · weights, x in any form with the summed axis last."""
    rank = a.type.rank
    perm = w.model.native(a)
    perm = perm if perm[-1] == rank - 1 else identity(rank)
    x = w.tensor(a, perm)
    weights, scales = weights_of(w, b, (1, 0), 1)
    bias = bias_of(w, w.end.bias, x, scales, b.type.shape[1]) if w.end.bias or scales is not None else None
    options: dict[str, Any] = dict(keep_num_dims=rank > 2, activation=0)
    inputs = [x, weights] if bias is None else [x, weights, bias]
    w.result("FULLY_CONNECTED", inputs, perm, "FullyConnectedOptions", **options)


def _batched(w: TFLiteWriting, a: Value, b: Value) -> None:
    model, rank = w.model, max(2, w.output.rank, a.type.rank, b.type.rank)
    rows, columns = a.type.rank > 1, b.type.rank > 1
    if not rows:
        a = _reshaped(w, a, (1, *a.type.shape))
    if not columns:
        b = _reshaped(w, b, (*b.type.shape, 1))
    if rank > 5:
        raise NoForm(f"TFLite's BATCH_MATMUL has up to 5 axes, got {rank}")
    tensors, swapped = [], []
    for v in (a, b):
        own = v.type.rank
        flipped: Perm = (*range(own - 2), own - 1, own - 2)
        swapped.append(model.native(v) == flipped and model.known(v) is None)
        tensors.append(w.tensor(v, flipped if swapped[-1] else None))
    if w.integers and any(t.scaling is None or len(t.scaling.scale) > 1 or t.data is not None for t in tensors):
        raise NoForm("TFLite's BATCH_MATMUL of integers has two computed operands")
    options: dict[str, Any] = dict(adj_x=swapped[0], adj_y=swapped[1])
    shape: list[Size] = list(w.output.shape)
    if not columns:
        shape.append(1)
    if not rows:
        shape.insert(len(shape) - 1, 1)
    plain = rows and columns
    form = identity(w.output.rank)
    w.result("BATCH_MATMUL", tensors, form, "BatchMatMulOptions", shape=None if plain else shape, **options)


def _reshaped(w: TFLiteWriting, v: Value, shape: tuple[Size, ...]) -> Value:
    made = Value(v.type.with_shape(shape), v.name)
    w.model.reshape(v, made)
    return made


@writes("softmax", "log_softmax")
def softmax(w: TFLiteWriting) -> None:
    axis, perm, rank = w.attrs["axis"], w.native(0), w.output.rank
    if perm[-1] != axis:
        perm = (*(a for a in range(rank) if a != axis), axis)
    x = w.x(0, perm)
    if x.dtype is not F32 and not w.integers:
        raise NoForm(f"TFLite's SOFTMAX is of f32, got {x.dtype.value}")
    if w.node.op is words.log_softmax:
        w.result("LOG_SOFTMAX", [x], perm, scaling=Scaling((16 / 256,), 127))
    else:
        w.result("SOFTMAX", [x], perm, "SoftmaxOptions", beta=1.0, scaling=Scaling((1 / 256,), -128))


@writes("lrn")
def lrn(w: TFLiteWriting) -> None:
    size, alpha, beta, bias = (w.attrs[k] for k in ("size", "alpha", "beta", "bias"))
    if size % 2 == 0 or w.output.rank != 4 or w.output.dtype is not F32:
        raise NoForm("TFLite's LOCAL_RESPONSE_NORMALIZATION is of f32 images and an odd number of channels")
    perm, kind = channels_last(4), "LocalResponseNormalizationOptions"
    options = dict(radius=size // 2, bias=bias, alpha=float(np.float32(alpha / size)), beta=beta)
    w.result("LOCAL_RESPONSE_NORMALIZATION", [w.x(0, perm)], perm, kind, **options)
