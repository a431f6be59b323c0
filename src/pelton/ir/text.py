"""The text form of programs: printed, parsed back, and normalized into keys.

    graph main(%x: f32[2, 3]) {
      %scale = constant f32[] 0.5
      %y: f32[2, 3] = mul(%x, %scale) "layer1/mul"
      %values: f32[2, 1], %where: i64[2, 1] = top_k(%y) {k=1, axis=1}
      return %values, %where
    }

Dynamic dimensions are declared first, with their bounds: `graph main[batch: 1..8..32](%x: f32[batch, 3*batch + 1]) {`;
in attributes they are bracketed: `reshape(%x) {shape=([3*batch], 3)}`. Graphs within nodes are attributes on the same
line, with their small constants: `if(%c, %x) {then=graph a(%x: f32[2]) { %y: f32[2] = neg(%x) return %y }, other=graph
…}`. Attributes with default values are left out, and types of outputs may be in programs written by hand. The name of
the node in the model file comes last. It, and names of values and ops, are JSON strings unless they are plain words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pelton.errors import InputError

from . import dims
from .graph import Body, Graph, Node, Value, symbols, unique
from .text_reader import TextReader
from .types import DType

INLINE = 64  # elements: limit of constants printed with `data=True`

_PLAIN_NAME = re.compile(r"[\w./]+", re.ASCII)
_PLAIN_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def to_text(graph: Graph, data: bool = False) -> str:
    """Prints a program. With `data`, constants of up to INLINE elements have their values; others only their types."""
    names = _unique_names(graph)
    body = _body(graph, names, INLINE if data else -1, node_names=True)
    heading = ", ".join(f"{names[v]}: {v.type}" for v in graph.inputs)
    sizes = ", ".join(
        f"{s.name}: {s.minimum}..{s.optimum}..{s.maximum if s.maximum < dims.UNBOUNDED else ''}" for s in symbols(graph)
    )
    return (
        f"graph {_word(graph.name)}{f'[{sizes}]' if sizes else ''}({heading}) {{\n"
        + "".join(f"  {line}\n" for line in body)
        + "}\n"
    )


def key(graph: Graph) -> str:
    """Returns the key of a program: programs with equal keys need equal code.

    Values are numbered in order of appearance and nodes have no names; constants of one element are literal, larger
    ones only types.
    """
    names = {v: f"%v{i}" for i, v in enumerate(_values_in_order(graph))}
    heading = ", ".join(f"{names[v]}: {v.type}" for v in graph.inputs)
    return "\n".join([f"({heading})", *_body(graph, names, 1, node_names=False)])


def node_text(node: Node) -> str:
    """Prints a node on one line, with the types of its inputs, so that `parse_node` can read it alone."""
    names = _printed_names(dict.fromkeys((*node.inputs, *node.outputs)))
    return _line(
        node, names, ", ".join(f"{names[v]}: {v.type}" for v in node.inputs), node_name=True, inline=dims.UNBOUNDED
    )


def parse(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Parses a program; raises InputError with the line if it cannot be read.

    `constants` supplies constants without literal values by name, else they are zero. Missing types of outputs are
    inferred; others are not checked (`verify` does that).
    """
    reader = TextReader(text, constants)
    graph = reader.graph()
    reader.take("end")
    return graph


def parse_node(text: str, sizes: Mapping[str, dims.Size] | None = None) -> Node:
    """Parses a line from `node_text` into a node of new values; raises InputError if it cannot be read.

    sizes: symbol → size.
    """
    reader = TextReader(text)
    reader.symbols.update(sizes or {})
    node = reader.statement()
    if not isinstance(node, Node):
        raise InputError(f"expected one node, got a constant: {text!r}")
    reader.take("end")
    return node


# --- printing


def _word(name: str) -> str:
    return name if _PLAIN_WORD.fullmatch(name) else json.dumps(name)


def _printed_names(values: Iterable[Value]) -> dict[Value, str]:
    """Maps each value to its printed name, with a number appended if another value has that name."""
    taken: set[str] = set()
    printed = {}
    for v in values:
        name = unique(v.name, taken)
        taken.add(name)
        printed[v] = "%" + (name if _PLAIN_NAME.fullmatch(name) else json.dumps(name))
    return printed


def _values_in_order(graph: Graph) -> dict[Value, None]:
    """Returns the values of a program in order of appearance in its text."""
    seen = dict.fromkeys(graph.inputs)
    for node in graph.nodes:
        seen.update(dict.fromkeys((*node.inputs, *node.outputs)))
    seen.update(dict.fromkeys(graph.outputs))
    return seen


