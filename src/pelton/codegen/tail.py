"""A region's pointwise nodes as kernel statements, in any kernel language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.ir.types import BOOL, F32, DType
from pelton.ir.scalar import Scalar
from pelton.ops.words import clip
from pelton.plan.layout import Strides, broadcast
from pelton.plan.region import Region

from .code import Text
from .grid import Grid, scalar_constant
from .rounding import Rounded, Rounding
from .template import Layouts


@dataclass(frozen=True)
class Pointer:
    """A pointer to an operand that a tail reads or writes.

    name: bias; e and a number for operands that are read, y and a number for those that are written.
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
    """An operand's elements at the coordinates b, r, c."""

    pointer: Pointer
    at: Text  # the offset in elements
    step: Size | None  # the stride along c, or None if there is no single one
    varying: str  # the coordinates that the offset depends on: some of "brc"


@dataclass(frozen=True)
class Piece:
    """A separately stored slice of a value along c."""

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
    """The statements of a tail in order, its pointers, and the names of its input and computed values."""

    lines: tuple[Text, ...]
    pointers: tuple[Pointer, ...]
    names: Mapping[Value, str]

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(p.value for p in self.pointers)


class Language(Protocol):
    """The language of a kernel. Values in registers are expressions as text; a statement is a line."""

    over: str  # the operator of integer division
    strided: bool  # True if loads and stores need one stride along c

    def literal(self, x, dtype: DType) -> str:
        """Returns a number of an element type."""

    def cast(self, text: str, given: DType, to: DType, saturate: bool = True, round_mode: str = "up") -> str:
        """Casts a value to another element type; rounds it even if registers hold both types alike."""

    def round_within(self, text: str, to: DType) -> str:
        """Rounds an f32, NaN or within the range of an integer type of 8 or 16 bits, half to even, to that type."""

    def round_saturated(self, text: str, plus: int, to: DType) -> str | None:
        """Rounds an f32 below 2³⁰ half to even, adds a number of at most 255, and saturates to an 8-bit type; None if
        clipping first is as good."""

    def select(self, dtype: DType, mask: str, a: str, b: str) -> str:
        """Returns `a` where the mask is true, else `b`."""

    def call(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        """Calls a primitive or operator of ir/scalar.py on operands of a type."""

    def load(self, place: Access) -> Text:
        """Returns the expression that loads elements."""

    def let(self, name: str, dtype: DType, text: Text, comment: str = "") -> Text:
        """Returns the statement that names a value."""

    def increase(self, name: str, text: Text) -> Text:
        """Returns the statement that adds to a value."""

    def store(self, place: Access, name: str) -> Text:
        """Returns the statement that stores a value."""

    def pieces(self, name: str, pieces: Sequence[Piece]) -> list[Text]:
        """Returns the statements that store slices of one value, in order of their starts."""


def operands(region: Region) -> list[Value]:
    """Returns the values that the pointwise nodes of a region read and write by pointer."""
    made = {v for n in region.body.nodes for v in n.outputs}
    read = dict.fromkeys(v for n in region.tail for v in n.inputs if v not in made)
    return [*(v for v in read if scalar_constant(region, v) is None), *region.body.outputs]


def expression(language: Language, e, dtype: DType | None = None) -> str:
    """Returns a Scalar, or a number of a type, as an expression; leaves are `var` nodes that hold a name."""
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
    """Emits the statements that compute the pointwise nodes at (b, r, c) and store the outputs.

    made: the anchor's results, named x0, x1, … in order. bias: a vector along c that is added to x0 first. first: the
    slot of the first pointer. flat: layouts are strides over the grid, not over the values' own axes. stored: True to
    store the outputs. Raises ValueError if the language needs a single stride along c and an operand has none.
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
        pieces = sorted((n for n in region.pieces if n.inputs[0] is x), key=lambda n: n.attrs["starts"])
        walk.lines += language.pieces(walk.names[x], [walk.piece(n) for n in pieces])
    return Statements(tuple(walk.lines), tuple(walk.pointers), walk.names)


class _Walk:
    """The statements so far, the names of values read and computed, and the pointers."""

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
        self.rounding = Rounding(region, {n.output: n for n in region.tail})

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
        text = self.rounded(node) or self.read_again(node) or expression(self.language, out, node.output.type.dtype)
        self.name(node.output, text, node.op.name)

    def rounded(self, node: Node) -> str | None:
        """Casts a value clipped to the range of a small integer type, without checks; None for other nodes.

        The cast also rounds values that were rounded before a clip to whole numbers, and saturates values clipped to
        the type's full range.
        """
        rounded = self.rounding.of(node)
        if rounded is None:
            return None
        largest = self.rounding.largest(rounded.x) if rounded.saturates and abs(rounded.zero) <= 255 else None
        if largest is not None and largest < 2.0**30:
            text = self.language.round_saturated(self.read(rounded.x), int(rounded.zero), rounded.to)
            if text is not None:
                return text
        if rounded.zero:
            return self.language.round_within(self.names[rounded.clip.output], rounded.to)
        return self.language.round_within(self.clip(rounded, rounded.x, 0), rounded.to)

    def read_again(self, node: Node) -> str | None:
        """Reads rounded small integers as f32, perhaps less their zero point, without converting them there and back;
        None for other nodes."""
        reading = self.rounding.read_again(node)
        if reading is None or reading[1] not in (0, -reading[0].zero):
            return None
        rounded, number = reading
        return self.clip(rounded, rounded.round.output, rounded.zero) if number else self.names[rounded.clip.output]

    def clip(self, rounded: Rounded, v: Value, less: float) -> str:
        """Clips a value to the limits of a rounding, each less a number."""
        low, high = (Scalar("var", (self.language.literal(x - less, F32),), F32) for x in (rounded.low, rounded.high))
        leaves = (Scalar("var", (self.read(v),), F32), low, high)
        return expression(self.language, clip.trace((F32, F32, F32), rounded.clip.attrs, leaves), F32)
