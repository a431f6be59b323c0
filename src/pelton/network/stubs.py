"""Writes operators.pyi, which lists the operators as methods for editors and type checkers, to standard output."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from pelton.ir.op import REQUIRED, Op
from pelton.ir.types import DType, TensorType
from pelton.ops import REGISTRY

from .composed import ComposedLayers
from .layers import Layers
from .operators import Operators

HEAD = '''"""Every operator that is built in, as a method of networks. Written by `make operators`; not to be edited."""

from collections.abc import Mapping, Sequence
from typing import Any

from pelton.ir.graph import Value
from pelton.ir.op import Op
from pelton.ir.types import DType

from .tensor import NetworkTensor, Operand

class Operators:
    """Methods that apply one operator: operands first, attributes as keywords. `name` names the layer."""

    def apply(
        self,
        op: Op | str,
        operands: Sequence[Operand],
        attrs: Mapping[str, Any] | None = ...,
        name: str = ...,
    ) -> tuple[NetworkTensor, ...]: ...
    def tensor_of(self, operand: Operand) -> NetworkTensor: ...
    def wrap(self, value: Value) -> NetworkTensor: ...
    def constant(self, array: Any, name: str = ..., dtype: str | DType | None = ...) -> NetworkTensor: ...
    def __getattr__(self, name: str) -> Any:
        """The operator of a plugin, as a method."""
'''
WIDTH = 112  # of a line of a docstring
KEYWORDS = ("if", "and", "or", "not")


def page() -> str:
    """Returns the whole file."""
    own = {n for of in (ComposedLayers, Layers, Operators) for n in vars(of) if not n.startswith("_")}
    names = sorted(n for n, op in REGISTRY.items() if op.kind != "nested" and n not in own and op.instance is None)
    return HEAD + "".join(f"\n{line}" if line else "\n" for n in names for line in method(n, REGISTRY[n])) + "\n"


def method(name: str, op: Op) -> Iterator[str]:
    """Yields the lines of a method."""
    parameters = ["self", *operands(op)]
    keywords = [f"{k}: {kind(v)}" + ("" if v is REQUIRED else f" = {shown(v)}") for k, v in op.attrs.items()]
    star = [] if any(p.startswith("*") for p in parameters) else ["*"]
    parameters += [*star, *keywords, 'name: str = ""']
    gives = "tuple[NetworkTensor, ...]" if len(results(op)) > 1 else "NetworkTensor"
    yield f"    def {name}({', '.join(parameters)}) -> {gives}:"
    text = " ".join(op.doc.split()) or f"{name}, element by element."
    lines = textwrap.wrap(f'"""{text}"""', WIDTH - 8, initial_indent=" " * 8, subsequent_indent=" " * 8)
    yield from lines


def operands(op: Op) -> list[str]:
    """Returns an operator's operands as parameters, by the names of its declaration."""
    function = op.infer or op.scalar
    assert function is not None, op
    kinds, parameters = inspect.Parameter, []
    for p in inspect.signature(function).parameters.values():
        if p.kind is kinds.VAR_POSITIONAL:
            parameters.append(f"*{p.name}: Operand")
        elif p.kind is not kinds.KEYWORD_ONLY:
            parameters.append(f"{p.name}: Operand" + ("" if p.default is p.empty else " = ..."))
    return parameters


def results(op: Op) -> tuple[Any, ...]:
    """Returns the output types of an operator's first example."""
    if op.scalar is not None or not op.examples:
        return (None,)
    *types, attrs = op.examples[0] if isinstance(op.examples[0][-1], dict) else (*op.examples[0], {})
    return op.infer_types(tuple(map(TensorType.parse, types)), op.complete(attrs))


def kind(default: Any) -> str:
    """Returns the type of an attribute, by its default."""
    if default is REQUIRED or default is None:
        return "Any"
    if isinstance(default, tuple):
        return "Sequence[Any]"
    return "DType" if isinstance(default, DType) else type(default).__name__


def shown(default: Any) -> str:
    return "..." if isinstance(default, (DType, tuple)) else repr(default)


if __name__ == "__main__":
    sys.stdout.write(page())
