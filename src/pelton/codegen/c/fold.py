"""C macros for elements in registers and for their reduction: sums, products, maxima and minima of every type."""

from __future__ import annotations

import math

from pelton.ir.types import BOOL, DType

from pelton.codegen.grid import is_computable

from .emit import compute_type, literal, memory_type, vector_type


def register_type(dtype: DType) -> DType:
    """Returns the element type of values in registers: narrow floats are f32 there."""
    return DType(compute_type(dtype))


def is_native(dtype: DType) -> bool:
    """True if registers hold the type as memory does."""
    return dtype is not BOOL and is_computable(dtype) and register_type(dtype) is dtype


def element_macros(dtype: DType, within: DType | None = None) -> str:
    """Emits types and macros for elements: element (in memory), vec, scalar (lane), LOAD, SELECT, LANES_FROM, LANES_TO.

    within: the type to compute in, if not the element's own.
    """
    within = within or register_type(dtype)
    lane = "i32" if within is BOOL else within.value
    load = f"ldn_{dtype.value}(p, n)"
    if compute_type(dtype) != compute_type(within):
        load = f"cast_{compute_type(dtype)}_{compute_type(within)}({load})"
    return (
        f"typedef {memory_type(dtype)} element;\ntypedef {vector_type(within)} vec;\ntypedef {lane} scalar;\n"
        f"#define LOAD(p, n) {load}\n"
        f"#define SELECT(mask, a, b) {lane}_select(mask, a, b)\n"
        f"#define LANES_FROM(p) ld_{lane}(p)\n"
        f"#define LANES_TO(p, v) st_{lane}(p, v)\n"
    )


def reduction_macros(kind: str, dtype: DType, within: DType | None = None) -> str:
    """Emits `element_macros`, JOIN of two elements, its IDENTITY, and WHOLE, which reduces the lanes of a vector.

    kind: sum, prod, max or min.
    """
    within = within or register_type(dtype)
    name = compute_type(within)
    if within is BOOL:
        join = {"max": "((a) | (b))", "min": "((a) & (b))"}[kind]
        whole = {"max": "-any(v)", "min": "-all(v)"}[kind]
    else:
        join = {
            "sum": "((a) + (b))",
            "prod": "((a) * (b))",
            "max": f"{name}_maximum(a, b)",
            "min": f"{name}_minimum(a, b)",
        }[kind]
        whole = f"h{kind}_{name}(v)"
    neutral = literal(identity(kind, within), within)
    macros = f"#define JOIN(a, b) {join}\n#define IDENTITY {neutral}\n#define WHOLE(v) {whole}\n"
    return element_macros(dtype, within) + macros


def identity(kind: str, dtype: DType) -> float | int:
    """Returns the identity element of a reduction."""
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype is BOOL:
        return int(kind == "min")
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    bits = 8 * dtype.size
    smallest, largest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
    return smallest if kind == "max" else largest