def _unique_names(graph: Graph) -> dict[Value, str]:
    """Returns printed names; those of inputs and outputs come first, so that they stay unchanged."""
    order = dict.fromkeys((*graph.inputs, *graph.outputs))
    order.update(_values_in_order(graph))
    order.update(dict.fromkeys(graph.constants))
    return _printed_names(order)


def _body(graph: Graph, names: Mapping[Value, str], inline: int, node_names: bool) -> list[str]:
    """Returns the lines of nodes and constants, each constant before its first use, and of the return."""
    lines: list[str] = []
    shown: set[Value] = set()

    def show(values: Iterable[Value]) -> None:
        for v in values:
            if v in graph.constants and v not in shown:
                shown.add(v)
                lines.append(
                    f"{names[v]} = constant {v.type}"
                    + (f" {_literal(graph.constants[v], v.type.dtype)}" if v.type.size <= inline else "")
                )

    for node in graph.nodes:
        show(node.inputs)
        lines.append(_line(node, names, ", ".join(names[v] for v in node.inputs), node_names, inline))
    show(graph.outputs)
    if node_names:  # keys omit unused constants
        show(graph.constants)
    return [*lines, "return " + ", ".join(names[v] for v in graph.outputs)]


def _line(node: Node, names: Mapping[Value, str], operands: str, node_name: bool, inline: int) -> str:
    outputs = ", ".join(f"{names[v]}: {v.type}" for v in node.outputs)
    declared = node.op.attrs
    order = [k for k in declared if k in node.attrs] + sorted(k for k in node.attrs if k not in declared)
    changed = [k for k in order if k not in declared or not _is_same(declared[k], node.attrs[k])]
    printed = ", ".join(f"{k}={_attribute(node.attrs[k], inline, node_name)}" for k in changed)
    attrs = f" {{{printed}}}" if changed else ""
    name = f" {json.dumps(node.name)}" if node_name and node.name else ""
    return f"{outputs} = {_word(node.op.name)}({operands}){attrs}{name}"


def _is_same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # distinguishes 1 from True and 0.0 from -0.0; nan equals nan


def _nested(graph: Graph, inline: int, node_names: bool) -> str:
    """Prints a graph within a node on one line; without `node_names`, values are numbered."""
    if node_names:
        names = _unique_names(graph)
    else:
        order = {**_values_in_order(graph), **dict.fromkeys(graph.constants)}
        names = {v: f"%v{i}" for i, v in enumerate(order)}
    heading = ", ".join(f"{names[v]}: {v.type}" for v in graph.inputs)
    body = _body(graph, names, max(inline, INLINE) if node_names else inline, node_names)
    return f"graph {_word(graph.name) if node_names else 'body'}({heading}) {{ {' '.join(body)} }}"


def _attribute(x: Any, inline: int = -1, node_names: bool = True) -> str:
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, DType):
        return x.value
    if isinstance(x, (int, float)):
        return repr(x)
    if isinstance(x, dims.Dim):
        return f"[{x}]"
    if isinstance(x, str):
        return json.dumps(x)
    if isinstance(x, Body):
        return _nested(x.graph, inline, node_names)
    if isinstance(x, (tuple, list)):
        return "(" + ", ".join(map(_attribute, x)) + ("," if len(x) == 1 else "") + ")"
    raise TypeError(
        f"an attribute is a number, bool, string, element type, graph or a tuple of these, not {type(x).__name__}"
    )


def _literal(array: np.ndarray, dtype: DType) -> str:
    """Prints one number if all elements are equal, else all in row-major order; complex numbers are two numbers."""
    array = np.asarray(array)
    if dtype in (DType.C64, DType.C128):
        array = np.ascontiguousarray(array).reshape(-1).view(np.float32 if dtype is DType.C64 else np.float64)
    elements = [_element(x, dtype) for x in array.reshape(-1)]
    uniform = len(set(elements)) == 1 and dtype not in (DType.C64, DType.C128)
    return elements[0] if uniform else "[" + ", ".join(elements) + "]"


def _element(x: Any, dtype: DType) -> str:
    if dtype is DType.STRING:
        return json.dumps(x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x))
    if dtype is DType.BOOL:
        return "true" if x else "false"
    if dtype.is_integer:
        return str(int(x))
    # the shortest text that parses to the same number
    return str(x) if dtype in (DType.F32, DType.F64, DType.C64, DType.C128) else repr(float(x))
