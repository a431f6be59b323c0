"""Writers of normalizations, attention and rotary embeddings; forms that ONNX lacks are expanded."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.types import F64

from ..writing import Writing, writes


@writes("layer_norm", "rms_norm")
def layer_norm(w: Writing) -> str:
    if w.type(0).dtype is F64:
        raise w.refuse("statistics are f32")
    kind = "LayerNormalization" if len(w.inputs) == 3 else "RMSNormalization"
    return w.emit(kind, *w.inputs, **w.attrs)


@writes("group_norm")
def group_norm(w: Writing) -> str:
    """Needs opset 21, from which on scale and bias are by channel."""
    if w.model.opset < 21 or w.type(0).dtype is F64:
        raise w.refuse("GroupNormalization has scales by group before opset 21, and statistics in f32")
    return w.emit("GroupNormalization", *w.inputs, num_groups=w.attrs["groups"], epsilon=w.attrs["epsilon"])


def _same(*sizes) -> bool:
    """True if sizes are known to be equal."""
    return all(a == b for a, b in zip(sizes, sizes[1:]))


@writes("attention")
def attention(w: Writing) -> str:
    """Writes Attention, for one batch and query heads in groups; a mask, if any, needs a column for every key."""
    q, k, v, mask = (w.type(i) for i in range(4))
    array = w.known(3)
    none = array is not None and mask.size == 1 and not np.asarray(array).astype(np.float64).any()
    fits = q.rank == 4 and _same(q.shape[0], k.shape[0], v.shape[0]) and _same(k.shape[1], v.shape[1])
    fits = fits and is_known(q.shape[1], k.shape[1]) and q.shape[1] % k.shape[1] == 0
    if not fits or not none and not (2 <= mask.rank <= 4 and _same(mask.shape[-1], k.shape[2]) and mask.shape[-1] != 1):
        raise w.refuse("Attention needs queries, keys and values of one batch, and a column of the mask for each key")
    if k.shape[1] not in (1, q.shape[1]) or w.type(0).dtype is F64:
        raise w.refuse("heads of keys are as many as those of queries, or one")
    operands = list(w.inputs[:3])
    if not none:  # runtimes also need a row for each query
        rows, columns = q.shape[2], k.shape[2]
        whole = _same(mask.shape[-2], rows)
        operands.append(
            w.input(3) if whole else w.emit("Expand", w.input(3), w.ints((*mask.shape[:-2], rows, columns)))
        )
    scale, causal = float(w.attrs["scale"]), w.attrs["causal"]
    return w.emit("Attention", *operands, scale=scale, is_causal=1 if causal else None)


@writes("rotary")
def rotary(w: Writing) -> str:
    """Writes RotaryEmbedding, with angles [batch, rows, pairs] beside [batch, heads, rows, depth]."""
    x, cos, sin = (w.type(i).shape for i in range(3))
    if not (len(x) == len(cos) == 4 and cos == sin and cos[1] == 1 and cos[:1] == x[:1] and cos[2] == x[2]):
        raise w.refuse("RotaryEmbedding needs angles for each row of each batch element")
    pairs = cos[3]
    if not is_known(pairs):
        raise w.refuse("RotaryEmbedding needs a number of pairs that is known")
    beside = [w.emit("Squeeze", name, w.constant([1])) for name in w.inputs[1:]]
    return w.emit(
        "RotaryEmbedding",
        w.input(0),
        *beside,
        interleaved=1 if w.attrs["interleaved"] else None,
        rotary_embedding_dim=None if 2 * pairs == x[3] else 2 * pairs,
    )
