"""The Triton reading of pointwise expressions, and the two marked blocks of a kernel file filled in for one region and tactic.

A kernel has one parameter, the tuple `a`: the pointers of its operands in order, then the sizes that a run decides. Every operand begins at a multiple of
`ALIGNED` bytes; loads are wide only because of that.
"""
from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path

import numpy as np

from pelton.backends.cuda.bundle import Map
from pelton.engine.library import LIBRARIES
from pelton.ir.dims import Dim, Size, bounds
from pelton.ir.graph import Node, Value
from pelton.ir.types import BOOL, STRING, DType
from pelton.codegen.c import emit as c_emit
from pelton.codegen.c.emit import Grid, Tail, scalar_constant
from pelton.codegen.template import Kernel, Layouts, Packed, Tactic
from pelton.ops.scalar import Scalar
from pelton.ops.words import copy
from pelton.plan.layout import Strides, broadcast, span
from pelton.plan.region import Region
from pelton.plan.workspace import Workspace

FILES = Path(__file__).parent / "src"
ALIGNED = 16
TYPES = {"f64": ("float64", "fp64"), "f32": ("float32", "fp32"), "f16": ("float16", "fp16"), "bf16": ("bfloat16", "bf16"), "bool": ("int1", "u8"),
         **{f"{s}{n}": (f"{'u' * (s == 'u')}int{n}", f"{s}{n}") for s in "iu" for n in (8, 16, 32, 64)}}         # in registers, in memory
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_CORE = {"exp": "tl.exp", "log": "tl.log", "sqrt": "tl.sqrt", "sin": "tl.sin", "cos": "tl.cos", "erf": "tl.erf", "abs": "tl.abs", "floor": "tl.floor",
         "ceil": "tl.ceil", "select": "tl.where"}
_LIBRARY = ("pow", "tanh", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "rint", "trunc")        # of libdevice


def computable(dtype: DType) -> bool:
    """Whether generated kernels hold this element type."""
    return dtype.value in TYPES


def movable(dtype: DType) -> bool:
    """Whether they can copy it, as the bits that it is."""
    return computable(dtype) or dtype is not STRING and dtype.size <= 8


def memory(dtype: DType) -> str:
    """What Triton calls an element in memory: what kernels do not compute with is so many bits."""
    return TYPES[dtype.value][1] if computable(dtype) else f"u{8 * dtype.size}"


def computed(dtype: DType) -> str:
    """The Triton type of a value in registers: narrow floats are computed in f32."""
    return "tl.float32" if dtype.value in ("f16", "bf16") else f"tl.{TYPES[dtype.value][0]}"


def in_registers(text: str, dtype: DType) -> str:
    """What was loaded, as registers hold it."""
    return f"({text} != 0)" if dtype is BOOL else f"{text}.to(tl.float32)" if dtype.value in ("f16", "bf16") else text


def literal(x, dtype: DType) -> str:
    """A number of an element type."""
    if dtype.is_float:
        x = float(x)
        if math.isfinite(x) and not np.isfinite(np.float32(x)) and computed(dtype) == "tl.float32":
            x = math.copysign(math.inf, x)
        text = repr(x) if math.isfinite(x) else f'float("{x}")'
    else:
        text = repr(bool(x) if dtype is BOOL else int(x))
    return f"tl.full([], {text}, {computed(dtype)})"


def expression(e, dtype: DType | None = None) -> str:
    """A Scalar as a Triton expression on blocks; leaves are `var` nodes that hold a name."""
    if not isinstance(e, Scalar):
        return literal(e, dtype)
    if e.fn == "var":
        return e.args[0]
    if e.fn == "cast":
        return _cast(e.dtype, e.args[0])
    if e.fn == "select":
        return f"tl.where({expression(e.args[0], BOOL)}, {expression(e.args[1], e.dtype)}, {expression(e.args[2], e.dtype)})"
    operand = next(a.dtype for a in e.args if isinstance(a, Scalar))
    args = [expression(a, operand) for a in e.args]
    if e.fn in _OPERATORS:
        return f"({args[0]} {_OPERATORS[e.fn]} {args[1]})"
    if e.fn in ("div", "sqrt") and computed(operand) == "tl.float32":            # what is written `/`, and tl.sqrt, are not rounded as IEEE 754 has it
        return f"tl.{e.fn}_rn({', '.join(args)})"
    if e.fn == "div":
        return f"({args[0]} / {args[1]})" if operand.is_float else f"quotient({args[0]}, {args[1]})"
    if e.fn == "fmod":                                                          # of floats `%` is x - trunc(x/y)·y, which is off where the quotient is large
        return f"{'libdevice.fmod' if operand.is_float else 'remainder'}({args[0]}, {args[1]})"
    if e.fn == "neg":
        return f"(-{args[0]})"
    if e.fn == "not":
        return f"({args[0]} == 0)" if operand is BOOL else f"(~{args[0]})"
    if e.fn in _LIBRARY:
        return f"libdevice.{e.fn}({', '.join(args)})" if e.fn != "pow" or operand.is_float else f"power({', '.join(args)})"
    return f"{_CORE[e.fn] if e.fn in _CORE else e.fn}({', '.join(args)})"


