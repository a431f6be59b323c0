"""The text form of programs: printed for people, parsed back, and normalised into keys.

    graph main(%x: f32[2, 3]) {
      %scale = constant f32[] 0.5
      %y: f32[2, 3] = mul(%x, %scale) "layer1/mul"
      %values: f32[2, 1], %where: i64[2, 1] = top_k(%y) {k=1, axis=1}
      return %values, %where
    }

Sizes that a run decides are declared in front, with their bounds: `graph main[batch: 1..8..32](%x: f32[batch, 3*batch +
1]) {`; as attributes they stand in brackets: `reshape(%x) {shape=([3*batch], 3)}`. Graphs within nodes are attributes
on the same line, with their small constants: `if(%c, %x) {then=graph a(%x: f32[2]) { %y: f32[2] = neg(%x) return %y },
other=graph …}`. Attributes at their defaults are left out, and so may be the types of outputs when a program is written
by hand. Names, ops and the name behind a node (where it came from in the model file) are JSON strings where they are
not plain words.
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

INLINE = 64  # constants of up to so many elements are small: `data=True` prints them

_PLAIN_NAME = re.compile(r"[\w./]+", re.ASCII)
_PLAIN_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def to_text(graph: Graph, data: bool = False) -> str:
    """The program in the form above. With `data`, constants of up to INLINE elements carry their values; the others are
    types alone."""
    names = _unique(graph)
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
    """What a program means to a code generator: two programs with equal keys need equal code.

    Values are numbered in the order in which they appear, names of nodes left out, constants of one element literal and
    larger ones types alone.
    """
    names = {v: f"%v{i}" for i, v in enumerate(_appearing(graph))}
    heading = ", ".join(f"{names[v]}: {v.type}" for v in graph.inputs)
    return "\n".join([f"({heading})", *_body(graph, names, 1, node_names=False)])


def node_text(node: Node) -> str:
    """One node on one line, with the types of its inputs, so that it stands alone."""
    names = _spelled(dict.fromkeys((*node.inputs, *node.outputs)))
    return _line(
        node, names, ", ".join(f"{names[v]}: {v.type}" for v in node.inputs), node_name=True, inline=dims.UNBOUNDED
    )


def parse(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The program of a text; InputError saying the line where it cannot be read.

    A constant without literal values is taken from `constants` by name, else it is zeros. Types of outputs that the
    text leaves out are inferred; those that it gives are taken as they are (`verify` judges them).
    """
    reader = TextReader(text, constants)
    graph = reader.graph()
    reader.take("end")
    return graph


def parse_node(text: str, sizes: Mapping[str, dims.Size] | None = None) -> Node:
    """The node of a line from `node_text`, on fresh values, for these values of symbols; InputError where it cannot be
    read."""
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


def _spelled(values: Iterable[Value]) -> dict[Value, str]:
    """value → its name as printed, with a number appended where another value has that name."""
    taken: set[str] = set()
    spelled = {}
    for v in values:
        name = unique(v.name, taken)
        taken.add(name)
        spelled[v] = "%" + (name if _PLAIN_NAME.fullmatch(name) else json.dumps(name))
    return spelled


def _appearing(graph: Graph) -> dict[Value, None]:
    """The values of a program in the order in which its text names them."""
    seen = dict.fromkeys(graph.inputs)
    for node in graph.nodes:
        seen.update(dict.fromkeys((*node.inputs, *node.outputs)))
    seen.update(dict.fromkeys(graph.outputs))
    return seen


def _unique(graph: Graph) -> dict[Value, str]:
    """Printed names; those of the interface come first, so that they stay as they are."""
    order = dict.fromkeys((*graph.inputs, *graph.outputs))
    order.update(_appearing(graph))
    order.update(dict.fromkeys(graph.constants))
    return _spelled(order)


def _body(graph: Graph, names: Mapping[Value, str], inline: int, node_names: bool) -> list[str]:
    """A line per node and constant, each constant before its first use, and the one that returns."""
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
    if node_names:  # what nobody reads has no part in a key
        show(graph.constants)
    return [*lines, "return " + ", ".join(names[v] for v in graph.outputs)]


def _line(node: Node, names: Mapping[Value, str], operands: str, node_name: bool, inline: int) -> str:
    outputs = ", ".join(f"{names[v]}: {v.type}" for v in node.outputs)
    declared = node.op.attrs
    order = [k for k in declared if k in node.attrs] + sorted(k for k in node.attrs if k not in declared)
    changed = [k for k in order if k not in declared or not _same(declared[k], node.attrs[k])]
    attrs = (
        " {" + ", ".join(f"{k}={_attribute(node.attrs[k], inline, node_name)}" for k in changed) + "}"
        if changed
        else ""
    )
    return f"{outputs} = {_word(node.op.name)}({operands}){attrs}" + (
        f" {json.dumps(node.name)}" if node_name and node.name else ""
    )


def _same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # tells 1 from True and 0.0 from -0.0, and finds nan equal to nan


def _nested(graph: Graph, inline: int, node_names: bool) -> str:
    """A graph within a node, on one line; names say nothing where those of nodes do not."""
    names = (
        _unique(graph)
        if node_names
        else {v: f"%v{i}" for i, v in enumerate({**_appearing(graph), **dict.fromkeys(graph.constants)})}
    )
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
    """One number where all elements are equal, else all of them in row-major order; complex numbers are two numbers
    each."""
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
    # the shortest that reads back
    return str(x) if dtype in (DType.F32, DType.F64, DType.C64, DType.C128) else repr(float(x))
