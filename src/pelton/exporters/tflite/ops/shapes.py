"""Writers of ops that arrange elements: these relabel axes where they can."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, F32, I8, I32, I64, U8

from pelton.ops import words

from ..forms import arranged, channels_last, identity

from ..tensors import NoForm, TFLiteTensor
from ..writing import TFLiteWriting, writes


def moving(w: TFLiteWriting, v: Value, perm: tuple[int, ...]) -> TFLiteTensor:
    """Returns an operand whose elements move: stored integers if it has them."""
    x = w.model.integers(v, perm)
    return w.model.get(v, perm) if x is None or not w.integers else x


@writes("reshape")
def reshape(w: TFLiteWriting) -> None:
    w.attrs["shape"]  # the output's
    made = Value(w.output, w.node.output.name)
    w.model.reshape(w.input(0), made)
    _same(w, made)


@writes("transpose")
def transpose(w: TFLiteWriting) -> None:
    """Renames the forms of the operand: no element moves."""
    perm, model, x = w.attrs["perm"], w.model, w.input(0)
    made = Value(w.output, w.node.output.name)
    native = model.native(x)
    form = tuple(perm.index(a) for a in native)
    if model.is_stored(x):
        stored, scaling = model.stored(x)
        held = Value(w.output.with_dtype(stored.type.dtype), made.name)
        model.put(held, model.get(stored, native), form)
        model.put_stored(made, held, scaling)
    else:
        model.put(made, model.get(x, native), form)
    _same(w, made)


def _same(w: TFLiteWriting, made: Value) -> None:
    """Records a value as the node's output."""
    if not w.integers:
        w.model.rename(made, w.node.output)
        return
    perm = w.model.native(made)
    x = w.model.integers(made, perm)
    w.finish(w.as_integers(made, perm) if x is None else x, perm)


@writes("concat")
def concat(w: TFLiteWriting) -> None:
    values = list(w.node.inputs)
    variable = [v for v in values if w.model.known(v) is None]
    perm = w.model.cheapest(variable, [w.model.native(v) for v in variable] or [identity(w.output.rank)])
    tensors = [w.tensor(v, perm) for v in values]
    if w.integers:
        assert w.end.scaling is not None
        tensors = [w.model.rescaled(x, w.end.scaling) for x in tensors]
    else:
        scalings = {x.scaling for x in tensors}
        if len(scalings) > 1:
            raise NoForm("it concatenates integers of different scales")
    w.moved("CONCATENATION", tensors, perm, "ConcatenationOptions", axis=perm.index(w.attrs["axis"]))


@writes("slice")
def slice_(w: TFLiteWriting) -> None:
    starts, ends, axes, steps = (w.attrs[k] for k in ("starts", "ends", "axes", "steps"))
    perm, shape, rank = w.native(0), w.type(0).shape, w.output.rank
    x = moving(w, w.input(0), perm)
    if rank > 5:
        raise NoForm(f"TFLite slices up to 5 axes, got {rank}")
    if not is_known(*starts, *ends, *w.output.shape, *shape) and any(s < 0 for s in steps):
        raise NoForm("it reverses a dynamic dimension; fix the sizes of the inputs with --shapes")
    begin, last, by = [0] * rank, list(shape), [1] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps):
        begin[axis], last[axis], by[axis] = start, end, step
    end_mask = sum(
        1 << i for i, a in enumerate(perm) if last[a] == shape[a] and by[a] > 0 or by[a] < 0 and last[a] == -1
    )
    known = [0 if end_mask >> i & 1 else last[a] for i, a in enumerate(perm)]
    bounds = [w.ints(arranged(begin, perm)), w.ints(known), w.ints(arranged(by, perm))]
    options = dict(end_mask=end_mask)
    w.moved("STRIDED_SLICE", [x, *bounds], perm, "StridedSliceOptions", **options)


@writes("expand")
def expand(w: TFLiteWriting) -> None:
    w.attrs["shape"]
    rank = w.output.rank
    if w.type(0).rank == rank:
        wide, perm = w.input(0), w.native(0)
    else:
        wide = w.model.widened(w.input(0), rank)
        perm = w.model.native(wide)
    x = moving(w, wide, perm)
    if x.shape == arranged(w.output.shape, perm):
        w.finish(x, perm)
        return
    w.moved("BROADCAST_TO", [x, w.ints(arranged(w.output.shape, perm))], perm)


