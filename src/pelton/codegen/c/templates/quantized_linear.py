"""Products with weights of few bits, which are packed in 4 or 8 bits and multiplied as bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32, U8, DType
from pelton.ops.quantize import unpacked
from pelton.plan.layout import Layouts, Order, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, memory_type, tail
from pelton.codegen.c.halves import exact_type, rejection
from pelton.codegen.code import code
from pelton.codegen.grid import ceil_div, fits_grid, is_constant, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, template

from .gemm import rows_of_a

VECTORS = 2  # of a panel, in all kernels: these share panels of equal weights
EXACT = 3  # digits of 8 bits that hold a term of a row as exactly as f32 does


class PanelProduct(Template):
    """A product of f32 rows with constant weights of few bits in panels."""

    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, *weights = node.inputs
        if x.type.dtype is not F32 or node.output.type.dtype is not F32:
            return "not f32"
        if x.type.rank < 2:
            return "the operand is a vector"
        if not all(is_constant(region, v) for v in weights):
            return "the weights are not constant"
        if node.attrs["block"] % 16 and node.attrs["block"] < x.type.shape[-1]:
            return f"blocks of {node.attrs['block']} elements, no multiple of 16"
        return tail_rejection(region, node.output.type.shape, node.output.type.rank - 1)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        p, shape, strides = MatrixProduct(region), value.type.shape, layouts[value]
        if value is p.a and shape[-1] != 1 and strides[-1] != 1:
            return False
        return fits_grid(region, p.grid, value, strides)


@template
class QuantizedLinear(PanelProduct):
    """Rows are written as digits of 8 bits: three are as exact as f32, two, for builds in half precision, are within
    2⁻¹⁶ of the largest term of 32, one is for models that allow it. In these, fewer than three also round the
    scales of blocks to f16.

    Two for all builds made products of 128 rows 1.4 times as fast, and logits of decoders differ by 1e-4 to 1e-3."""

    name = "quantized_linear"
    anchors = ("quantized_linear",)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["PARTS"]

    def is_exact(self, tactic: Tactic) -> bool:
        return tactic["PARTS"] == EXACT

    def margin(self, tactic: Tactic) -> float:
        return 0.0 if tactic["PARTS"] == EXACT else 0.02

    def tolerance(self, tactic: Tactic) -> float:
        return 2e-2 if tactic["PARTS"] == 1 else super().tolerance(tactic)

    def rounded_as(self, tactic: Tactic) -> DType:
        return {1: BF16, 2: F16, EXACT: F32}[tactic["PARTS"]]

    def rounding(self, tactic: Tactic) -> str:
        about = {
            1: "rows rounded to 8 bits, as the model allows",
            2: "rows rounded to 16 bits, as the precision allows",
            EXACT: "",
        }
        return about[tactic["PARTS"]]

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterator[Tactic]:
        p, seen = MatrixProduct(region, layouts), set()
        rows = (4, 6, 8) if target.registers >= 32 else (12, 6, 4)
        columns = ceil_div(p.n, VECTORS * target.lanes)
        fewer = [1] * region.anchor.attrs["round_rows"] + [2] * (target.half is not F32)
        for digits in (*fewer, EXACT):
            for high in rows:
                mr = min(high, p.m)
                for block in (96, 48, p.m):
                    mb = min(ceil_div(block, mr), ceil_div(p.m, mr)) * mr
                    blocks = ceil_div(p.m, mb) * p.batch
                    for shares in (target.threads, 6 * target.threads):
                        nb = max(1, ceil_div(columns, ceil_div(shares, blocks))) * VECTORS * target.lanes
                        choice = (mr, VECTORS, mb, nb, digits)
                        if choice not in seen:
                            seen.add(choice)
                            yield Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "MB", "NB", "PARTS"), choice)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, nr = MatrixProduct(region, layouts), tactic["NV"] * target.lanes
        panels = Panels(region, nr, self.is_exact(tactic) or not p.node.attrs["round_rows"])
        step, start = rows_of_a(p, layouts)
        end = tail(region, layouts, p.grid, (p.node.output,), first=2, unit=target.lanes)
        sizes = dict(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=step)
        kinds = dict(ZEROS=panels.zeros is not None, OFFSETS=panels.offsets is not None)
        block = constants(**sizes, BLOCK=panels.block, BITS=panels.bits, **kinds)
        for name, stored in (("scale", memory_type(panels.scale)), ("offset", memory_type(panels.offset))):
            block += code(f"typedef {stored} {name};\n#define LOAD_{name.upper()} ld_{stored}\n")
        block += macro("A_AT(b)", start) + end.text
        tiles = p.batch * ceil_div(p.m, tactic["MB"]) * ceil_div(p.n, tactic["NB"])
        steps = panels.blocks * (panels.block // panels.step)
        numbers = 1 + tactic["PARTS"] + kinds["OFFSETS"]
        row = numbers * 4 * steps + tactic["PARTS"] * (steps * panels.step + 64)
        operands: tuple[Value | Packed, ...] = (p.a, panels.packed(), *end.operands)
        return kernel("quantized_linear.c", region, tactic, block, operands, tiles, scratch=tactic["MB"] * row)


class Panels:
    """The weights of a region as its kernel reads them; quantized_linear.c describes the bytes."""

    def __init__(self, region: Region, width: int, exact: bool):
        node, arrays = region.anchor, region.body.constants
        x, *self.sources = node.inputs
        self.width, self.inner, self.held = width, x.type.shape[-1], node.attrs.get("bits", 4)
        if node.op.name == "quantized_gather":
            self.sources, self.inner = [x, *node.inputs[2:]], node.attrs["length"]
        self.codes, self.scales = arrays[self.sources[0]], arrays[self.sources[1]]
        self.bits = max(4, self.held)
        middle = 1 << (self.bits - 1)
        zeros = arrays[self.sources[2]] if len(self.sources) > 2 else np.full((1, 1), 1 << (self.held - 1), np.uint8)
        self.zeros: np.ndarray | None = None  # the codes of zero, where it is not the middle of all codes
        self.offsets: np.ndarray | None = None  # the numbers of code 0, where zero is no code
        self.offset, self.plus = F32, 0  # plus: to a number, for its code
        if zeros.dtype != np.uint8:
            self.offsets = _offsets(zeros, self.scales)
            self.offset = F16 if self.offsets.dtype == F16.numpy else F32
        elif (zeros == zeros.flat[0]).all() and (self.bits > self.held or zeros.flat[0] == middle):
            self.plus = middle - int(zeros.flat[0])
        else:
            self.zeros = zeros
        self.blocks = self.scales.shape[1]
        block = node.attrs["block"]
        self.block = block if block % 16 == 0 and self.blocks > 1 else ceil_div(self.inner, 32) * 32
        self.step = 16 if self.block % 32 else 32
        self.scale: DType = F16 if _fits_f16(self.scales, exact) else F32
        # bytes of a panel's block, and where they begin: codes, scales, then zeros or offsets
        self.scales_at = width * self.block * self.bits // 8
        self.zeros_at = self.scales_at + width * self.scale.size
        each = (self.zeros is not None) + (0 if self.offsets is None else self.offset.size)
        self.record = self.zeros_at + width * each

    def packed(self) -> Packed:
        """Returns the constant that the kernel reads."""
        n, nr = self.codes.shape[0], self.width
        form = f"few{nr}x{self.block}{self.scale.value}{'' if self.offsets is None else self.offset.value}"
        return Packed(tuple(self.sources), form, (ceil_div(n, nr), self.blocks, self.record), self._fill, U8)

    def _fill(self, out: np.ndarray) -> None:
        nr, lanes = self.width, self.width // 2
        for i, panel in enumerate(out):
            at = slice(i * nr, (i + 1) * nr)
            part = np.zeros((nr, self.blocks * self.block), np.uint8)
            rows = unpacked(self.codes[at], self.held, self.inner)
            part[: len(rows), : self.inner] = rows + np.uint8(self.plus)
            # [half of the panel, lane, block, step, group, half of the group, byte]
            groups = (8, 2, 4) if self.bits == 4 else (4, 1, 4)
            apart = part.reshape(2, lanes, self.blocks, -1, self.step // groups[0], *groups[1:])
            if self.bits == 4:
                apart = apart[..., :1, :] | apart[..., 1:, :] << 4
            ordered = apart[..., 0, :].transpose(2, 3, 0, 4, 1, 5)  # block, step, half, group, lane, byte
            panel[:, : self.scales_at] = ordered.reshape(self.blocks, self.scales_at)
            scales = _columns(self.scales[at].astype(self.scale.numpy), nr)
            panel[:, self.scales_at : self.zeros_at] = scales.view(np.uint8)
            if self.zeros is not None:
                panel[:, self.zeros_at :] = _columns(self.zeros[at], nr)
            if self.offsets is not None:
                panel[:, self.zeros_at :] = _columns(self.offsets[at], nr).view(np.uint8)


def _columns(rows: np.ndarray, count: int) -> np.ndarray:
    """Transposes [column, block] to [block, count], with zeros beyond the columns."""
    out = np.zeros((rows.shape[1], count), rows.dtype)
    out[:, : len(rows)] = rows.T
    return out


def _offsets(zeros: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns −zero · scale: in f16 where it gives every zero again, rounded to f32."""
    by = scales.astype(np.float64)
    exact = -zeros.astype(np.float64) * by
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        half = exact.astype(F16.numpy)
        same = (-half / by).astype(np.float32) == zeros.astype(np.float32)
    return half if same.all() else exact.astype(np.float32)


def _fits_f16(scales: np.ndarray, exact: bool) -> bool:
    if scales.dtype == F16.numpy or exact_type(scales) is F16:
        return True
    return not exact and rejection(scales, 0, F16) is None
