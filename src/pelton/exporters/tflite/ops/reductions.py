"""Writers of reductions, positions of extrema, cumulative sums and top-k."""

from __future__ import annotations

from typing import Any

from pelton.ir.types import F32, I32, I64

from pelton.ops import words

from ..forms import Perm, arranged, identity, without
from ..tensors import CODES, NoForm
from ..writing import TFLiteWriting, writes

_REDUCED = dict(reduce_sum="SUM", reduce_mean="MEAN", reduce_max="REDUCE_MAX", reduce_min="REDUCE_MIN")
_REDUCED |= dict(reduce_prod="REDUCE_PROD")
REDUCED = {getattr(words, op): name for op, name in _REDUCED.items()}


@writes(*_REDUCED)
def reduce(w: TFLiteWriting) -> None:
    axes, keep = w.attrs["axes"], bool(w.attrs["keepdims"])
    name, perm = REDUCED[w.node.op], w.native(0)
    x = w.x(0, perm)
    if w.output.dtype not in (F32, I32, I64) or w.output.dtype is not F32 and name == "MEAN":
        raise NoForm(f"TFLite's {name} has no {w.output.dtype.value}")
    form = perm if keep else without(perm, axes)
    at = w.constant(sorted(perm.index(a) for a in axes), I32)
    if w.integers and name in ("REDUCE_MAX", "REDUCE_MIN"):
        w.moved(name, [x, at], form, "ReducerOptions", keep_dims=keep)
        return
    w.result(name, [x, at], form, "ReducerOptions", keep_dims=keep)


@writes("arg_max", "arg_min")
def position(w: TFLiteWriting) -> None:
    axis, keep, perm = w.attrs["axis"], w.attrs["keepdims"], w.native(0)
    if w.attrs["select_last_index"]:
        raise NoForm("TFLite's ARG_MAX takes the first one of equals")
    name, kind = ("ARG_MAX", "ArgMaxOptions") if w.node.op is words.arg_max else ("ARG_MIN", "ArgMinOptions")
    v = w.input(0)
    x = w.model.integers(v, perm)
    x = w.model.get(v, perm) if x is None else x
    if x.dtype is not F32 and x.scaling is None and x.dtype is not I32:
        raise NoForm(f"TFLite's {name} has no {x.dtype.value}")
    shape = tuple(d for a, d in zip(perm, x.shape) if a != axis)
    at = w.constant(perm.index(axis), I32)
    found = w.emit(name, [x, at], shape, I64, kind, output_type=CODES[I64])
    if keep:
        found = w.model.reshaped(found, arranged(w.output.shape, perm))
    w.finish(found, perm if keep else without(perm, [axis]))


@writes("cumsum")
def cumsum(w: TFLiteWriting) -> None:
    perm, axis = w.native(0), w.attrs["axis"]
    x = w.x(0, perm)
    if x.dtype not in (F32, I32, I64):
        raise NoForm(f"TFLite's CUMSUM has no {x.dtype.value}")
    options: dict[str, Any] = dict(exclusive=bool(w.attrs["exclusive"]), reverse=bool(w.attrs["reverse"]))
    w.result("CUMSUM", [x, w.constant(perm.index(axis), I32)], perm, "CumsumOptions", **options)


@writes("top_k")
def top_k(w: TFLiteWriting) -> None:
    k, axis, rank = w.attrs["k"], w.attrs["axis"], w.output.rank
    w.attrs["sorted"]  # TFLite sorts
    if not w.attrs["largest"] or w.type(0).dtype not in (F32, I32, I64):
        raise NoForm("TFLite's TOPK_V2 takes the largest ones")
    perm: Perm = identity(rank)
    if axis != rank - 1:
        perm = (*(a for a in range(rank) if a != axis), axis)
    x, model = w.x(0, perm), w.model
    shape = (*x.shape[:-1], k)
    values, places = model.tensor(shape, x.dtype), model.tensor(shape, I32)
    model.append("TOPK_V2", [x, model.reshaped(w.ints([k]), ())], [values, places])
    w.put(0, values, perm)
    w.put(1, model.cast(places, I64), perm)
