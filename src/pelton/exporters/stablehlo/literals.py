"""MLIR text of element types, tensor types, names and constants."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

import numpy as np

from pelton.ir.types import BF16, BOOL, F16, F32, F64, DType, TensorType

_SPECIAL = {
    DType.BOOL: "i1",
    DType.BF16: "bf16",
    DType.F8E4M3FN: "f8E4M3FN",
    DType.F8E4M3FNUZ: "f8E4M3FNUZ",
    DType.F8E5M2: "f8E5M2",
    DType.F8E5M2FNUZ: "f8E5M2FNUZ",
    DType.F8E8M0FNU: "f8E8M0FNU",
    DType.F6E2M3FN: "f6E2M3FN",
    DType.F6E3M2FN: "f6E3M2FN",
    DType.F4E2M1FN: "f4E2M1FN",
    DType.C64: "complex<f32>",
    DType.C128: "complex<f64>",
}


class Inexpressible(ValueError):
    """A node without an exact StableHLO form; its expansion may have one."""


def element(dtype: DType) -> str:
    """Returns an element type: signed integers are `i8`, unsigned ones `ui8`. Raises Inexpressible for strings."""
    if dtype is DType.STRING:
        raise Inexpressible("StableHLO has no strings")
    return _SPECIAL.get(dtype) or (f"u{dtype.value.replace('u', 'i')}" if dtype.value[0] == "u" else dtype.value)


def tensor(type: TensorType) -> str:
    """Returns a tensor type, `tensor<2x3xf32>`."""
    return f"tensor<{''.join(f'{d}x' for d in type.shape)}{element(type.dtype)}>"


def integers(numbers: Iterable[int]) -> str:
    """Returns an attribute of 64-bit integers."""
    inner = ", ".join(str(int(n)) for n in numbers)
    return f"array<i64: {inner}>" if inner else "array<i64>"


def pairs(numbers: Iterable[tuple[int, int]]) -> str:
    """Returns (before, after) for each axis as an attribute."""
    rows = [[int(a), int(b)] for a, b in numbers]
    return f"dense<{json.dumps(rows) if rows else ''}> : tensor<{len(rows)}x2xi64>"


def quoted(text: str) -> str:
    """Returns a string literal; characters outside of printable ASCII are their UTF-8 bytes."""
    safe = (c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode()) for c in text)
    return '"' + "".join(safe) + '"'


def identifier(text: str) -> str:
    """Returns a name for a value that resembles the text."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if re.match(r"[A-Za-z_]", name) else f"v_{name}"


def is_splat(array: np.ndarray) -> bool:
    """True if all elements have the same bits, and there is at least one."""
    if array.size == 0:
        return False
    if array.size == 1 or not any(array.strides):
        return True
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((raw == raw[0]).all())


def dense(array: np.ndarray) -> str:
    """Returns the literal of an array: the bytes of its elements in hexadecimal, little-endian; one number if all
    elements are equal; a list for bools and for integers of less than a byte."""
    dtype = DType.of(array)
    if array.size == 0:
        return "dense<>"
    if is_splat(array):
        text = _number(array.flat[0], dtype)
        return f"dense<{_hexadecimal(array.reshape(-1)[:1]) if text is None else text}>"
    if dtype is BOOL or dtype.bits < 8 and dtype.is_integer:
        wide = array if dtype is BOOL else array.astype(np.int8)
        return f"dense<{json.dumps(wide.tolist())}>"
    return f"dense<{_hexadecimal(array)}>"


def _number(value, dtype: DType) -> str | None:
    """Returns a number in decimal, exactly; None if only its bits say what it is."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    number = float(value) if dtype in (F64, F32, F16, BF16) else math.nan
    if not math.isfinite(number):
        return None
    text = repr(number)
    mantissa, exponent, power = text.partition("e")
    return text if "." in mantissa else f"{mantissa}.0{exponent}{power}"


def _hexadecimal(array: np.ndarray) -> str:
    ordered = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.kind in "iufc" else array
    return f'"0x{np.ascontiguousarray(ordered).tobytes().hex().upper()}"'
