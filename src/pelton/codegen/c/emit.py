"""The C reading of pointwise expressions, and the two marked blocks of a kernel file filled in for one region and tactic."""
from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from pelton.ir import dims
from pelton.ir.dims import Dim, Size
from pelton.ir.dims_text import parse
from pelton.ir.graph import Node, Value
from pelton.ir.types import BOOL, DType
from pelton.ops.scalar import Scalar
from pelton.plan.layout import Strides, broadcast
from pelton.plan.region import Region
from pelton.plan.workspace import Workspace

from pelton.codegen.template import Kernel, Layouts, Packed, Tactic, source

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_WIDE = frozenset("f64 f32 i64 i32 i16 i8 u64 u32 u16 u8 bool".split())                # element types of vec.h that are the same in registers
_NARROW = frozenset(d.value for d in DType if (d.is_float or d.is_integer) and (d.bits < 8 or d.value.startswith("f8")))      # those of vec_narrow.h
_NARROW_WORDS = re.compile(rf"(_|\b)({'|'.join(sorted(_NARROW))})(_|\b)")

TABLED = 1 << 16               # numbers that tables in a kernel's source may have in all: more cost compilers seconds


def computed(dtype: DType) -> str:
    """The element type that kernels compute in: narrow floats as f32, integers of 2 and 4 bits in a byte."""
    return dtype.value if dtype.value in _WIDE else "f32" if dtype.is_float else f"{dtype.value[0]}8"


def vector(dtype: DType) -> str:
    """The C vector type of a value in registers (a bool is a lane mask)."""
    return "vi32" if dtype is BOOL else "v" + computed(dtype)


def memory(dtype: DType) -> str:
    """The C type of an element in memory."""
    return "u8" if dtype is BOOL else dtype.value


def computable(dtype: DType) -> bool:
    """Whether generated kernels hold this element type."""
    return dtype.is_float or dtype.is_integer or dtype is BOOL


def literal(x, dtype: DType) -> str:
    """A number as a vector of equal lanes."""
    if dtype is BOOL:
        return f"((vi32)(int){-int(bool(x))})"
    kind = computed(dtype)
    if not dtype.is_float:
        x = int(x)
        text = f"({kind}){x}" if x > -(1 << 63) else f"({kind})(-{(1 << 63) - 1}LL - 1)"
        if dtype.value[0] == "u":
            text += "u" if dtype.size < 8 else "ull"
        elif dtype.size == 8 and x > -(1 << 63):
            text += "LL"
    else:
        x = float(x)
        suffix = "f" if kind == "f32" else ""
        if math.isnan(x):
            text = f"__builtin_nan{suffix}(\"\")"
        elif math.isinf(x):
            text = ("-" if x < 0 else "") + f"__builtin_inf{suffix}()"
        else:
            text = (repr(float(np.float32(x))) if kind == "f32" else repr(x)) + suffix
            if kind == "f32" and math.isinf(float(np.float32(x))):
                text = ("-" if x < 0 else "") + "__builtin_inff()"
    return f"bc_{kind}({text})"


def expression(e, dtype: DType | None = None) -> str:
    """A Scalar as a C expression on vectors; leaves are `var` nodes that hold a C name."""
    if not isinstance(e, Scalar):
        return literal(e, dtype)
    if e.fn == "var":
        return e.args[0]
    kinds = [a.dtype for a in e.args if isinstance(a, Scalar)]
    if e.fn == "cast":
        return _cast(e.dtype, *e.args)
    if e.fn == "select":
        mask, a, b = e.args
        return f"{_prefix(e.dtype)}_select({expression(mask, BOOL)}, {expression(a, e.dtype)}, {expression(b, e.dtype)})"
    operand = kinds[0]
    args = [expression(a, operand) for a in e.args]
    if e.fn in _OPERATORS:
        return f"({args[0]} {_OPERATORS[e.fn]} {args[1]})"
    if e.fn == "neg":
        return f"(-{args[0]})"
    if e.fn == "not":
        return f"(~{args[0]})"
    return f"{_prefix(operand)}_{e.fn}({', '.join(args)})"


def _cast(to: DType, x: Scalar, saturate: bool = True, round_mode: str = "up") -> str:
    """A value in registers as one of another element type: rounded, where that is narrower, also if registers hold both alike."""
    source, text = computed(x.dtype), expression(x)
    if x.dtype is to or source == to.value:
        return text
    if to.value in _NARROW:                                                # from the types that registers hold, by way of f32 and i32
        middle = "f32" if to.is_float else "i32"
        way = "" if to is not DType.F8E8M0FNU or round_mode == "up" else f"_{round_mode}"
        way += "" if saturate or not to.value.startswith("f8") else "_free"
        return f"cast_{middle}_{to.value}{way}({text if source == middle else f'cast_{source}_{middle}({text})'})"
    return f"cast_{source}_{to.value}({text})"


