"""Damage to models: to their structure, as by a careless or malicious exporter, and to their bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto

from . import mutate_nodes as nodes, mutate_values as values


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """A model file with one to four things changed."""
    if rng.random() < 0.2:
        return bytes_changed(seed, rng)
    m = ModelProto.FromString(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        change = rng.choice(CHANGES)
        try:
            change(m, rng)
        except (ValueError, TypeError, LookupError, DecodeError, onnx.checker.ValidationError):
            # nothing there to be changed in this way
            continue
    return m.SerializeToString() if rng.random() < 0.97 else bytes_changed(m.SerializeToString(), rng)


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, bytes replaced, cut out, doubled; the rest cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            out[at:at] = out[at : at + rng.randrange(1, 30)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif rng.random() < 0.3:
            del out[at:]
    return bytes(out)


Change = Callable[[ModelProto, random.Random], None]
CHANGES: tuple[Change, ...] = (
    nodes.rewire_input,
    nodes.rewire_input,
    nodes.swap_inputs,
    nodes.change_arity,
    nodes.change_arity,
    nodes.rename_output,
    nodes.close_cycle,
    nodes.change_operator,
    nodes.change_operator,
    nodes.drop_node,
    nodes.copy_node,
    nodes.shuffle_nodes,
    *[nodes.change_attribute] * 5,
    nodes.add_or_drop_attribute,
    nodes.add_or_drop_attribute,
    nodes.swap_bodies,
    *[values.change_shape] * 4,
    values.change_dtype,
    values.change_dtype,
    values.change_tensor_type,
    values.change_tensor_dims,
    *[values.change_tensor_values] * 4,
    values.reshape_tensor,
    values.reshape_tensor,
    values.change_initializers,
    values.make_external,
    values.change_opset,
    values.change_opset,
    values.change_outputs,
    values.change_inputs,
    values.change_function,
)
