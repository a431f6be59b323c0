"""Variables, which a model keeps from run to run, and calls of other subgraphs."""

from __future__ import annotations

import numpy as np

from ..held import Held
from ..node import Given, TFLiteReading, reads


@reads("VAR_HANDLE")
def var_handle(n: TFLiteReading) -> Given:
    container, name = n.option("container") or "", n.option("shared_name") or ""
    full = f"{container}/{name}" if container else name
    if not full:
        raise n.refuse("names no variable")
    return Held(n.net, n.outputs[0], variable=full)


@reads("READ_VARIABLE")
def read_variable(n: TFLiteReading) -> Given:
    return n.scope.read_variable(_variable(n), n.outputs[0])


@reads("ASSIGN_VARIABLE")
def assign_variable(n: TFLiteReading) -> None:
    n.scope.assign_variable(_variable(n), n.given(1))


def _variable(n: TFLiteReading) -> str:
    if not n.given(0).variable:
        raise n.refuse("needs a handle of a variable as its first input")
    return n.given(0).variable


@reads("CALL_ONCE")
def call_once(n: TFLiteReading) -> None:
    n.scope.initialize(n.option("subgraph"))


@reads("CALL")
def call(n: TFLiteReading) -> tuple[Given, ...]:
    return tuple(n.scope.inline(n.option("subgraph"), [n.given(i) for i in range(n.count)]))


@reads("IF")
def if_(n: TFLiteReading) -> tuple[Given, ...]:
    """One of two subgraphs. Where the data decides, both are computed, and what they give is selected: branches have no
    effects but on variables, which are refused then."""
    condition = n.given(0)
    given = [n.given(i) for i in range(1, n.count)]
    numbers = n.option("then"), n.option("other")
    elements = condition.elements()
    if isinstance(elements, np.ndarray):
        if elements.size != 1:
            raise n.refuse(f"needs one condition, got {condition.spec}")
        return tuple(n.scope.inline(numbers[0 if elements.reshape(())[()] else 1], given))
    with n.scope.branch():
        then, other = (n.scope.inline(number, given) for number in numbers)
    chosen = n.net.reshape(condition.raw(), ())
    if len(then) != len(other):
        raise n.refuse(f"has branches of {len(then)} and {len(other)} outputs")
    return tuple(n.net.where(chosen, a.real(), b.real()) for a, b in zip(then, other))


@reads("WHILE")
def while_(n: TFLiteReading) -> tuple[Given, ...]:
    raise n.refuse("is a loop, which is not supported; convert the model with its loops unrolled")