def _prefix(dtype: DType) -> str:
    return "i32" if dtype is BOOL else computed(dtype)


def spelled(x: Size) -> str:
    """A size in C: a literal, or what `kernel` makes an argument of the kernel where a run decides it."""
    if not isinstance(x, Dim):
        return f"{int(x)}LL"
    return f"⟨{x}|{' '.join(f'{s.name}:{s.least}:{s.usual}:{s.most}' for s in dims.symbols(x))}⟩"


@dataclass(frozen=True)
class Grid:
    """How a template names the elements of its output: three coordinates, each a run of logical axes (outer first)."""

    shape: tuple[Size, ...]
    b: tuple[int, ...]
    r: tuple[int, ...]
    c: tuple[int, ...]

    def address(self, strides: Strides) -> str:
        """C: the offset in elements of (b, r, c), for strides over the grid's axes."""
        terms = [*self._terms("b", self.b, strides), *self._terms("r", self.r, strides), *self._terms("c", self.c, strides)]
        return " + ".join(terms) or "0"

    def step(self, strides: Strides) -> Size | None:
        """The stride along c: 1, 0 (broadcast), or None where it is not one number."""
        runs = self.runs(self.c, strides)
        return 0 if not runs else runs[0][1] if len(runs) == 1 else None

    def runs(self, axes: tuple[int, ...], strides: Strides) -> list[tuple[Size, Size]]:
        """Neighbouring axes of the run that are one axis in memory, joined: (size, stride), outer first."""
        runs: list[list[Size]] = []
        for a in axes:
            d, s = self.shape[a], strides[a]
            if d == 1:
                continue
            if runs and runs[-1][1] == d * s:
                runs[-1] = [runs[-1][0] * d, s]
            else:
                runs.append([d, s])
        return [(d, s) for d, s in runs]

    def _terms(self, var: str, axes: tuple[int, ...], strides: Strides) -> list[str]:
        runs, terms, below = self.runs(axes, strides), [], 1
        for k, (d, s) in reversed(list(enumerate(runs))):
            part = var if below == 1 else f"({var} / {spelled(below)})"
            if k > 0:
                part = f"({part} % {spelled(d)})"
            if s:
                terms.append(part if s == 1 else f"{part} * {spelled(s)}")
            below *= d
        return terms[::-1]


@dataclass(frozen=True)
class Tail:
    """The fused pointwise code of a region and the pointers it needs."""

    text: str
    operands: tuple[Value, ...]


def scalar_constant(region: Region, v: Value):
    """The one number that a constant of the region holds, or None."""
    array = region.body.constants.get(v)
    return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None


def tail(region: Region, layouts: Layouts, grid: Grid, made: Sequence[Value], *, first: int, add: Value | None = None, flat: bool = False,
         unit: int | None = None, inner: str = "") -> Tail:
    """`finish`, which takes what the anchor made at (b, r, c), n lanes along c, through the pointwise nodes, and stores the outputs.

    made: the values that the caller passes in, in order (x0, x1, …). add: a vector along c that is added to x0 first (a bias).
    first: the index of the first pointer in the args table. flat: layouts are strides over the grid already, not over the values' own axes.
    unit: c is a multiple of it, and n is no more (None: may be anything).
    inner: a name instead of `finish`, for what goes on in the same kernel: the function of this name gives its only output back as a vector.
    """
    code = _Code(region, layouts, grid, made, first, flat)
    if add is not None:
        code.lines.append(f"x0 += ldn_f32({code.pointer(add, 'bias')} + c, n);")
    for node in region.tail:
        code.compute(node)
    for v in () if inner else region.body.outputs:
        if v in code.names:
            code.store(v)
    for x in dict.fromkeys(n.inputs[0] for n in region.pieces):
        code.lines += _pieces([n for n in region.pieces if n.inputs[0] is x], code.names[x], layouts, grid, code.pointer, unit)
    declared = " ".join(f"{f};" for f, _ in code.fields)
    opened = ", ".join(f"a[{i}].p" for _, i in code.fields)
    params = ", ".join(f"{vector(v.type.dtype)} x{i}" for i, v in enumerate(made))
    if any("⟨" in line for line in code.lines):
        declared, opened = f"const args *a; {declared}", ", ".join(filter(None, ("a", opened)))
        code.lines.insert(0, "const args *a = t->a;")
    if inner:
        code.lines.append(f"return {code.names[region.output]};")
    pointers = f"{inner}_tail" if inner else "tail"
    text = (f"typedef struct {{ {declared} }} {pointers};\n"
            f"AI {pointers} {pointers}_open(const args *a) {{ return ({pointers}){{ {opened} }}; }}\n"
            f"AI {f'vf32 {inner}' if inner else 'void finish'}(const {pointers} *t, {params + ', ' if params else ''}idx b, idx r, idx c, int n) {{\n"
            "    (void)b; (void)r; (void)c;\n    "
            + "\n    ".join(code.lines) + "\n}\n")
    return Tail(text, tuple(code.operands))


