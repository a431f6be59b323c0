"""Emits C: tails, sizes and macros, and kernel files with their two marked blocks filled in for a region and tactic."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from pelton.ir.dims import Dim, Size, is_known
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, DType
from pelton.plan.layout import Layouts
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.code import Text, code, join, is_dynamic
from pelton.codegen.grid import Grid
from pelton.codegen.tail import Piece, Access, Pointer, Tail, statements
from pelton.codegen.template import Kernel, Packed, Tactic, source

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
# element types that vec.h computes in
_WIDE = frozenset("f64 f32 i64 i32 i16 i8 u64 u32 u16 u8 bool".split())
# those of vec_narrow.h
_NARROW = frozenset(d.value for d in DType if (d.is_float or d.is_integer) and (d.bits < 8 or d.value.startswith("f8")))
_NARROW_WORDS = re.compile(rf"(_|\b)({'|'.join(sorted(_NARROW))})(_|\b)")

MAX_TABLE_ENTRIES = 1 << 16  # of all tables in a kernel's source; more compile for seconds


def compute_type(dtype: DType) -> str:
    """Returns the element type that kernels compute in: f32 for narrow floats, a byte for integers of 2 and 4 bits."""
    if dtype.value in _WIDE:
        return dtype.value
    return "f32" if dtype.is_float else f"{dtype.value[0]}8"


def vector_type(dtype: DType) -> str:
    """Returns the C type of a vector in registers (bools are a mask of lanes)."""
    return "vi32" if dtype is BOOL else "v" + compute_type(dtype)


def memory_type(dtype: DType) -> str:
    """Returns the C type of an element in memory."""
    return "u8" if dtype is BOOL else dtype.value


def literal(x, dtype: DType) -> str:
    """Returns a number as a vector of equal lanes."""
    if dtype is BOOL:
        return f"((vi32)(int){-int(bool(x))})"
    return f"bc_{compute_type(dtype)}({number(x, dtype)})"


def number(x, dtype: DType) -> str:
    """Returns a number in C, in the type that kernels compute in."""
    kind = compute_type(dtype)
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
            text = f'__builtin_nan{suffix}("")'
        elif math.isinf(x):
            text = ("-" if x < 0 else "") + f"__builtin_inf{suffix}()"
        else:
            text = (repr(float(np.float32(x))) if kind == "f32" else repr(x)) + suffix
            if kind == "f32" and math.isinf(float(np.float32(x))):
                text = ("-" if x < 0 else "") + "__builtin_inff()"
    return text


def _prefix(dtype: DType) -> str:
    return "i32" if dtype is BOOL else compute_type(dtype)


@dataclass(frozen=True)
class CLanguage:
    """C on vectors of n lanes.

    unit: c is a multiple of it and n at most that; None if c and n may be any numbers.
    """

    unit: int | None = None
    over = "/"
    strided = True

    def literal(self, x, dtype: DType) -> str:
        return literal(x, dtype)

    def cast(self, text: str, given: DType, to: DType, saturate: bool = True, round_mode: str = "up") -> str:
        source = compute_type(given)
        if given is to or source == to.value:
            return text
        if to.value in _NARROW:  # by way of f32 or i32
            middle = "f32" if to.is_float else "i32"
            mode = "" if to is not DType.F8E8M0FNU or round_mode == "up" else f"_{round_mode}"
            mode += "" if saturate or not to.value.startswith("f8") else "_free"
            operand = text if source == middle else f"cast_{source}_{middle}({text})"
            return f"cast_{middle}_{to.value}{mode}({operand})"
        return f"cast_{source}_{to.value}({text})"

    def round_within(self, text: str, to: DType) -> str:
        return f"round_within_{to.value}({text})"

    def round_saturated(self, text: str, plus: int, to: DType) -> str | None:
        return f"round_saturated_{to.value}({text}, {plus})"

    def select(self, dtype: DType, mask: str, a: str, b: str) -> str:
        return f"{_prefix(dtype)}_select({mask}, {a}, {b})"

    def call(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        if fn in _OPERATORS:
            return f"({args[0]} {_OPERATORS[fn]} {args[1]})"
        if fn == "neg":
            return f"(-{args[0]})"
        if fn == "not":
            return f"(~{args[0]})"
        return f"{_prefix(dtype)}_{fn}({', '.join(args)})"

    def load(self, place: Access) -> Text:
        where, kind = code("t->{} + {}", place.pointer.name, place.at), place.pointer.dtype.value
        if place.step == 0:
            return code("bc_{}(*({}))", kind, where)
        if place.step == 1:
            return code("ldn_{}({}, n)", kind, where)
        return code("ldg_{}({}, {}, n)", kind, where, place.step)

    def let(self, name: str, dtype: DType, text: Text, comment: str = "") -> Text:
        return code("const {} {} = {};{}", vector_type(dtype), name, text, comment and f"  // {comment}")

    def increase(self, name: str, text: Text) -> Text:
        return code("{} += {};", name, text)

    def store(self, place: Access, name: str) -> Text:
        where, kind = code("t->{} + {}", place.pointer.name, place.at), place.pointer.dtype.value
        if place.step in (0, 1):
            return code("stn_{}({}, {}, n);", kind, where, name)
        return code("stg_{}({}, {}, {}, n);", kind, where, place.step, name)

    def pieces(self, name: str, pieces: Sequence[Piece]) -> list[Text]:
        """Emits one store whose address depends on c if every vector belongs to a single slice, else one per slice.

        One store takes the time without slices, within half a percent (GoogLeNet's products); one per slice takes one
        to two percent more.
        """
        dtype, starts, sizes = pieces[0].pointer.dtype, [p.start for p in pieces], [p.size for p in pieces]
        rows = [p.grid.runs(p.grid.r, p.strides) for p in pieces]
        whole = starts == [*accumulate(sizes, initial=0)][:-1]
        if self.unit is None or any(s % self.unit for s in starts) or not whole or max(map(len, rows)) > 1:
            at = [replace(p.grid, c=()).address(p.strides) for p in pieces]
            form = f"stp_{dtype.value}(t->{{}} + {{}}, {{}}, c - {{}}, {name}, n);"
            return [code(form, p.pointer.name, row, p.size, p.start) for p, row in zip(pieces, at)]

        def by_c(choices: Sequence[Text | Size]) -> Text:
            return join(" ", [*(code("c < {} ? {} :", s, x) for s, x in zip(starts[1:], choices)), choices[-1]])

        first = [code("t->{} + {}", p.pointer.name, replace(p.grid, r=(), c=()).address(p.strides)) for p in pieces]
        return [
            code("{ {} *const y = {};", memory_type(dtype), by_c(first)),
            code("  const idx row = {}, start = {};", by_c([r[0][1] if r else "0" for r in rows]), by_c(starts)),
            f"  stn_{dtype.value}(y + r * row + (c - start), {name}, n); }}",
        ]


def tail(
    region: Region,
    layouts: Layouts,
    grid: Grid,
    made: Sequence[Value],
    *,
    first: int,
    bias: Value | None = None,
    flat: bool = False,
    unit: int | None = None,
    inner: str = "",
) -> Tail:
    """Emits the C function `finish`: `statements` on the anchor's results at (b, r, c), n lanes along c.

    unit: c is a multiple of it and n at most that; None if they may be any numbers. inner: the name of a function
    instead of `finish` that returns the only output as a vector, for use in the same kernel.
    """
    done = statements(CLanguage(unit), region, layouts, grid, made, first=first, bias=bias, flat=flat, stored=not inner)
    lines = list(done.lines)
    fields, opened = [_field(p) for p in done.pointers], [f"a[{p.slot}].p" for p in done.pointers]
    if any(map(is_dynamic, lines)):
        fields, opened = ["const args *a;", *fields], ["a", *opened]
        lines.insert(0, "const args *a = t->a;")
    if inner:
        lines.append(f"return {done.names[region.output]};")
    params = ", ".join(
        [*(f"{vector_type(v.type.dtype)} x{i}" for i, v in enumerate(made)), "idx b, idx r, idx c, int n"]
    )
    pointers = f"{inner}_tail" if inner else "tail"
    text = (
        f"typedef struct {{ {' '.join(fields)} }} {pointers};\n"
        f"AI {pointers} {pointers}_open(const args *a) {{ return ({pointers}){{ {', '.join(opened)} }}; }}\n"
        f"AI {f'vf32 {inner}' if inner else 'void finish'}(const {pointers} *t, {params}) {{\n"
        "    (void)b; (void)r; (void)c;\n    " + join("\n    ", lines) + "\n}\n"
    )
    return Tail(text, done.operands)


def _field(pointer: Pointer) -> str:
    return f"{'' if pointer.written else 'const '}{memory_type(pointer.dtype)} *{pointer.name};"


def constants(**sizes: Size) -> Text:
    """Emits sizes by name: known ones as constants of the index type, dynamic ones as macros that read an argument."""
    known = _numbers({k: int(v) for k, v in sizes.items() if is_known(v)})
    return join("", [known, *(code("#define {} {}\n", k, v) for k, v in sizes.items() if not is_known(v))])


def _numbers(known: Mapping[str, int]) -> str:
    return f"enum : idx {{ {', '.join(f'{k} = {v}' for k, v in known.items())} }};\n" if known else ""


def macro(head: str, text: Text) -> Text:
    """Emits a macro for an expression. head: a name and perhaps parameters."""
    return code("#define {} ({})\n", head, text)


def list_macro(name: str, sizes: Sequence[Size]) -> Text:
    """Emits a macro for the elements of an array of sizes, separated by commas."""
    return code("#define {} {{}}\n", name, join(", ", sizes))


def kernel(
    file: str,
    region: Region,
    tactic: Tactic,
    block: Text,
    operands: Sequence[Value | Packed | KernelWorkspace],
    tiles: Size,
    *,
    grain: int = 1,
    scratch: Size = 0,
    phases: Size = 1,
    arguments: Mapping[str, int] | None = None,
) -> Kernel:
    """Fills the region and tactic blocks of a kernel file.

    Dynamic sizes in the block become arguments behind the pointers; code that uses them needs `const args *a` in scope.
    arguments: further numbers by name that become arguments, so one kernel serves all their values.
    """
    slots: dict[Size, int] = {}

    def spell(x: Size) -> str:
        return f"SIZE{slots.setdefault(x, len(slots))}" if isinstance(x, Dim) else f"{int(x)}LL"

    text = code("{}", block).render(spell)
    if slots:
        named = "".join(f"#define SIZE{i} (a[{len(operands) + i}].d)  // {size}\n" for size, i in slots.items())
        text = f"#undef ARGS\n#define ARGS {len(operands) + len(slots) + len(arguments or ())}\n{named}{text}"
    ahead = len(operands) + len(slots)
    text = "".join(f"#define {name} (a[{ahead + i}].d)\n" for i, name in enumerate(arguments or ())) + text
    source, symbol = _fill(file, region, tactic, text)
    return Kernel(source, symbol, tuple(operands), tiles, (*slots, *(arguments or {}).values()), grain, scratch, phases)


def _fill(file: str, region: Region, tactic: Tactic, block: str) -> tuple[str, str]:
    """Fills the region and tactic blocks of a kernel file; returns (source, symbol)."""
    text = source(file)
    for mark, new in (("region", block), ("tactic", _numbers(dict(tactic.params)))):
        parts = re.split(rf"// </?{mark}>\n", text)
        if len(parts) != 3:
            raise ValueError(f"{file} needs one block '{mark}'")
        text = f"{parts[0]}// <{mark}>\n{new}// </{mark}>\n{parts[2]}"
    if _NARROW_WORDS.search(block):
        text = text.replace("\n// <region>\n", '#include "vec_narrow.h"\n\n// <region>\n', 1)
    text = f"// {region.title()} by {tactic.name}\n" + text
    symbol = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return text.replace("KERNEL", symbol), symbol