def _cast(to: DType, x: Scalar) -> str:
    """A value in registers as one of another element type; narrow floats are rounded, though registers hold them as f32."""
    text, source = expression(x), computed(x.dtype)
    if x.dtype is to:
        return text
    if to is BOOL:
        return f"({text} != 0)"
    if to.value in ("f16", "bf16"):
        return f"{text}.to(tl.{TYPES[to.value][0]}).to(tl.float32)"
    if x.dtype.is_float and to.is_integer and to.bits < 32:                # what does not fit wraps, as on the CPU, unless it does not fit 32 bits either
        return f"{text}.to(tl.int32).to({computed(to)})"
    if x.dtype.is_float and to is DType.U64:                               # what is below 0 wraps, too
        return f"tl.where({text} < 0, {text}.to(tl.int64).to(tl.uint64), {text}.to(tl.uint64))"
    if x.dtype.is_float and to is DType.U32:
        return f"{text}.to(tl.int64).to(tl.uint32)"
    return text if source == computed(to) else f"{text}.to({computed(to)})"


def unreadable(nodes: Sequence[Node]) -> str | None:
    """Why pointwise nodes have no Triton reading; None where they have."""
    for node in nodes:
        for v in (*node.inputs, node.output):
            if not (movable if node.op is copy else computable)(v.type.dtype):
                return f"{v.type.dtype.value} is not held by kernels"
    return None


def spelled(x: Size) -> str:
    """A size in Triton: a literal, or what `kernel` makes an element of `a` where a run decides it."""
    return c_emit.spelled(x) if isinstance(x, Dim) else str(int(x))


def address(grid: Grid, strides: Strides, b: str = "b", r: str = "r", c: str = "c") -> str:
    """The offset in elements of the coordinates (b, r, c), for strides over the grid's axes."""
    terms = []
    for var, axes in ((b, grid.b), (r, grid.r), (c, grid.c)):
        part, below = [], 1
        for k, (d, s) in reversed(list(enumerate(grid.runs(axes, strides)))):
            place = var if below == 1 else f"({var} // {spelled(below)})"
            if k > 0:
                place = f"({place} % {spelled(d)})"
            if s:
                part.append(place if s == 1 else f"{place} * {spelled(s)}")
            below *= d
        terms += part[::-1]
    return " + ".join(terms) or "0"


def there(where: str) -> str:
    """The mask of the elements that an offset leads to: of each coordinate only where it makes a difference."""
    used = set(re.findall(r"\b[brc]\b", re.sub("⟨.*?⟩", "", where)))
    return " & ".join(["rows"] * ("r" in used) + ["cols"] * ("c" in used))


def place(name: str, grid: Grid, strides: Strides) -> str:
    """A device function that gives the offset in elements of (b, r, c), of blocks a block: where all elements of these lie in one place, too."""
    where = address(grid, strides)
    if not there(where):
        where += " + (r + c) * 0"
    return f"@triton.jit\ndef {name}(b, r, c, a):\n    return {where}\n\n\n"


def tail(region: Region, layouts: Layouts, grid: Grid, made: Sequence[Value], *, first: int, add: Value | None = None, flat: bool = False) -> Tail:
    """`finish`, which takes what the anchor made at (b, r, c) through the pointwise nodes, and stores the outputs.

    The coordinates broadcast against each other: b is a number of which there is such an element, r a block along the first axis, c along the second; `rows`
    and `cols` are masks of the shapes of r and c. made: the values that the caller passes in, in order (x0, x1, …), in the types of registers. add: a vector
    along c that is added to x0 first (a bias). first: the index of the first pointer in `a`. flat: layouts are strides over the grid already.
    """
    code = _Code(region, layouts, grid, made, first, flat)
    if add is not None:
        code.lines.append(f"x0 += {code.load(add, 'c', 'cols')}")
    for node in region.tail:
        code.compute(node)
    for v in region.body.outputs:
        if v in code.names:
            code.store(v, code.names[v], *code.place(v))
    for node in region.pieces:
        code.piece(node)
    params = "".join(f"x{i}, " for i in range(len(made)))
    body = "\n    ".join(["inside = rows & cols", "at = tl.zeros(inside.shape, tl.int32)", *code.lines])
    return Tail(f"@triton.jit\ndef finish({params}b, r, c, rows, cols, a):\n    {body}\n", tuple(code.operands))


