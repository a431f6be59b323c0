"""Readers of recurrent networks: absent operands become zeros, defaults become explicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.ir.dims import Dim, Size, equal
from pelton.ir.graph import Value
from pelton.ir.types import I64

from pelton.ops.recurrent_cells import count_parameters

from .index import reverse_sequences, stack_indices
from pelton.importers.onnx.node import Reading, Binding, reads

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@reads("LSTM", "GRU", "RNN")
def recurrent(n: Reading) -> tuple[Binding, ...]:
    return emit_recurrent(n)


def emit_recurrent(n: Reading, **more: Any) -> tuple[Binding, ...]:
    """Emits a recurrent op. Inputs are x, w, r, b, lengths, initial_h and, for LSTM, initial_c and peepholes; lengths
    become explicit ops. more: attributes of the op without names in ONNX."""
    x, w, r = n.input(0), n.input(1), n.input(2)
    if x.type.rank != 3 or r.type.rank != 3:
        raise n.refuse(f"{n.op} needs an input and recurrent weights of rank 3, got {x.type} and {r.type}")
    batch_first, direction = n.attr("layout", 0) == 1, n.attr("direction", "forward")
    x = n.transpose(x, (1, 0, 2)) if batch_first else x
    time, batch = x.type.shape[:2]
    directions, hidden = 2 if direction == "bidirectional" else 1, r.type.shape[2]
    if r.type.shape[0] != directions:
        raise n.refuse(f"{n.op} with direction {direction!r} needs recurrent weights for {directions}, got {r.type}")
    if n.attr("hidden_size") not in (None, hidden):
        raise n.refuse(f"{n.op} needs recurrent weights for its hidden_size {n.attr('hidden_size')}, got {r.type}")

    def operand(i: int, *shape: Size) -> Value:
        value = n.optional(i)
        if value is None:
            return n.filled(0, shape, x.type.dtype)
        return n.transpose(value, (1, 0, 2)) if batch_first and len(shape) == 3 else value

    state = directions, batch, hidden
    operands = [x, w, r, operand(3, directions, 2 * _GATES[n.op] * hidden), operand(5, *state)]
    attrs = {
        "hidden": hidden,
        "direction": direction,
        "clip": n.attr("clip") or 0.0,
        "activations": "activations" in n.attributes and n.attr("activations") or _DEFAULTS[n.op] * directions,
        "activation_alpha": n.attr("activation_alpha") or (),
        "activation_beta": n.attr("activation_beta") or (),
        **more,
    }
    if n.op == "LSTM":
        operands += [operand(6, *state), operand(7, directions, 3 * hidden)]
        attrs["input_forget"] = n.flag("input_forget")
    if n.op == "GRU":
        attrs["linear_before_reset"] = n.flag("linear_before_reset")
    lengths = n.optional(4)
    known = n.known(lengths)
    if lengths is None or known is not None and not isinstance(time, Dim) and (known == time).all():
        return _restore_layout(n, n.emit_all(n.op.lower(), *operands, **attrs), batch_first)
    is_out_of_range = (
        known is not None and not isinstance(time, Dim) and (known.min(initial=0) < 0 or known.max(initial=0) > time)
    )
    if lengths.type.rank != 1 or not equal(lengths.type.size, batch) or is_out_of_range:
        raise n.refuse(
            f"{n.op} needs a length from 0 to {time} for each of {batch} sequences, got"
            f" {lengths.type if known is None else known.tolist()}"
        )
    first = attrs["activations"][0].lower()
    can_hold_cell = (
        n.op != "LSTM"
        or not n.is_output_used(2)
        or not attrs["clip"]
        and first in ("sigmoid", "hardsigmoid")
        and not attrs["activation_alpha"]
    )
    if not can_hold_cell:
        raise n.refuse(
            f"{n.op} with sequence lengths and its last cell as output needs sigmoid gates of default slope and no"
            " clip; leave the lengths out if all sequences are whole, or that output if it is unused"
        )
    return _restore_layout(n, _emit_with_lengths(n, operands, attrs, n.cast(lengths, I64)), batch_first)


def _restore_layout(n: Reading, found: Sequence[Value], batch_first: bool) -> tuple[Binding, ...]:
    """Moves the batch axis of the outputs first if the model has batch first."""
    y, *ends = found
    return (n.transpose(y, (2, 0, 1, 3)), *(n.transpose(s, (1, 0, 2)) for s in ends)) if batch_first else (y, *ends)


_SATURATING = 1e4  # closes or opens a sigmoid gate for any sum, since e⁻¹⁰⁰⁰⁰ is 0


def _emit_with_lengths(n: Reading, operands: list[Value], attrs: dict[str, Any], lengths: Value) -> list[Value]:
    """Computes sequences of individual lengths, direction by direction; backward ones are reversed before and after.

    Outputs past the end of a sequence are zero; its last state is gathered at its end.
    """
    x, w, r, b, *states = operands
    peepholes = [states.pop()] if n.op == "LSTM" else []
    (time, batch, _), each = x.type.shape, len(_DEFAULTS[n.op])
    inside = n.emit("less", n.reshape(n.count(time), (time, 1, 1, 1)), n.reshape(lengths, (1, 1, batch, 1)))
    outputs = []
    first = count_parameters(attrs["activations"][:each])
    for d, back in enumerate({"forward": (False,), "reverse": (True,)}.get(attrs["direction"], (False, True))):
        sequences = reverse_sequences(n, x, lengths, 0) if back else x
        own_w, *own = (n.slice(v, 0, d, d + 1) for v in (w, r, b, *states, *peepholes))
        if n.op == "LSTM" and n.is_output_used(2):
            sequences, own_w = _hold_cell(n, sequences, own_w, inside)
        slopes = {
            k: attrs[k][count:] if d else attrs[k][:count]
            for k, count in zip(("activation_alpha", "activation_beta"), first)
        }
        how = {
            **attrs,
            **slopes,
            "direction": "forward",
            "activations": attrs["activations"][d * each : (d + 1) * each],
        }
        y, _, *cell = n.emit_all(n.op.lower(), sequences, own_w, *own, **how)
        last = n.emit("sub", lengths, n.constant(1, I64))
        h = n.emit("gather_nd", n.reshape(y, (time, batch, attrs["hidden"])), stack_indices(n, last, n.count(batch)))
        is_nonempty = n.reshape(n.emit("greater_equal", last, n.constant(0, I64)), (batch, 1))
        h = n.emit("where", is_nonempty, n.reshape(h, (1, batch, attrs["hidden"])), own[2])
        y = n.emit("where", inside, y, n.like(y, 0))
        if back:
            y = n.reshape(reverse_sequences(n, n.reshape(y, (time, batch, attrs["hidden"])), lengths, 0), y.type.shape)
        outputs.append((y, h, *cell))
    return [
        (parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=axis))
        for parts, axis in zip(zip(*outputs), (1, 0, 0))
    ]


def _hold_cell(n: Reading, x: Value, w: Value, inside: Value) -> tuple[Value, Value]:
    """Adds a feature that is 1 past the end of a sequence, to keep the cell there.

    Its weights close the input gate and open the forget gate.
    """
    time, batch = x.type.shape[:2]
    beyond = n.reshape(n.cast(n.emit("logical_not", inside), x.type.dtype), (time, batch, 1))
    gates = np.zeros((1, 4, w.type.shape[1] // 4, 1))
    gates[:, 0], gates[:, 2] = -_SATURATING, _SATURATING
    return n.emit("concat", x, beyond, axis=2), n.emit(
        "concat", w, n.constant(gates.reshape(1, -1, 1), w.type.dtype), axis=2
    )