class _Code:
    """The statements of a tail, what they have read and computed so far, and the pointers that they need."""

    def __init__(self, region: Region, layouts: Layouts, grid: Grid, made: Sequence[Value], first: int, flat: bool):
        self.region, self.layouts, self.grid, self.first, self.flat = region, layouts, grid, first, flat
        self.names: dict[Value, str] = {v: f"x{i}" for i, v in enumerate(made)}
        self.operands: list[Value] = []
        self.fields: list[tuple[str, int]] = []
        self.lines: list[str] = []

    def pointer(self, v: Value, kind: str) -> str:
        """C: the pointer to an operand: a bias, an element that is read (e), or written (y)."""
        i = len(self.operands)
        field = kind if kind == "bias" else f"{kind}{i}"
        self.operands.append(v)
        self.fields.append((f"{'' if kind == 'y' else 'const '}{memory(v.type.dtype)} *{field}", self.first + i))
        return f"t->{field}"

    def place(self, v: Value, kind: str) -> tuple[Size, str]:
        """The stride of a value along the vector axis, and where its element is."""
        strides = self.layouts[v] if self.flat else broadcast(v.type.shape, self.layouts[v], self.grid.shape)
        step = self.grid.step(strides)
        if step is None:
            raise ValueError(f"%{v.name} of {self.region.title()} has no single stride along the vector axis")
        return step, f"{self.pointer(v, kind)} + {self.grid.address(strides)}"

    def read(self, v: Value) -> str:
        if v in self.names:
            return self.names[v]
        number = scalar_constant(self.region, v)
        if number is not None:
            return literal(number, v.type.dtype)
        (step, where), kind = self.place(v, "e"), v.type.dtype.value
        load = f"bc_{kind}(*({where}))" if step == 0 else f"ldn_{kind}({where}, n)" if step == 1 else f"ldg_{kind}({where}, {spelled(step)}, n)"
        return self.name(v, load)

    def name(self, v: Value, text: str, comment: str = "") -> str:
        self.names[v] = f"v{len(self.names)}"
        self.lines.append(f"const {vector(v.type.dtype)} {self.names[v]} = {text};{comment}")
        return self.names[v]

    def compute(self, node: Node) -> None:
        leaves = tuple(Scalar("var", (self.read(v),), v.type.dtype) for v in node.inputs)
        out = node.op.trace(tuple(v.type.dtype for v in node.inputs), node.attrs, leaves)
        self.name(node.output, expression(out), f"  // {node.op.name}")

    def store(self, v: Value) -> None:
        (step, where), kind, name = self.place(v, "y"), v.type.dtype.value, self.names[v]
        self.lines.append(f"stn_{kind}({where}, {name}, n);" if step in (0, 1) else f"stg_{kind}({where}, {spelled(step)}, {name}, n);")


