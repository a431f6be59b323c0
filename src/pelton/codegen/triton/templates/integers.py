"""Products of bytes and of FP8 on tensor cores: eligible regions, and the correction of sums of u8.

Tensor cores multiply i8 here: u8 are less 128 in registers, and 128 times the sum of an output's weights is added where
sums are stored. That holds for any padding of operands, too, as weights are zero there.
"""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.ir.types import F32, I8, I32, U8
from pelton.codegen.c.templates.conv_int8 import BYTES
from pelton.codegen.grid import is_constant
from pelton.codegen.template import Packed, Tactic
from pelton.codegen.triton.emit import F8
from pelton.plan.region import Region

SHIFT = 128
FLOAT8 = "fp8e4nv"  # Triton's name of FP8 factors
LEAST = 32  # bytes that tensor cores sum over at once


def sums_bytes(node: Node) -> bool:
    """True if a product sums in i32, as those of bytes do."""
    return node.attrs.get("accumulate") is I32


def bytes_rejection(region: Region, kinds=(I8,)) -> str | None:
    """Returns the reason why a product is not of bytes by constant weights of these types, or None."""
    x, w = region.anchor.inputs[:2]
    if x.type.dtype not in BYTES or w.type.dtype not in kinds:
        return "not bytes by " + " or ".join(k.value for k in kinds)
    if not is_constant(region, w):
        return "the weights are not constant"
    if region.anchor.op.name == "matmul" and (w.type.rank != 2 or x.type.rank < 2):
        return "not rows by a constant matrix"
    return None


def sums_float8(node: Node) -> bool:
    """True if a product is of FP8, summed in f32."""
    return node.attrs.get("accumulate") is F32 and node.inputs[0].type.dtype is F8


def float8_rejection(region: Region) -> str | None:
    """Returns the reason why a product is not of FP8 by constant FP8 weights, or None."""
    x, w = region.anchor.inputs[:2]
    if region.anchor.attrs["to"] not in (None, F32) or w.type.dtype is not F8:
        return "not floats of a byte summed in f32"
    if region.anchor.op.name == "matmul" and (w.type.rank != 2 or x.type.rank < 2):
        return "not rows by a matrix"
    return None if is_constant(region, w) else "the weights are not constant"


def has_room(node: Node, tactic: Tactic) -> bool:
    """True if the sums of a tactic fit registers: those of FP8 are there twice, a step's and all."""
    return not sums_float8(node) or tactic["BM"] * tactic["BN"] <= 64 * 32 * tactic["WARPS"]


def is_shifted(region: Region) -> bool:
    """True if a kernel on tensor cores multiplies u8."""
    return sums_bytes(region.anchor) and region.anchor.inputs[0].type.dtype is U8


def missing_sums(region: Region) -> tuple[Packed, ...]:
    """Returns the correction of sums of u8 less 128, [outputs] in i32; nothing for others."""
    w = region.anchor.inputs[1]
    if not is_shifted(region):
        return ()
    axis = 1 if region.anchor.op.name == "matmul" else 0
    array = region.body.constants[w]

    def fill(out: np.ndarray) -> None:
        out[:] = SHIFT * array.sum(tuple(a for a in range(array.ndim) if a != axis), dtype=np.int32)

    return (Packed((w,), f"sums of rows along {axis}", (w.type.shape[axis],), fill, I32),)


def padding(node: Node, slot: int) -> tuple[tuple[Value, ...], dict[str, Size]]:
    """Returns the padding of images: an operand, which a kernel finds in this slot, or a number."""
    number = node.attrs.get("pad_value", 0)
    operands = node.inputs[3:] if node.op.name == "convolution" else ()
    return operands, dict(PAD=number, PADDING=slot if operands else 0)


def pads_with_zero(node: Node) -> bool:
    """True if images are padded with zero."""
    return len(node.inputs) == 3 and not node.attrs.get("pad_value", 0)
