"""Readers of operators that one op represents exactly: same operands, attributes of the same meaning."""

from __future__ import annotations

from dataclasses import dataclass

from pelton.ir.graph import Value
from pelton.ops import REGISTRY, Op

from pelton.importers.onnx.node import READERS, Reading, Binding


@dataclass(frozen=True)
class AsDeclared:
    """Reads an operator of ai.onnx as the op that names it in `Op.onnx`."""

    op: Op

    def __call__(self, n: Reading) -> tuple[Binding, ...]:
        inputs = n.inputs if self.op.scalar is None else aligned(n)
        return n.emit_all(self.op, *inputs, **attributes(n, self.op))


def attributes(n: Reading, op: Op) -> dict[str, object]:
    """Returns the op's attributes as far as the node or its schema has them; flags, integers in ONNX, as bools."""
    values = {name: n.attr(op.onnx_names.get(name, name)) for name in op.attrs}
    return {
        name: bool(value) if isinstance(op.attrs[name], bool) else value
        for name, value in values.items()
        if value is not None
    }


def aligned(n: Reading) -> tuple[Value, ...]:
    """Returns the inputs. Before opset 7, the attribute `axis` may align the second to axes of the first from there."""
    if n.opset >= 7 or n.attr("axis") is None or len(n.inputs) != 2:
        return n.inputs
    a, b = n.inputs
    return a, n.reshape(b, (*b.type.shape, *[1] * (a.type.rank - n.axis(n.attr("axis"), a.type.rank) - b.type.rank)))


def declare() -> None:
    """Declares readers of all operators that exactly one op names and that have none yet.

    Raises ValueError if several ops name an operator.
    """
    named: dict[str, Op] = {}
    for op in REGISTRY.values():
        for name in op.onnx:
            if ("", name) not in READERS and named.setdefault(name, op) is not op:
                raise ValueError(f"{named[name].name} and {op.name} both name {name}: it needs a reader that chooses")
    READERS.update({("", name): AsDeclared(op) for name, op in named.items()})
