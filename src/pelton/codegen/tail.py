"""A region's pointwise nodes as the statements of a kernel, read once for every language that they are spelled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.ir.types import BOOL, DType
from pelton.ir.scalar import Scalar
from pelton.plan.layout import Strides, broadcast
from pelton.plan.region import Region

from .code import Text
from .grid import Grid, scalar_constant
from .template import Layouts


@dataclass(frozen=True)
class Pointer:
    """To an operand that a tail reads or writes.

    name: bias, e and a number for what is read, y and a number for what is written.
    """

    value: Value
    slot: int  # among the arguments of the kernel
    name: str

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    @property
    def written(self) -> bool:
        return self.name.startswith("y")


@dataclass(frozen=True)
class Access:
    """Where elements of an operand are, at the coordinates b, r, c."""

    pointer: Pointer
    at: Text  # the offset in elements
    step: Size | None  # elements from one to the next along c; None: not one number
    varying: str  # the coordinates that make a difference


@dataclass(frozen=True)
class Piece:
    """A slice along c that is written to a place of its own."""

    pointer: Pointer
    start: int
    size: Size
    grid: Grid  # of its own elements
    strides: Strides


@dataclass(frozen=True)
class Tail:
    """The fused pointwise code of a region and the pointers it needs."""

    text: Text
    operands: tuple[Value, ...]


@dataclass(frozen=True)
class Statements:
    """What a tail does, in order, and the names of the values that it was given or has computed."""

    lines: tuple[Text, ...]
    pointers: tuple[Pointer, ...]
    names: Mapping[Value, str]

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(p.value for p in self.pointers)


class Language(Protocol):
    """How a kernel's language spells what a tail is made of. Values in registers are texts; a statement is a line."""

    over: str  # division of whole numbers
    strided: bool  # whether what is loaded at once has to lie in equal steps along c

    def literal(self, x, dtype: DType) -> str:
        """A number of an element type."""

    def cast(self, text: str, given: DType, to: DType, saturate: bool = True, round_mode: str = "up") -> str:
        """A value as one of another element type, rounded where that is narrower, also if registers hold both alike."""

    def select(self, dtype: DType, mask: str, a: str, b: str) -> str:
        """One of two values of a type."""

    def call(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        """A primitive of ir/scalar.py, operators among them, on operands of a type."""

    def load(self, place: Access) -> Text:
        """The elements at a place."""

    def let(self, name: str, dtype: DType, text: Text, comment: str = "") -> Text:
        """The statement that names a value."""

    def increase(self, name: str, text: Text) -> Text:
        """The statement that adds to a value."""

    def store(self, place: Access, name: str) -> Text:
        """The statement that writes a value."""

    def pieces(self, name: str, pieces: Sequence[Piece]) -> list[Text]:
        """The statements that write slices of one value; they come by where they start."""


def operands(region: Region) -> list[Value]:
    """What the pointwise nodes of a region read and write by pointer."""
    made = {v for n in region.body.nodes for v in n.outputs}
    read = dict.fromkeys(v for n in region.tail for v in n.inputs if v not in made)
    return [*(v for v in read if scalar_constant(region, v) is None), *region.body.outputs]


def expression(language: Language, e, dtype: DType | None = None) -> str:
    """A Scalar, or a number of a type, in a language; leaves are `var` nodes that hold a name."""
    if not isinstance(e, Scalar):
        return language.literal(e, dtype)
    if e.fn == "var":
        return e.args[0]
    if e.fn == "cast":
        x, *how = e.args
        return language.cast(expression(language, x), x.dtype, e.dtype, *how)
    if e.fn == "select":
        mask, *choices = e.args
        a, b = (expression(language, x, e.dtype) for x in choices)
        return language.select(e.dtype, expression(language, mask, BOOL), a, b)
    operands = next(a.dtype for a in e.args if isinstance(a, Scalar))
    return language.call(e.fn, operands, [expression(language, a, operands) for a in e.args])


def statements(
    language: Language,
    region: Region,
    layouts: Layouts,
    grid: Grid,
    made: Sequence[Value],
    *,
    first: int,
    bias: Value | None = None,
    flat: bool = False,
    stored: bool = True,
) -> Statements:
    """What the anchor made at (b, r, c) taken through the pointwise nodes, and the outputs stored. ValueError where an
    operand does not lie as the language needs it.

    made: the values that there are, in order (x0, x1, …). add: a vector along c that is added to x0 first (a bias).
    first: the slot of the first pointer. flat: layouts are strides over the grid already, not over the values' own
    axes. stored: False where the outputs are values for what goes on.
    """
    walk = _Walk(language, region, layouts, grid, made, first, flat)
    if bias is not None:
        walk.lines.append(language.increase("x0", language.load(Access(walk.pointer(bias, "bias"), "c", 1, "c"))))
    for node in region.tail:
        walk.compute(node)
    for v in region.body.outputs if stored else ():
        if v in walk.names:
            walk.lines.append(language.store(walk.place(v, "y"), walk.names[v]))
    for x in dict.fromkeys(n.inputs[0] for n in region.pieces):
        found = sorted((n for n in region.pieces if n.inputs[0] is x), key=lambda n: n.attrs["starts"])
        walk.lines += language.pieces(walk.names[x], [walk.piece(n) for n in found])
    return Statements(tuple(walk.lines), tuple(walk.pointers), walk.names)


class _Walk:
    """The statements so far, what they have read and computed, and the pointers that they need."""

    def __init__(
        self,
        language: Language,
        region: Region,
        layouts: Layouts,
        grid: Grid,
        made: Sequence[Value],
        first: int,
        flat: bool,
    ):
        self.language, self.region, self.layouts, self.grid = language, region, layouts, grid
        self.first, self.flat = first, flat
        self.names: dict[Value, str] = {v: f"x{i}" for i, v in enumerate(made)}
        self.pointers: list[Pointer] = []
        self.lines: list[Text] = []

    def pointer(self, v: Value, kind: str) -> Pointer:
        i = len(self.pointers)
        self.pointers.append(Pointer(v, self.first + i, kind if kind == "bias" else f"{kind}{i}"))
        return self.pointers[-1]

    def place(self, v: Value, kind: str) -> Access:
        strides = self.layouts[v] if self.flat else broadcast(v.type.shape, self.layouts[v], self.grid.shape)
        step = self.grid.step(strides)
        if step is None and self.language.strided:
            raise ValueError(f"%{v.name} of {self.region.title()} has no single stride along the vector axis")
        at = self.grid.address(strides, self.language.over)
        return Access(self.pointer(v, kind), at, step, self.grid.varying(strides))

    def piece(self, node: Node) -> Piece:
        (axis,), (start,), v = self.grid.c, node.attrs["starts"], node.output
        own = Grid(v.type.shape, self.grid.b, self.grid.r, self.grid.c)
        if self.language.strided and own.step(self.layouts[v]) not in (0, 1):
            raise ValueError(f"a slice of {self.grid.shape} has no unit stride along the vector axis")
        return Piece(self.pointer(v, "y"), start, v.type.shape[axis], own, self.layouts[v])

    def read(self, v: Value) -> str:
        if v in self.names:
            return self.names[v]
        number = scalar_constant(self.region, v)
        if number is not None:
            return self.language.literal(number, v.type.dtype)
        return self.name(v, self.language.load(self.place(v, "e")))

    def name(self, v: Value, text: Text, comment: str = "") -> str:
        self.names[v] = f"v{len(self.names)}"
        self.lines.append(self.language.let(self.names[v], v.type.dtype, text, comment))
        return self.names[v]

    def compute(self, node: Node) -> None:
        leaves = tuple(Scalar("var", (self.read(v),), v.type.dtype) for v in node.inputs)
        out = node.op.trace(tuple(v.type.dtype for v in node.inputs), node.attrs, leaves)
        self.name(node.output, expression(self.language, out, node.output.type.dtype), node.op.name)
