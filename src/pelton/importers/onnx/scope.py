"""Scopes of names in a model, nested within each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from pelton.ir.bindings import Broken, Binding
from pelton.ir.types import TensorType


@dataclass
class Scope:
    """The names visible to the nodes of one graph, branch or function body."""

    opsets: Mapping[str, int]
    outer: Scope | None = None  # a branch sees enclosing names, a function body does not
    title: str = ""  # for messages: "function Gelu, called by 'node 5'"
    calls: tuple[str, ...] = ()  # the functions being expanded
    bound: dict[str, Binding | Broken] = field(default_factory=dict)
    used_names: frozenset[str] = frozenset()
    declared: Mapping[str, TensorType] = field(default_factory=dict)  # complete types declared by the model
    conditional: bool = False  # True if only some runs reach it: a branch, a loop body, or their callees

    @property
    def is_main(self) -> bool:
        return self.outer is None and not self.calls

    def find(self, name: str) -> Binding | Broken:
        """Returns the binding of a name; raises KeyError if there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bound:
                return scope.bound[name]
            scope = scope.outer
        raise KeyError(name)

    def sees(self, name: str) -> bool:
        return name in self.bound or (self.outer is not None and self.outer.sees(name))


def node_label(node: onnx.NodeProto) -> str:
    """Returns the label of a node in messages."""
    return node.name or next((f"{node.op_type} → {o}" for o in node.output if o), node.op_type)


def domain_of(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
