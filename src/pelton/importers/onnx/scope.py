"""What the names of a model stand for, one scope within another, and what is noted of nodes that could not be read."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import onnx

from pelton.ir import dims
from pelton.ir.dims import Undecided
from pelton.ir.graph import Node
from pelton.ir.types import TensorType

if TYPE_CHECKING:
    from .node import Thing


class Broken:
    """Stands for the outputs of a node that could not be read, so that one problem is reported once."""


BROKEN = Broken()


@dataclass
class Scope:
    """The names that the nodes of one graph, branch or function body see."""

    opsets: Mapping[str, int]
    outer: Scope | None = None                             # a branch sees the names around it, a function body does not
    title: str = ""                                        # for messages: "function Gelu, called by 'node 5'"
    calls: tuple[str, ...] = ()                            # the functions being expanded
    bound: dict[str, Thing | Broken] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()
    declared: Mapping[str, TensorType] = field(default_factory=dict)       # as far as the model states types of full shape

    @property
    def main(self) -> bool:
        return self.outer is None and not self.calls

    def find(self, name: str) -> Thing | Broken:
        """What a name stands for; KeyError where nothing makes it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bound:
                return scope.bound[name]
            scope = scope.outer
        raise KeyError(name)

    def sees(self, name: str) -> bool:
        return name in self.bound or (self.outer is not None and self.outer.sees(name))


@dataclass(frozen=True)
class Stuck:
    """Where an import could not go on: the sizes that the node met, and what it wanted to know of them, if it was that."""

    where: str
    met: tuple[dims.Symbol, ...]
    question: Undecided | None


@dataclass(frozen=True)
class Met:
    """A node of the main graph, what it reads, what was written for it, and what was wrong with it; or how it runs as a step of a script."""

    node: onnx.NodeProto
    inputs: Sequence[Thing | Broken]
    written: Sequence[Node]
    problems: Sequence[str]
    step: Literal["", "host", "decomposed"] = ""


def called(node: onnx.NodeProto) -> str:
    """What messages call a node."""
    return node.name or next((f"{node.op_type} → {o}" for o in node.output if o), node.op_type)


def domain_of(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
