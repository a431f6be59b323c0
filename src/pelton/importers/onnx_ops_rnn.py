"""Readers of recurrent networks: absent operands become zeros, defaults are written out."""
from __future__ import annotations

from pelton.ir.dims import Dim, Size
from pelton.ir.graph import Value

from .onnx_reading import Reading, Thing, reads

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@reads("LSTM", "GRU", "RNN")
def recurrent(n: Reading) -> tuple[Thing, ...]:
    """Inputs x, w, r, b, lengths, initial_h and for LSTM initial_c, peepholes. Lengths other than that of x run on the onnx package."""
    x, w, r = n.input(0), n.input(1), n.input(2)
    if x.type.rank != 3 or r.type.rank != 3:
        raise n.refuse(f"{n.op} needs an input and recurrent weights of rank 3, got {x.type} and {r.type}")
    layout, direction = n.attr("layout", 0), n.attr("direction", "forward")
    batch, time = x.type.shape[:2] if layout else x.type.shape[1::-1]
    lengths = n.optional(4)
    if lengths is not None:
        known = n.known(lengths)
        if known is None or isinstance(time, Dim) or (known != time).any():
            return n.foreign()
    directions, hidden = r.type.shape[0], r.type.shape[2]
    if n.attr("hidden_size") not in (None, hidden):
        raise n.refuse(f"{n.op} needs recurrent weights for its hidden_size {n.attr('hidden_size')}, got {r.type}")

    def operand(i: int, *shape: Size) -> Value:
        value = n.optional(i)
        return value if value is not None else n.filled(0, shape, x.type.dtype)

    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    operands = [x, w, r, operand(3, directions, 2 * _GATES[n.op] * hidden), operand(5, *state)]
    attrs = {"hidden": hidden, "direction": direction, "layout": layout, "clip": n.attr("clip") or 0.0,
             "activations": "activations" in n.attributes and n.attr("activations") or _DEFAULTS[n.op] * directions,
             "activation_alpha": n.attr("activation_alpha") or (), "activation_beta": n.attr("activation_beta") or ()}
    if n.op == "LSTM":
        operands += [operand(6, *state), operand(7, directions, 3 * hidden)]
        attrs["input_forget"] = n.flag("input_forget")
    if n.op == "GRU":
        attrs["linear_before_reset"] = n.flag("linear_before_reset")
    return n.emit_all(n.op.lower(), *operands, **attrs)