class _Code:
    """The statements of a tail, what they have read and computed so far, and the pointers that they need."""

    def __init__(self, region: Region, layouts: Layouts, grid: Grid, made: Sequence[Value], first: int, flat: bool):
        self.region, self.layouts, self.grid, self.first, self.flat = region, layouts, grid, first, flat
        self.names: dict[Value, str] = {v: f"x{i}" for i, v in enumerate(made)}
        self.operands: list[Value] = []
        self.lines: list[str] = []

    def pointer(self, v: Value) -> str:
        self.operands.append(v)
        return f"a[{self.first + len(self.operands) - 1}]"

    def place(self, v: Value) -> tuple[str, str]:
        """Where the elements of a value are, and the mask of those that there are."""
        where = address(self.grid, self.layouts[v] if self.flat else broadcast(v.type.shape, self.layouts[v], self.grid.shape))
        return where, there(where)

    def load(self, v: Value, where: str, mask: str) -> str:
        text = f"tl.load({self.pointer(v)} + ({where}){f', mask={mask}, other=0' if mask else ''})"
        return in_registers(text, v.type.dtype)

    def read(self, v: Value) -> str:
        if v in self.names:
            return self.names[v]
        number = scalar_constant(self.region, v)
        return literal(number, v.type.dtype) if number is not None else self.name(v, self.load(v, *self.place(v)))

    def name(self, v: Value, text: str, comment: str = "") -> str:
        self.names[v] = f"v{len(self.names)}"
        self.lines.append(f"{self.names[v]} = {text}{comment}")
        return self.names[v]

    def compute(self, node: Node) -> None:
        leaves = tuple(Scalar("var", (self.read(v),), v.type.dtype) for v in node.inputs)
        out = node.op.trace(tuple(v.type.dtype for v in node.inputs), node.attrs, leaves)
        self.name(node.output, expression(out, node.output.type.dtype), f"  # {node.op.name}")

    def store(self, v: Value, name: str, where: str, _: str = "", mask: str = "inside") -> None:
        value = f"({name}).to(tl.int8)" if v.type.dtype is BOOL else name
        self.lines.append(f"tl.store({self.pointer(v)} + (at + {where}), {value}, mask={mask})")

    def piece(self, node: Node) -> None:
        """A slice along c, written to a place of its own."""
        (axis,), (start,), v = self.grid.c, node.attrs["starts"], node.output
        size = v.type.shape[axis]
        where = address(Grid(v.type.shape, self.grid.b, self.grid.r, self.grid.c), self.layouts[v], c=f"(c - {start})")
        self.store(v, self.names[node.inputs[0]], where, mask=f"inside & (c >= {start}) & (c < {spelled(start + size)})")


