"""Emits Triton for tails, and fills in the two marked blocks of a kernel file for one region and tactic.

A kernel has one parameter, the tuple `a`: the pointers of its operands in order, then the values of dynamic dimensions.
Every operand begins at a multiple of `ALIGNED` bytes; loads are wide only because of that.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np

from pelton.engine.cubin import TensorMap
from pelton.engine.library import LIBRARIES
from pelton.ir.dims import Dim, Size, bounds, is_known
from pelton.ir.graph import Node, Value
from pelton.ir.types import BOOL, STRING, DType
from pelton.codegen.code import Text, code, join
from pelton.codegen.grid import Grid
from pelton.codegen.tail import Piece, Access, Pointer, Tail, statements
from pelton.codegen.template import Kernel, Packed, Tactic
from pelton.ops.words import cast, copy
from pelton.plan.layout import Layouts, Strides, span
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

F8 = DType.F8E4M3FN  # in registers as in memory: kernels convert it, and tensor cores multiply it
FILES = Path(__file__).parent / "src"
_sources: dict[str, str] = {}
ALIGNED = 16
# dtype → its names in registers and in memory
TYPES = {
    "f64": ("float64", "fp64"),
    "f32": ("float32", "fp32"),
    "f16": ("float16", "fp16"),
    "bf16": ("bfloat16", "bf16"),
    "bool": ("int1", "u8"),
    **{f"{s}{n}": (f"{'u' * (s == 'u')}int{n}", f"{s}{n}") for s in "iu" for n in (8, 16, 32, 64)},
}
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
_CORE = {
    "exp": "tl.exp",
    "log": "tl.log",
    "sqrt": "tl.sqrt",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "erf": "tl.erf",
    "abs": "tl.abs",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
    "select": "tl.where",
}
# of libdevice
_LIBRARY = ("pow", "tanh", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "rint", "trunc")


def computable(dtype: DType) -> bool:
    """True if kernels can compute with this element type."""
    return dtype.value in TYPES


def movable(dtype: DType) -> bool:
    """True if kernels can copy this element type, if only as bits."""
    return computable(dtype) or dtype is not STRING and dtype.size <= 8


def memory_type(dtype: DType) -> str:
    """Returns Triton's name of an element type in memory: an unsigned integer of its size if kernels only copy it."""
    return TYPES[dtype.value][1] if computable(dtype) else f"u{8 * dtype.size}"


def register_type(dtype: DType) -> str:
    """Returns the Triton type of a value in registers: f32 for narrow floats."""
    return "tl.float32" if dtype.value in ("f16", "bf16") else f"tl.{TYPES[dtype.value][0]}"


def in_registers(text: Text, dtype: DType) -> Text:
    """Converts a loaded value to its type in registers."""
    if dtype is BOOL:
        return code("({} != 0)", text)
    return text + ".to(tl.float32)" if dtype.value in ("f16", "bf16") else text


def literal(x, dtype: DType) -> str:
    """Returns a number of an element type."""
    if dtype.is_float:
        x = float(x)
        if math.isfinite(x) and not np.isfinite(np.float32(x)) and register_type(dtype) == "tl.float32":
            x = math.copysign(math.inf, x)
        text = repr(x) if math.isfinite(x) else f'float("{x}")'
    else:
        text = repr(bool(x) if dtype is BOOL else int(x))
    return f"tl.full([], {text}, {register_type(dtype)})"


