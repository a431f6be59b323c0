"""Branches, loops and scans of networks, with functions that build their bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pelton.ir.graph import Graph, Value, make_body
from pelton.ir.types import DType, TensorType

from .operators import Operators
from .tensor import NetworkTensor, Operand


class ControlFlow(Operators):
    """Control flow of networks. A function is called once, with the network of its branch or body, to add layers; it
    may read tensors of the networks around it, and arithmetic on these belongs to the body, too."""

    def traced(self, name: str, function: Callable[..., Any], types: Sequence[TensorType]) -> tuple[Graph, list[Value]]:
        """Returns the graph that a function builds, and the outer values that it reads."""
        raise NotImplementedError

    def if_(self, condition: Operand, then: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
        """Returns the result of one of two functions, selected by a condition (bool[]) in the data.

        Each is called once, with the network of its branch, to add layers; it may read tensors of the networks around
        it. Both return the same number of tensors, of the same types.
        """
        branches = [self.traced(name, function, ()) for name, function in (("then", then), ("other", other))]
        captured = list(dict.fromkeys(v for _, read in branches for v in read))
        bodies = [make_body(graph, captured)[0] for graph, _ in branches]
        operands = [condition, *(self.wrap(v) for v in captured)]
        return _one_or_all(self.apply("if", operands, dict(then=bodies[0], other=bodies[1]), "if"))

    def loop(
        self,
        body: Callable[..., Any],
        carried: Sequence[Operand],
        trips: Operand = (1 << 63) - 1,
        condition: Operand = True,
    ) -> Any:
        """Runs body(net, iteration, *carried) → (go on, *carried), up to `trips` times and while `go on` (bool[]).

        The function is called once, with the network of the body; carried tensors keep their types.
        """
        start = [self.tensor_of(t) for t in carried]
        iteration = TensorType(DType.I64)
        graph, read = self.traced("body", body, (iteration, *(t.type for t in start)))
        operands = [
            trips if isinstance(trips, NetworkTensor) else self.constant(trips, dtype="i64"),
            self.tensor_of(condition),
            *start,
            *map(self.wrap, read),
        ]
        return _one_or_all(
            self.apply("loop", operands, dict(body=make_body(graph, read)[0], carried=len(start)), "loop")
        )

    def scan(
        self, body: Callable[..., Any], states: Sequence[Operand], scanned: Sequence[Operand], back: bool = False
    ) -> Any:
        """Runs body(net, *states, *slices) → (*states, *parts) for each slice along the first axes of `scanned`, from
        the last one on if `back`; returns the last states, and the parts stacked along a new first axis."""
        begin, over = ([self.tensor_of(t) for t in operands] for operands in (states, scanned))
        slices = tuple(t.type.with_shape(t.shape[1:]) for t in over)
        graph, read = self.traced("body", body, (*(t.type for t in begin), *slices))
        parts = len(graph.outputs) - len(begin)
        attrs = dict(
            body=make_body(graph, read)[0], states=len(begin), axes=(0,) * len(over), into=(0,) * parts, back=back
        )
        return _one_or_all(self.apply("scan", [*begin, *over, *map(self.wrap, read)], attrs, "scan"))


def _one_or_all(found: tuple[NetworkTensor, ...]) -> NetworkTensor | tuple[NetworkTensor, ...]:
    return found[0] if len(found) == 1 else found
