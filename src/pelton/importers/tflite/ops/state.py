"""Variables, which persist between runs, and calls of other subgraphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton.importers.imported import MAX_UNROLLED, MAX_UNROLLED_NODES
from pelton.ir.imported import OnData
from pelton.network import Network, NetworkTensor

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
    return tuple(n.scope.inline(n.option("subgraph"), _given(n)))


@reads("STABLEHLO_COMPOSITE")
def composite(n: TFLiteReading) -> tuple[Given, ...]:
    """Inlines the operators of a composite, which exporters keep in a subgraph."""
    return tuple(n.scope.inline(n.option("decomposition"), _given(n)))


@reads("IF")
def if_(n: TFLiteReading) -> tuple[Given, ...]:
    """Selects one of two subgraphs. If the data decides, both are computed and their outputs selected: branches have no
    effects but on variables, which are refused then."""
    condition, inputs = n.given(0), _given(n, 1)
    numbers, known = (n.option("then"), n.option("other")), _known(n, condition)
    if known is not None:
        return tuple(n.scope.inline(numbers[0 if known else 1], inputs))
    with n.scope.branch():
        then, other = (n.scope.inline(number, inputs) for number in numbers)
    chosen = n.net.reshape(condition.raw(), ())
    if len(then) != len(other):
        raise n.refuse(f"has branches of {len(then)} and {len(other)} outputs")
    return tuple(n.net.where(chosen, a.real(), b.real()) for a, b in zip(then, other))


@reads("WHILE")
def while_(n: TFLiteReading) -> tuple[Given, ...]:
    """Repeats a subgraph while another one is true. A number of rounds known from constants is unrolled; else it
    becomes a loop, which must not change sizes or variables."""
    state, condition, body = _given(n), n.option("condition"), n.option("body")
    most = len(n.net.builder.nodes) + MAX_UNROLLED_NODES
    for _ in range(MAX_UNROLLED + 1):
        go_on = _known(n, n.scope.inline(condition, state)[0])
        if go_on is None or len(n.net.builder.nodes) > most:
            break
        if not go_on:
            return tuple(state)
        state = n.scope.inline(body, state)
    return _loop(n, condition, body)


def _loop(n: TFLiteReading, condition: int, body: int) -> tuple[Given, ...]:
    begin = _given(n)
    if all(_elements(n, h) is not None for h in begin):
        raise n.refuse(f"depends on no input and has more than {MAX_UNROLLED} rounds, if it ends at all")

    def goes_on(state: Sequence[Held]) -> NetworkTensor:
        return n.scope.inline(condition, state)[0].raw()

    def round_(net: Network, _: NetworkTensor, *carried: NetworkTensor) -> tuple[NetworkTensor, ...]:
        with n.scope.within(net):
            inputs = [Held(net, h.spec, x) for h, x in zip(begin, carried)]
            outputs = n.scope.inline(body, inputs)
            if any(h.raw().type != x.type for h, x in zip(outputs, carried)):
                raise OnData(f"{n.op} carries tensors whose sizes change from round to round ({n.where})")
            return net.reshape(goes_on(outputs), ()), *(h.raw() for h in outputs)

    with n.scope.branch():
        first = n.net.reshape(goes_on(begin), ())
        results = n.net.loop(round_, [h.raw() for h in begin], condition=first)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(Held(n.net, h.spec, x) for h, x in zip(begin, results))


def _given(n: TFLiteReading, first: int = 0) -> list[Held]:
    return [n.given(i) for i in range(first, n.count)]


def _known(n: TFLiteReading, condition: Held) -> bool | None:
    """Returns a condition that does not depend on the data; None for others."""
    if any(d != 1 for d in condition.shape):
        raise n.refuse(f"needs one condition, got {condition.spec}")
    elements = _elements(n, condition)
    return None if elements is None else bool(elements.reshape(())[()])


def _elements(n: TFLiteReading, x: Held) -> np.ndarray | None:
    """Returns the elements of a constant, or of sizes as objects; None for other tensors."""
    elements = x.elements()
    return elements if isinstance(elements, np.ndarray) else n.net.builder.elements(elements.value)
