"""A recursive-descent parser of the text form of programs, whose grammar `pelton.ir.text` describes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.errors import InputError

from . import dims
from .dims_text import parse as parse_size
from .graph import Body, Graph, Node, Value
from .op import Op, get
from .types import DType, TensorType

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<value>%(?:[A-Za-z0-9_./]+|"(?:[^"\\]|\\.)*"))|(?P<string>"(?:[^"\\]|\\.)*")"""
    r"""|(?P<bounds>\d+\.\.\d+\.\.\d*)|(?P<number>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf\b|nan\b))"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<mark>//|[()\[\]{},:=+*-])"""
)


class TextReader:
    """The tokens of a text and the values defined so far."""

    def __init__(self, text: str, constants: Mapping[str, np.ndarray] | None = None):
        self.constants = constants or {}
        self.tokens: list[tuple[str, str, int]] = []
        self.place = 0
        self.values: dict[str, Value] = {}
        self.symbols: dict[str, dims.Size] = {}
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise InputError(f"line {line}: cannot read {text[at : at + 20]!r}")
            if match.lastgroup != "space":
                self.tokens.append((str(match.lastgroup), match.group(), line))
            line += match.group().count("\n")
            at = match.end()
        self.tokens.append(("end", "the end", line))

    def graph(self) -> Graph:
        """Parses a program; a nested one sees the symbols around it, but none of the values."""
        around, self.values = self.values, {}
        self.take("word", "graph")
        name = self.name()
        self.sizes()
        inputs = []
        self.take("mark", "(")
        for _ in self.separated(")"):
            inputs.append(self.define(self.take("value"), self.type_after_colon()))
        self.take("mark", "{")
        values: dict[Value, np.ndarray] = {}
        nodes = []
        while not self.at("word", "return"):
            read = self.statement()
            if isinstance(read, Node):
                nodes.append(read)
            else:
                values[read[0]] = read[1]
        self.take("word", "return")
        outputs = []
        for _ in self.separated("}"):
            outputs.append(self.use(self.take("value")))
        self.values = around
        return Graph(tuple(inputs), values, tuple(nodes), tuple(outputs), name)

    def at(self, kind: str, text: str = "") -> bool:
        token = self.tokens[self.place]
        return token[0] == kind and (not text or token[1] == text)

    def take(self, kind: str, text: str = "") -> str:
        """Consumes a token of this kind (and text); raises InputError for another one."""
        if not self.at(kind, text):
            raise self.error(f"expected {text or 'a ' + kind}")
        self.place += 1
        return self.tokens[self.place - 1][1]

    def error(self, expected: str) -> InputError:
        _, token, line = self.tokens[self.place]
        return InputError(f"line {line}: {expected}, got {token!r}")

    def refusal(self, reason: str) -> InputError:
        """Returns an error about the last token."""
        return InputError(f"line {self.tokens[self.place - 1][2]}: {reason}")

    def separated(self, end: str):
        """Yields once per item of a list with commas; consumes its closing mark."""
        while not self.at("mark", end):
            yield
            if not self.at("mark", end):
                self.take("mark", ",")
        self.take("mark", end)

    def name(self) -> str:
        return json.loads(self.take("string")) if self.at("string") else self.take("word")

    def type(self) -> TensorType:
        word = self.take("word")
        shape = []
        self.take("mark", "[")
        for _ in self.separated("]"):
            shape.append(self.size())
        try:
            return TensorType(DType(word), tuple(shape))
        except ValueError:
            self.place -= 1
            raise self.error(f"expected a tensor type, {word!r} is no element type") from None

    def type_after_colon(self) -> TensorType:
        self.take("mark", ":")
        return self.type()

    def sizes(self) -> None:
        """Parses the declarations of symbols, if there are any."""
        if not self.at("mark", "["):
            return
        self.take("mark", "[")
        for _ in self.separated("]"):
            name = self.take("word")
            self.take("mark", ":")
            minimum, optimum, maximum = (
                int(part) if part else dims.UNBOUNDED for part in self.take("bounds").split("..")
            )
            try:
                self.symbols[name] = dims.symbol(name, minimum, optimum, maximum)
            except ValueError as e:
                raise self.refusal(str(e)) from None

    def size(self) -> dims.Size:
        """Parses a number or an expression of symbols, up to a comma or closing bracket."""
        first, depth, start = self.tokens[self.place], 0, self.place
        while depth or not (self.at("mark", ",") or self.at("mark", "]") or self.at("end")):
            depth += self.at("mark", "(") - self.at("mark", ")")
            if self.at("end"):
                raise self.error("expected a size")
            self.place += 1
        if self.place == start + 1 and first[0] == "number" and re.fullmatch(r"[-+]?\d+", first[1]):
            return int(first[1])
        try:
            return parse_size(" ".join(text for _, text, _ in self.tokens[start : self.place]), self.symbols)
        except ValueError:
            self.place = start
            raise self.error("expected an integer") from None

    def use(self, token: str) -> Value:
        name = _name_in(token)
        if name not in self.values:
            self.place -= 1
            raise self.error("expected a value defined before")
        return self.values[name]

    def define(self, token: str, type: TensorType) -> Value:
        name = _name_in(token)
        if name in self.values:
            raise self.refusal(f"%{name} is defined twice")
        self.values[name] = Value(type, name)
        return self.values[name]

    def operand(self) -> Value:
        """Parses a value; one with its type need not be defined."""
        token = self.take("value")
        if not self.at("mark", ":"):
            return self.use(token)
        type, name = self.type_after_colon(), _name_in(token)
        return self.values[name] if name in self.values and self.values[name].type == type else self.define(token, type)

    def statement(self) -> Node | tuple[Value, np.ndarray]:
        """Parses a constant or a node."""
        tokens: list[tuple[str, TensorType | None]] = []
        while True:
            token = self.take("value")
            tokens.append((token, self.type_after_colon() if self.at("mark", ":") else None))
            if self.at("mark", "="):
                break
            self.take("mark", ",")
        self.take("mark", "=")
        if self.at("word", "constant"):
            return self.constant(tokens[0][0])
        op = self.op()
        operands = []
        self.take("mark", "(")
        for _ in self.separated(")"):
            operands.append(self.operand())
        attrs = {}
        if self.at("mark", "{"):
            self.take("mark", "{")
            for _ in self.separated("}"):
                name = self.take("word")
                self.take("mark", "=")
                attrs[name] = self.attribute()
        node_name = json.loads(self.take("string")) if self.at("string") else ""
        return self.node(op, tuple(operands), attrs, tokens, node_name)

    def node(
        self,
        op: Op,
        operands: tuple[Value, ...],
        attrs: dict[str, Any],
        tokens: list[tuple[str, TensorType | None]],
        name: str,
    ) -> Node:
        try:
            attrs = op.complete(attrs)
            types: Sequence[TensorType] = [type for _, type in tokens if type is not None]
            if len(types) < len(tokens):
                types = op.infer_types(tuple(v.type for v in operands), attrs)
        except (TypeError, ValueError) as e:
            raise self.refusal(str(e)) from e
        if len(types) != len(tokens):
            raise self.refusal(f"{op.name} has {len(types)} outputs, got names for {len(tokens)}")
        outputs = tuple(self.define(token, annotation or known) for (token, annotation), known in zip(tokens, types))
        return Node(op, operands, attrs, outputs, name)

    def op(self) -> Op:
        try:
            return get(self.name())
        except KeyError:
            self.place -= 1
            raise self.error(
                "expected the name of an op (one of a plugin must be registered first: import its module)"
            ) from None

    def attribute(self) -> Any:
        if self.at("mark", "("):
            self.take("mark", "(")
            return tuple([self.attribute() for _ in self.separated(")")])
        if self.at("mark", "["):
            self.take("mark", "[")
            size = self.size()
            self.take("mark", "]")
            return size
        if self.at("string"):
            return json.loads(self.take("string"))
        if self.at("number"):
            number = self.take("number")
            return int(number) if re.fullmatch(r"[-+]?\d+", number) else float(number)
        if self.at("word", "graph"):
            return Body(self.graph())
        word = self.take("word")
        if word in ("true", "false"):
            return word == "true"
        try:
            return DType(word)
        except ValueError:
            self.place -= 1
            raise self.error("expected an attribute value") from None

    def constant(self, token: str) -> tuple[Value, np.ndarray]:
        self.take("word", "constant")
        value = self.define(token, self.type())
        dtype, shape = value.type.dtype, value.type.shape
        if self.at("mark", "["):
            self.take("mark", "[")
            elements = [self.attribute() for _ in self.separated("]")]
        elif self.at("number") or self.at("string") or self.at("word", "true") or self.at("word", "false"):
            elements = [self.attribute()] * value.type.size
        else:
            array = self.constants.get(value.name)
            return value, np.zeros(shape, dtype.numpy) if array is None else array
        if dtype in (DType.C64, DType.C128):
            array = np.array(elements, np.float64).view(np.complex128)
        else:
            array = np.array(elements, object if dtype in (DType.STRING, DType.U64) else None)
        if array.size != value.type.size:
            raise self.refusal(f"constant %{value.name} needs {value.type.size} elements, got {array.size}")
        return value, array.astype(dtype.numpy).reshape(shape)


def _name_in(token: str) -> str:
    return json.loads(token[1:]) if token[1] == '"' else token[1:]
