"""How elements are joined into one: sums, products and extremes of every element type, in C."""
from __future__ import annotations

import math

from pelton.ir.types import BOOL, F16, BF16, F32, DType

from .emit import computed, literal, memory, vector


def joined(kind: str, dtype: DType, accumulator: DType | None = None) -> str:
    """The types and macros of a fold: element, vec, scalar, LOAD, JOIN, IDENTITY (of `vec`) and WHOLE, which joins the lanes of a vector.

    kind: sum, prod, max or min. accumulator: the element type to join in, where it is not the memory's own.
    """
    within = accumulator or (F32 if dtype in (F16, BF16) else dtype)
    prefix, load = computed(within), f"ldn_{dtype.value}(p, n)"
    if computed(dtype) != prefix:
        load = f"cast_{computed(dtype)}_{prefix}({load})"
    if dtype is BOOL:
        join = {"max": "((a) | (b))", "min": "((a) & (b))"}[kind]
        whole, prefix = {"max": "-any(v)", "min": "-all(v)"}[kind], "i32"
    else:
        join = {"sum": "((a) + (b))", "prod": "((a) * (b))", "max": f"{prefix}_maximum(a, b)", "min": f"{prefix}_minimum(a, b)"}[kind]
        whole = f"h{kind}_{prefix}(v)"
    return (f"typedef {memory(dtype)} element;\ntypedef {vector(within)} vec;\ntypedef {prefix} scalar;\n"
            f"#define LOAD(p, n) {load}\n#define JOIN(a, b) {join}\n#define IDENTITY {literal(identity(kind, within), within)}\n"
            f"#define WHOLE(v) {whole}\n#define KEEP(v, n) ONLY({prefix}, v, n, IDENTITY)\n#define PART(p) ld_{prefix}(p)\n")


def identity(kind: str, dtype: DType):
    """The element that changes nothing."""
    if kind in ("sum", "prod"):
        return kind == "prod"
    if dtype is BOOL:
        return kind == "min"
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    bits = 8 * dtype.size
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
    return least if kind == "max" else most