def _pieces(nodes: Sequence[Node], name: str, layouts: Layouts, grid: Grid, pointer: Callable[[Value, str], str],
            unit: int | None) -> list[str]:
    """C: stores of the slices along c of one vector. Where no vector lies across an end and every one belongs to one slice, a single store whose place
    is found by c (for GoogLeNet's products within half a percent of storing them undivided; a store for each slice took one to two); else what belongs
    to each."""
    (axis,), dtype = grid.c, nodes[0].output.type.dtype
    nodes = sorted(nodes, key=lambda n: n.attrs["starts"])
    starts, sizes = [n.attrs["starts"][0] for n in nodes], [n.output.type.shape[axis] for n in nodes]
    lying = [Grid(n.output.type.shape, grid.b, grid.r, grid.c) for n in nodes]
    if any(g.step(layouts[n.output]) not in (0, 1) for g, n in zip(lying, nodes)):
        raise ValueError(f"a slice of {grid.shape} has no unit stride along the vector axis")
    rows = [g.runs(g.r, layouts[n.output]) for g, n in zip(lying, nodes)]
    parted = [*starts, grid.shape[axis]] == [*accumulate(sizes, initial=0)]
    if unit is None or any(s % unit for s in starts) or not parted or max(map(len, rows)) > 1:
        return [f"stp_{dtype.value}({pointer(n.output, 'y')} + {Grid(g.shape, g.b, g.r, ()).address(layouts[n.output])}, {k}, c - {s}, {name}, n);"
                for n, g, k, s in zip(nodes, lying, sizes, starts)]

    def by_c(choices: Sequence[str]) -> str:
        return " ".join(f"c < {s} ? {x} :" for s, x in zip(starts[1:], choices)) + f" {choices[-1]}"

    first = [f"{pointer(n.output, 'y')} + {Grid(g.shape, g.b, (), ()).address(layouts[n.output])}" for n, g in zip(nodes, lying)]
    return [f"{{ {memory(dtype)} *const y = {by_c(first)};",
            f"  const idx row = {by_c([spelled(r[0][1]) if r else '0' for r in rows])}, start = {by_c(list(map(str, starts)))};",
            f"  stn_{dtype.value}(y + r * row + (c - start), {name}, n); }}"]


def constants(**sizes: Size) -> str:
    """Sizes by name, for C: as constants, as wide as an index so that products do not overflow; as macros that read an argument where a run decides them."""
    known = [f"{k} = {int(v)}" for k, v in sizes.items() if not isinstance(v, Dim)]
    return (f"enum : idx {{ {', '.join(known)} }};\n" if known else "") + "".join(
        f"#define {k} {spelled(v)}\n" for k, v in sizes.items() if isinstance(v, Dim))


def kernel(file: str, region: Region, tactic: Tactic, block: str, operands: Sequence[Value | Packed | Workspace], tiles: Size, *, grain: int = 1,
           scratch: Size = 0, phases: Size = 1, told: Mapping[str, int] | None = None) -> Kernel:
    """The kernel file with its region and tactic blocks replaced. Sizes in the block that a run decides become arguments behind the pointers: code that
    uses them needs `const args *a` in scope. So do the numbers `told` to it by name, for all values of which it is one kernel."""
    marked = list(dict.fromkeys(re.findall("⟨.*?⟩", block)))
    sizes = [unspelled(mark) for mark in marked]
    for i, mark in enumerate(marked):
        block = block.replace(mark, f"SIZE{i}")
    if sizes:
        named = "".join(f"#define SIZE{i} (a[{len(operands) + i}].d)  // {size}\n" for i, size in enumerate(sizes))
        block = f"#undef ARGS\n#define ARGS {len(operands) + len(sizes) + len(told or ())}\n{named}{block}"
    block = "".join(f"#define {name} (a[{len(operands) + len(sizes) + i}].d)\n" for i, name in enumerate(told or ())) + block
    source, symbol = _filled(file, region, tactic, block)
    return Kernel(source, symbol, tuple(operands), tiles, (*sizes, *(told or {}).values()), grain, scratch, phases)


def unspelled(mark: str) -> Size:
    """The size that `spelled` marked."""
    text, _, known = mark[1:-1].partition("|")
    bounds = (symbol.split(":") for symbol in known.split())
    return parse(text, {name: dims.symbol(name, int(least), int(usual), int(most)) for name, least, usual, most in bounds})


def _filled(file: str, region: Region, tactic: Tactic, block: str) -> tuple[str, str]:
    """The kernel file with its region and tactic blocks replaced: (source, symbol)."""
    text = source(file)
    for mark, new in (("region", block), ("tactic", constants(**dict(tactic.params)) if tactic.params else "")):
        parts = re.split(rf"// </?{mark}>\n", text)
        if len(parts) != 3:
            raise ValueError(f"{file} needs one block '{mark}'")
        text = f"{parts[0]}// <{mark}>\n{new}// </{mark}>\n{parts[2]}"
    if _NARROW_WORDS.search(block):
        text = text.replace("\n// <region>\n", '#include "vec_narrow.h"\n\n// <region>\n', 1)
    text = f"// {region.title()} by {tactic.name}\n" + text
    symbol = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return text.replace("KERNEL", symbol), symbol


def grid_of(shape: Sequence[int], kind: str) -> Grid:
    """The usual grids: "pixels" (n | spatial | channel) and "rows" (leading axes | second last | last)."""
    rank = len(shape)
    if kind == "pixels":
        return Grid(tuple(shape), (0,), tuple(range(2, rank)), (1,))
    return Grid(tuple(shape), tuple(range(rank - 2)), (rank - 2,) if rank > 1 else (), (rank - 1,) if rank else ())