@writes("tile")
def tile(w: TFLiteWriting) -> None:
    perm = w.native(0)
    w.moved("TILE", [moving(w, w.input(0), perm), w.ints(arranged(w.attrs["repeats"], perm))], perm)


@writes("pad")
def pad(w: TFLiteWriting) -> None:
    pads, mode, rank = w.attrs["pads"], w.attrs["mode"], w.output.rank
    perm, value = w.native(0), w.known(1)
    before, after = pads[:rank], pads[rank:]
    if any(not is_known(p) or p < 0 for p in pads):
        raise NoForm("TFLite pads by known numbers of zero and more")
    if rank > (5 if mode == "constant" else 4):
        raise NoForm(f"TFLite pads up to 5 axes, and reflects up to 4, got {rank}")
    x = moving(w, w.input(0), perm)
    amounts = w.constant([(before[a], after[a]) for a in perm], I32)
    if mode == "reflect":
        sizes = zip(w.type(0).shape, before, after)
        if not is_known(*w.type(0).shape) or any(max(a, b) >= d for d, a, b in sizes if max(a, b)):
            raise NoForm("TFLite reflects less than the size of an axis")
        if w.integers:
            raise NoForm("TFLite's MIRROR_PAD of integers is not written")
        w.moved("MIRROR_PAD", [x, amounts], perm, "MirrorPadOptions", mode=0)
    elif mode != "constant":
        raise NoForm(f"TFLite does not pad by the mode {mode}")
    elif value is None:
        raise NoForm("TFLite pads by a constant")
    elif not np.any(value) and (w.integers or x.scaling is None):
        w.moved("PAD", [x, amounts], perm)
    elif x.scaling is None:
        w.moved("PADV2", [x, amounts, w.constant(value.reshape(()))], perm)
    else:
        raise NoForm("TFLite pads integers with zeros")


@writes("depth_to_space", "space_to_depth")
def blocks(w: TFLiteWriting) -> None:
    up = w.node.op is words.depth_to_space
    if up and w.attrs["mode"] != "DCR":
        raise NoForm("TFLite's DEPTH_TO_SPACE takes the depth first")
    perm = channels_last(4)
    name = "DEPTH_TO_SPACE" if up else "SPACE_TO_DEPTH"
    kind = "DepthToSpaceOptions" if up else "SpaceToDepthOptions"
    w.moved(name, [moving(w, w.input(0), perm)], perm, kind, block=w.attrs["block"])


@writes("trilu")
def trilu(w: TFLiteWriting) -> None:
    """Chooses elements by a constant mask."""
    k, upper = w.attrs["k"], w.attrs["upper"]
    if not is_known(*w.output.shape[-2:]) or w.output.dtype not in (F32, I32, I64, BOOL, U8, I8):
        raise NoForm("it needs matrices of a known size; fix the sizes of the inputs with --shapes")
    mask = np.triu(np.ones(w.output.shape[-2:], bool), k) if upper else np.tril(np.ones(w.output.shape[-2:], bool), k)
    x = w.x(0)
    if x.rank > 5:
        raise NoForm(f"TFLite chooses among up to 5 axes, got {x.rank}")
    w.result("SELECT_V2", [w.constant(mask), x, w.constant(0, x.dtype)], identity(x.rank))


@writes("iota")
def iota(w: TFLiteWriting) -> None:
    size, dtype = w.attrs["size"], w.attrs["dtype"]
    if is_known(size):
        w.finish(w.model.constant(np.arange(size).astype(dtype.numpy)))
        return
    end = w.model.reshaped(w.ints([size]), ())
    numbers = w.emit("RANGE", [w.constant(0, I32), end, w.constant(1, I32)], (size,), I32)
    w.finish(w.model.cast(numbers, dtype))


@writes("sizes")
def sizes(w: TFLiteWriting) -> None:
    numbers = w.model.reshaped(w.ints(w.attrs["values"]), w.attrs["shape"])
    w.finish(w.model.cast(numbers, I64))
