"""The reader of an LSTM that attends to a memory at each step, unrolled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.importers.imported import MAX_UNROLLED
from pelton.importers.onnx.node import MICROSOFT, Binding, Reading, reads
from pelton.importers.onnx.ops.index import reverse_sequences
from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I64

_ATTRIBUTES = "activations activation_alpha activation_beta clip direction hidden_size input_forget"


@dataclass(frozen=True)
class _Attention:
    """Bahdanau's attention to a memory [batch, steps, depth]: softmax(Σ v · tanh(keys + query · W)) · memory."""

    n: Reading
    memory: Value
    keys: Value  # [batch, steps, size]
    query: Value  # [hidden, size]
    vector: Value  # [size]
    hidden: Value | None  # [batch, steps], true after the end of the memory; None: nowhere
    layer: Value | None  # [hidden + depth, attended]; None: the context itself is the result

    def __call__(self, h: Value) -> Value:
        """Computes the attention of a state [batch, hidden]."""
        n, (batch, steps, depth) = self.n, self.memory.type.shape
        query = n.emit("matmul", h, self.query)
        near = n.emit("tanh", n.emit("add", self.keys, n.reshape(query, (batch, 1, query.type.shape[1]))))
        scores = n.emit("reduce_sum", n.emit("mul", near, self.vector), axes=(2,), keepdims=False)
        if self.hidden is not None:
            scores = n.emit("where", self.hidden, n.like(scores, -np.inf), scores)
        weights = n.reshape(n.emit("softmax", scores, axis=1), (batch, 1, steps))
        context = n.reshape(n.emit("matmul", weights, self.memory), (batch, depth))
        if self.layer is None:
            return context
        return n.emit("matmul", n.emit("concat", h, context, axis=1), self.layer)


@reads("AttnLSTM", domain=MICROSOFT, attributes=_ATTRIBUTES, inputs=14)
def attn_lstm(n: Reading) -> tuple[Binding, ...]:
    """Unrolls each direction to LSTMs of one step, over the input beside the attention of the previous state."""
    x, memory, direction = n.input(0), n.input(11), n.attr("direction", "forward")
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if ways is None or x.type.rank != 3 or memory.type.rank != 3:
        raise n.refuse(
            f"AttnLSTM needs an input and a memory of rank 3, and a direction, got {x.type}, {memory.type} and"
            f" {direction!r}"
        )
    if not is_known(x.type.shape[0]):
        raise n.data_dependent_control()
    if not 0 < x.type.shape[0] <= MAX_UNROLLED:
        raise n.refuse(f"AttnLSTM is unrolled: it needs from 1 to {MAX_UNROLLED} steps, got {x.type}")
    parts = [_run_direction(n, i, back) for i, back in enumerate(ways)]
    y, h, c = (p[0] if len(p) == 1 else n.emit("concat", *p, axis=axis) for p, axis in zip(zip(*parts), (1, 0, 0)))
    return y, h, c


def _run_direction(n: Reading, index: int, back: bool) -> tuple[Value, Value, Value]:
    """Returns outputs [steps, 1, batch, hidden], and the last state and cell [1, batch, hidden], of one direction."""
    x, lengths = n.input(0), n.optional(4)
    steps, batch, _ = x.type.shape
    w, r = (_part(n, n.input(i), index) for i in (1, 2))
    hidden = r.type.shape[2]
    if n.attr("hidden_size", hidden) != hidden:
        raise n.refuse(f"AttnLSTM needs recurrent weights of its hidden_size {n.attr('hidden_size')}, got {r.type}")
    b, h, c, p = (
        n.filled(0, (1, *shape), x.type.dtype) if n.optional(i) is None else _part(n, n.input(i), index)
        for i, shape in ((3, (8 * hidden,)), (5, (batch, hidden)), (6, (batch, hidden)), (7, (3 * hidden,)))
    )
    attend = _attention(n, index)
    size = w.type.shape[2] - x.type.shape[2]
    attended = n.filled(0, (batch, size), x.type.dtype)
    if back and lengths is not None:
        x = reverse_sequences(n, x, lengths, 0)
    order = range(steps)[::-1] if back and lengths is None else range(steps)
    how = _cell(n, index, hidden)
    outputs, last = {}, (h, c)
    for t in order:
        step = n.reshape(n.slice(x, 0, t, t + 1), (batch, x.type.shape[2]))
        both = n.reshape(n.emit("concat", step, attended, axis=1), (1, batch, w.type.shape[2]))
        y, h, c = n.emit_all("lstm", both, w, r, b, h, c, p, **how)
        if lengths is None:
            last = h, c
        else:
            inside = n.emit("less", n.constant(t, I64), n.reshape(n.cast(lengths, I64), (1, batch, 1)))
            y = n.emit("where", n.reshape(inside, (1, 1, batch, 1)), y, n.like(y, 0))
            last = n.emit("where", inside, h, last[0]), n.emit("where", inside, c, last[1])
        outputs[t] = y
        attended = attend(n.reshape(h, (batch, hidden)))
    y = n.emit("concat", *(outputs[t] for t in range(steps)), axis=0) if steps > 1 else outputs[0]
    if back and lengths is not None:
        turned = reverse_sequences(n, n.reshape(y, (steps, batch, hidden)), lengths, 0)
        y = n.reshape(turned, y.type.shape)
    return y, *last


def _part(n: Reading, x: Value, index: int) -> Value:
    return n.slice(x, 0, index, index + 1)


def _attention(n: Reading, index: int) -> _Attention:
    """Returns the attention of a direction; weights of directions are concatenated."""
    memory, lengths, layer = n.input(11), n.optional(12), n.optional(13)
    query, keys, vector = (n.reshape(p := _part(n, n.input(i), index), p.type.shape[1:]) for i in (8, 9, 10))
    ended = None
    if lengths is not None:
        steps = n.count(memory.type.shape[1])
        ended = n.emit("greater_equal", steps, n.reshape(n.cast(lengths, I64), (memory.type.shape[0], 1)))
    if layer is not None:
        layer = n.reshape(part := _part(n, layer, index), part.type.shape[1:])
    return _Attention(n, memory, n.emit("matmul", memory, keys), query, vector, ended, layer)


def _cell(n: Reading, index: int, hidden: int) -> dict[str, Any]:
    """Returns the attributes of an LSTM of one direction."""
    if n.attr("activation_alpha") or n.attr("activation_beta"):
        raise n.refuse("AttnLSTM with slopes of activations is not supported; export the model with their defaults")
    activations = tuple(n.attr("activations", ())) or ("Sigmoid", "Tanh", "Tanh") * (index + 1)
    return {
        "hidden": hidden,
        "direction": "forward",
        "clip": n.attr("clip", 0.0),
        "activations": activations[3 * index : 3 * index + 3],
        "input_forget": n.flag("input_forget"),
    }