@dataclass(frozen=True)
class TritonDialect:
    """Tails in Triton, on blocks."""

    over = "//"
    strided = False

    def literal(self, x, dtype: DType) -> str:
        return literal(x, dtype)

    def cast(self, text: str, given: DType, to: DType, saturate: bool = True, round_mode: str = "up") -> str:
        """Casts, and rounds to narrow floats though registers hold them as f32. `saturate` and `round_mode` concern
        types that kernels do not compute with."""
        if given is to:
            return text
        if given is F8:
            return self.cast(f"from_e4m3({text})", DType.F32, to)
        if to is F8:
            return f"to_e4m3({self.cast(text, given, DType.F32)}, {saturate})"
        if to is BOOL:
            return f"({text} != 0)"
        if to.value in ("f16", "bf16"):
            return f"{text}.to(tl.{TYPES[to.value][0]}).to(tl.float32)"
        if given.is_float and to.is_integer and to.bits < 32:  # values that 32 bits hold wrap, as on the CPU
            return f"{text}.to(tl.int32).to({register_type(to)})"
        if given.is_float and to is DType.U64:  # negative values wrap, too
            return f"tl.where({text} < 0, {text}.to(tl.int64).to(tl.uint64), {text}.to(tl.uint64))"
        if given.is_float and to is DType.U32:
            return f"{text}.to(tl.int64).to(tl.uint32)"
        return text if register_type(given) == register_type(to) else f"{text}.to({register_type(to)})"

    def round_within(self, text: str, to: DType) -> str:
        return self.cast(self.call("rint", DType.F32, [text]), DType.F32, to)

    def round_saturated(self, text: str, plus: int, to: DType) -> str | None:
        return None

    def select(self, dtype: DType, mask: str, a: str, b: str) -> str:
        return f"tl.where({mask}, {a}, {b})"

    def call(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        if fn in _OPERATORS:
            return f"({args[0]} {_OPERATORS[fn]} {args[1]})"
        # `/` and tl.sqrt are not rounded as IEEE 754 requires
        if fn in ("div", "sqrt") and register_type(dtype) == "tl.float32":
            return f"tl.{fn}_rn({', '.join(args)})"
        if fn == "div":
            return f"({args[0]} / {args[1]})" if dtype.is_float else f"quotient({args[0]}, {args[1]})"
        if fn == "fmod":  # for floats, `%` is x - trunc(x/y)·y, wrong where the quotient is large
            return f"{'libdevice.fmod' if dtype.is_float else 'remainder'}({args[0]}, {args[1]})"
        if fn == "neg":
            return f"(-{args[0]})"
        if fn == "not":
            return f"({args[0]} == 0)" if dtype is BOOL else f"(~{args[0]})"
        if fn == "pow" and not dtype.is_float:
            return f"power({', '.join(args)})"
        return f"{f'libdevice.{fn}' if fn in _LIBRARY else _CORE.get(fn, fn)}({', '.join(args)})"

    def load(self, place: Access) -> Text:
        mask = coordinate_mask(place.varying)
        text = code("tl.load(a[{}] + ({}){})", str(place.pointer.slot), place.at, mask and f", mask={mask}, other=0")
        return in_registers(text, place.pointer.dtype)

    def let(self, name: str, dtype: DType, text: Text, comment: str = "") -> Text:
        return code("{} = {}{}", name, text, comment and f"  # {comment}")

    def increase(self, name: str, text: Text) -> Text:
        return code("{} += {}", name, text)

    def store(self, place: Access, name: str) -> Text:
        return _store(place.pointer, place.at, name, "inside")

    def pieces(self, name: str, pieces: Sequence[Piece]) -> list[Text]:
        return [
            _store(
                p.pointer,
                p.grid.address(p.strides, self.over, c=f"(c - {p.start})"),
                name,
                code("inside & (c >= {}) & (c < {})", p.start, p.start + p.size),
            )
            for p in pieces
        ]


def _store(pointer: Pointer, where: Text, name: str, mask: Text) -> Text:
    value = f"({name}).to(tl.int8)" if pointer.dtype is BOOL else name
    return code("tl.store(a[{}] + (at + {}), {}, mask={})", str(pointer.slot), where, value, mask)


def nodes_rejection(nodes: Sequence[Node]) -> str | None:
    """Returns the reason why Triton cannot compute these pointwise nodes, or None."""
    for node in nodes:
        for v in (*node.inputs, node.output):
            holds = movable if node.op is copy or node.op is cast and v.type.dtype is F8 else computable
            if not holds(v.type.dtype):
                return f"kernels do not support {v.type.dtype.value}"
    return None


def address(grid: Grid, strides: Strides) -> Text:
    """Returns the offset in elements of the coordinates (b, r, c), for strides over the grid's axes."""
    return grid.address(strides, TritonDialect.over)


def index(grid: Grid, axis: int) -> Text:
    """Returns the index along an axis at (r, c)."""
    return grid.index(axis, TritonDialect.over)


def coordinate_mask(moving: str) -> str:
    """Returns the mask for loads and stores at an offset that depends on the coordinates in `moving`."""
    return " & ".join(["rows"] * ("r" in moving) + ["cols"] * ("c" in moving))


def emit_offset(name: str, grid: Grid, strides: Strides) -> Text:
    """Emits a device function that returns the offset in elements of (b, r, c): for blocks r and c a block, even if all
    its elements are equal."""
    where = address(grid, strides)
    if not coordinate_mask(grid.varying(strides)):
        where = where + " + (r + c) * 0"
    return function(name, "b, r, c, a", code("return {}", where))


def function(name: str, parameters: str, *lines: Text) -> Text:
    """Emits a device function."""
    return code("@triton.jit\ndef {}({}):\n    {}\n\n\n", name, parameters, join("\n    ", lines))


def tail(
    region: Region,
    layouts: Layouts,
    grid: Grid,
    results: Sequence[Value],
    *,
    first: int,
    add: Value | None = None,
    flat: bool = False,
) -> Tail:
    """Emits `finish`, which applies the pointwise nodes to the anchor's results at (b, r, c) and stores the outputs;
    see `statements`.

    The coordinates broadcast against each other: b is a scalar, r a block along the first axis, c a block along the
    second; `rows` and `cols` are masks of the shapes of r and c. The anchor's results have the types of registers.
    """
    body = statements(TritonDialect(), region, layouts, grid, results, first=first, bias=add, flat=flat)
    params = "".join(f"x{i}, " for i in range(len(results)))
    lines = ("inside = rows & cols", "at = tl.zeros(inside.shape, tl.int32)", *body.lines)
    text = code("@triton.jit\ndef finish({}b, r, c, rows, cols, a):\n    {}\n", params, join("\n    ", lines))
    return Tail(text, body.operands)


def kernel(
    file: str,
    region: Region,
    tactic: Tactic,
    sizes: Mapping[str, Size],
    block: Text,
    operands: Sequence[Value | Packed | KernelWorkspace],
    tiles: Size,
    layouts: Layouts,
    phases: Size = 1,
    maps: Sequence[TensorMap] = (),
    factors: str = "",
) -> Kernel:
    """Fills the region and tactic blocks of a kernel file; a kernel with maps is in Gluon. factors: Triton's name of
    the element type of the first two operands, if not the usual one.

    The tactic has WARPS and, for pipelined loops, STAGES. Known `sizes` become constants of their names; elements of
    `a` behind the pointers replace the names of dynamic ones, and sizes in `block`. For PHASED tactics, two elements of
    `a` follow, from PHASE on: the first phase of the launch, and the one behind its last.
    """
    slots: dict[Size, int] = {}

    def emit_size(x: Size) -> str:
        return f"a[{len(operands) + slots.setdefault(x, len(slots))}]" if isinstance(x, Dim) else str(int(x))

    block_text = code("{}", block).render(emit_size)
    known = _constants({k: v for k, v in sizes.items() if is_known(v)})
    text = _fill(source(file), "region", f"{known}\n\n{block_text}")
    varying = {name: emit_size(size) for name, size in sizes.items() if not is_known(size)}
    if varying:
        text = re.sub(rf"\b({'|'.join(varying)})\b", lambda name: varying[name[0]], text)
    chosen = dict(tactic.params)
    ends = {"PHASE": len(operands) + len(slots)} if chosen.get("PHASED") else {}
    text = _fill(text, "tactic", _constants({k: v for k, v in (chosen | ends).items() if k not in ("WARPS", "STAGES")}))
    large = bool(slots) or any(bounds(_reach(x, layouts))[1] >= 1 << 31 for x in operands)
    types = [f"*{memory_type(x.type.dtype if isinstance(x, Value) else x.dtype)}" for x in operands]
    if factors:
        types[:2] = [f"*{factors}"] * 2
    types += ["i64"] * (len(slots) + 2 * len(ends))
    aligned = [True] * len(operands) + [d // ALIGNED * ALIGNED == d for d in slots] + [False, False] * len(ends)
    text = _to_gluon(_with_scalars(text)) if maps else _with_scalars(text)
    head = (
        f'"""{region.title()} by {tactic.name}."""\n'
        f"SIGNATURE, WARPS, STAGES = {tuple(types)}, {chosen['WARPS']}, {chosen.get('STAGES', 1)}\n"
        f"MULTIPLES = {tuple(aligned)}\n"
    )
    head += f"MAPS = {tuple(map(astuple, maps))}\n" if maps else ""
    text = head + text.partition('"""\n')[2].replace(
        "INDEX = tl.constexpr(tl.int32)", f"INDEX = tl.constexpr(tl.int{64 if large else 32})"
    )
    return with_symbol(Kernel(text, "KERNEL", tuple(operands), tiles, tuple(slots), phases=phases))


def with_symbol(kernel: Kernel) -> Kernel:
    """Names the kernel by a hash of its source."""
    symbol = "k_" + hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
    return replace(kernel, source=kernel.source.replace("KERNEL", symbol), symbol=symbol)


def with_alignment(kernel: Kernel, aligned: Sequence[bool]) -> Kernel:
    """Returns the kernel for operands of which some, such as slices, do not begin at a multiple of `ALIGNED` bytes: it
    loads their elements one by one, and uses no tensor descriptors."""
    if all(aligned) or kernel.symbol in LIBRARIES:
        return kernel

    def multiples(found: re.Match[str]) -> str:
        return f"MULTIPLES = {(*aligned, *ast.literal_eval(found[1])[len(aligned) :])}"

    source = re.sub(
        r"^MULTIPLES = (.*)$", multiples, kernel.source.replace(kernel.symbol, "KERNEL"), count=1, flags=re.M
    )
    source = re.sub(r"^DESCRIBED = .*$", "DESCRIBED = tl.constexpr(0)", source, flags=re.M)
    return with_symbol(replace(kernel, source=source))


def _reach(x: Value | Packed | KernelWorkspace, layouts: Layouts) -> Size:
    """Returns the number of elements from an operand's first to its last."""
    if not isinstance(x, Value):
        return math.prod(x.shape)
    return span(x.type.shape, tuple(abs(s) if isinstance(s, int) else s for s in layouts[x]))


def _constants(sizes: Mapping[str, Size]) -> str:
    return "".join(f"{k} = tl.constexpr({v!r})\n" for k, v in sizes.items())


def add_source(file: str, text: str) -> None:
    """Registers a text as a kernel file, for plugin kernels."""
    _sources[file] = text


def source(file: str) -> str:
    """Returns the text of a kernel file."""
    if file not in _sources:
        _sources[file] = (FILES / file).read_text("utf-8")
    return _sources[file]


def _with_scalars(text: str) -> str:
    """Replaces the import of scalar functions by those that the text calls, and those that these call."""
    shared = {
        f.partition("def ")[2].partition("(")[0]: f
        for f in source("scalars.py").partition("# <functions>\n")[2].strip().split("\n\n\n")
    }
    used, worklist = set[str](), [text]
    while worklist:
        called = set(re.findall(r"\b(\w+)\(", worklist.pop())) & set(shared) - used
        used |= called
        worklist += [shared[name].partition("\n")[2].partition("\n")[2] for name in called]
    return text.replace(
        "from scalars import *\n", "\n\n\n".join([*(f for name, f in shared.items() if name in used), ""])
    )


def _to_gluon(text: str) -> str:
    """Converts the text to Gluon, where blocks created from scratch need an explicit layout."""
    return text.replace("tl.zeros(inside.shape, tl.int32)", "inside.to(tl.int32) * 0").replace(
        "tl.full([], ", "gl.full([], "
    )


def _fill(text: str, mark: str, new: str) -> str:
    parts = re.split(rf"# </?{mark}>\n", text)
    if len(parts) != 3:
        raise ValueError(f"a kernel file needs one block '{mark}'")
    return f"{parts[0]}# <{mark}>\n{new}# </{mark}>\n{parts[2]}"
