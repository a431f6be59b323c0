"""Switches in programs: inputs that select one of two forms of a value at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pelton.ir.graph import Value
from pelton.ir.op import Op
from pelton.ir.types import F32
from pelton.ops.words import add, cast, mul, reshape, slice_, sub

# Emits a node with one output.
Emit = Callable[[Op, Sequence[Value], Mapping[str, Any]], Value]


def blend(emit: Emit, switches: Value, number: int, exact: Value, rounded: Value) -> Value:
    """Emits exact + on · (rounded − exact), where `on` is that element of the switches, 0 or 1; the sum is last."""
    whole = dict(starts=(number,), ends=(number + 1,), axes=(0,), steps=(1,))
    on = emit(reshape, (emit(slice_, (switches,), whole),), {"shape": ()})
    if exact.type.dtype is not F32:
        on = emit(cast, (on,), {"to": exact.type.dtype})
    return emit(add, (exact, emit(mul, (emit(sub, (rounded, exact), {}), on), {})), {})