def kernel(file: str, region: Region, tactic: Tactic, sizes: Mapping[str, Size], block: str, operands: Sequence[Value | Packed | Workspace],
           tiles: Size, layouts: Layouts, phases: Size = 1, maps: Sequence[Map] = ()) -> Kernel:
    """The kernel file with its region and tactic blocks replaced. The tactic says WARPS and, for pipelined loops, STAGES. `sizes` are constants by name where
    they are known; where a run decides them, their names stand for elements of `a`, behind the pointers, as do sizes in the block. A tactic that is PHASED has
    behind them the phase that a launch begins with and the one that it ends before, from element PHASE on. A kernel with maps is one in Gluon."""
    marks: dict[str, int] = {}

    def argument(mark: str) -> str:
        return f"a[{len(operands) + marks.setdefault(mark, len(marks))}]"
    block = re.sub("⟨.*?⟩", lambda mark: argument(mark[0]), block)
    text = _filled(source(file), "region", _constants({k: v for k, v in sizes.items() if not isinstance(v, Dim)}) + "\n\n" + block)
    varying = {name: argument(c_emit.spelled(size)) for name, size in sizes.items() if isinstance(size, Dim)}
    if varying:
        text = re.sub(rf"\b({'|'.join(varying)})\b", lambda name: varying[name[0]], text)
    dims = [c_emit.unspelled(mark) for mark in marks]
    chosen = dict(tactic.params)
    ends = {"PHASE": len(operands) + len(dims)} if chosen.get("PHASED") else {}
    text = _filled(text, "tactic", _constants({k: v for k, v in (chosen | ends).items() if k not in ("WARPS", "STAGES")}))
    large = bool(dims) or any(bounds(_reach(x, layouts))[1] >= 1 << 31 for x in operands)
    types = [f"*{memory(x.type.dtype if isinstance(x, Value) else x.dtype)}" for x in operands] + ["i64"] * (len(dims) + 2 * len(ends))
    whole = [True] * len(operands) + [d // ALIGNED * ALIGNED == d for d in dims] + [False, False] * len(ends)
    text = _in_gluon(_with_scalars(text)) if maps else _with_scalars(text)
    head = (f'"""{region.title()} by {tactic.name}."""\n'
            f"SIGNATURE, WARPS, STAGES = {tuple(types)}, {chosen['WARPS']}, {chosen.get('STAGES', 1)}\nMULTIPLES = {tuple(whole)}\n"
            + (f"MAPS = {tuple(map(astuple, maps))}\n" if maps else ""))
    text = head + text.partition('"""\n')[2].replace("INDEX = tl.constexpr(tl.int32)", f"INDEX = tl.constexpr(tl.int{64 if large else 32})")
    return named(Kernel(text, "KERNEL", tuple(operands), tiles, tuple(dims), phases=phases))


def named(kernel: Kernel) -> Kernel:
    """A kernel whose name stands for its source."""
    symbol = "k_" + hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
    return replace(kernel, source=kernel.source.replace("KERNEL", symbol), symbol=symbol)


def lying(kernel: Kernel, aligned: Sequence[bool]) -> Kernel:
    """The kernel for operands of which some do not begin at a multiple of `ALIGNED` bytes, such as slices: of these it loads one element after the other,
    and describes none to the units that fetch boxes of memory."""
    if all(aligned) or kernel.symbol in LIBRARIES:
        return kernel

    def lies(found: re.Match[str]) -> str:
        return f"MULTIPLES = {(*aligned, *ast.literal_eval(found[1])[len(aligned):])}"
    source = re.sub(r"^MULTIPLES = (.*)$", lies, kernel.source.replace(kernel.symbol, "KERNEL"), count=1, flags=re.M)
    source = re.sub(r"^DESCRIBED = .*$", "DESCRIBED = tl.constexpr(0)", source, flags=re.M)
    return named(replace(kernel, source=source))


def _reach(x: Value | Packed | Workspace, layouts: Layouts) -> Size:
    """Elements from the first to past the last one."""
    return span(x.type.shape, tuple(abs(s) if isinstance(s, int) else s for s in layouts[x])) if isinstance(x, Value) else math.prod(x.shape)


def _constants(sizes: Mapping[str, Size]) -> str:
    return "".join(f"{k} = tl.constexpr({v!r})\n" for k, v in sizes.items())


@cache
def source(file: str) -> str:
    """The text of a kernel file."""
    return (FILES / file).read_text("utf-8")


def _with_scalars(text: str) -> str:
    """The scalar functions that a text calls, and those that they call, in the place where it imports them."""
    shared = {f.partition("def ")[2].partition("(")[0]: f for f in source("scalars.py").partition("# <functions>\n")[2].strip().split("\n\n\n")}
    used, ahead = set[str](), [text]
    while ahead:
        called = set(re.findall(r"\b(\w+)\(", ahead.pop())) & set(shared) - used
        used |= called
        ahead += [shared[name].partition("\n")[2].partition("\n")[2] for name in called]
    return text.replace("from scalars import *\n", "\n\n\n".join([*(f for name, f in shared.items() if name in used), ""]))


def _in_gluon(text: str) -> str:
    """The same in Gluon, where blocks that are made of nothing have to say how they lie."""
    return text.replace("tl.zeros(inside.shape, tl.int32)", "inside.to(tl.int32) * 0").replace("tl.full([], ", "gl.full([], ")


def _filled(text: str, mark: str, new: str) -> str:
    parts = re.split(rf"# </?{mark}>\n", text)
    if len(parts) != 3:
        raise ValueError(f"a kernel file needs one block '{mark}'")
    return f"{parts[0]}# <{mark}>\n{new}# </{mark}>\n{parts[2]}"
