"""Attention, softmax(scale · Q·Kᵀ + mask) · V, as one kernel that reads and writes heads with any strides. Keys and
values of a cache are read in its numbers: f16, bf16, or i8 with a scale for each row."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size, bounds, is_known, optimum
from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32, I8, DType
from pelton.ops.words import cache_attention
from pelton.plan.layout import Layouts, Order, Strides, broadcast, order_of, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.code import Text, code
from pelton.codegen.grid import Grid, is_constant, ceil_div, fits_grid, grid_of, tail_rejection
from pelton.codegen.template import Kernel, Tactic, Target, Template, template


def has_unit_stride(shape: tuple[Size, ...], strides: Strides) -> bool:
    """True if the last axis has unit stride, or one element."""
    return shape[-1] == 1 or strides[-1] == 1


def _loads(name: str, vector: str) -> str:
    """Returns the function that loads a vector of a row of keys or values, zero past the `left` elements it has."""
    full, part = vector.format("ld", "p"), vector.format("ldn", "p, left")
    body = f"return left >= VL ? {full} : left > 0 ? {part} : bc_f32(0);"
    return f"typedef {name} element;\nAI vf32 load(const element *p, idx left) {{ {body} }}\n"


LOADS = {
    F32: _loads("float", "{}_f32({})"),
    F16: _loads("f16", "{}_f16({})"),
    BF16: _loads("bf16", "{}_bf16({})"),
    I8: _loads("i8", "CONVERT({}_i8({}), f32)"),
}


class Heads:
    """The sizes, operands and grids of an attention."""

    def __init__(self, region: Region):
        self.node = region.anchor
        scales: tuple[Value, ...] = ()
        if self.node.op is cache_attention:
            self.q, self.k, key_scale, self.v, value_scale, self.mask = self.node.inputs
            scales = key_scale, value_scale
        else:
            self.q, self.k, self.v, self.mask = self.node.inputs
        self.out = self.node.output.type.shape
        self.lead = self.out[:-2]
        self.batch = math.prod(self.lead)
        self.sq, self.d = self.q.type.shape[-2:]
        self.sk, self.dv = self.v.type.shape[-2:]
        self.grid = grid_of(self.out, "rows")
        self.scores = grid_of((*self.lead, self.sq, self.sk), "rows")
        self.masked = not (is_constant(region, self.mask) and not region.body.constants[self.mask].any())
        # of keys and of values, where they are not all 1
        self.scales = tuple(
            None if is_constant(region, v) and (region.body.constants[v] == 1).all() else v for v in scales
        ) or (None, None)

    @property
    def operands(self) -> tuple[Value, ...]:
        """The operands of a kernel, in order."""
        return (self.q, self.k, self.v, *([self.mask] if self.masked else []), *filter(None, self.scales))

    def block(self, layouts: Layouts, **more: Size) -> Text:
        """Emits the region block up to the tail: sizes, strides of rows, and offsets of heads."""
        rows = {name: layouts[v][-2] for name, v in (("QR", self.q), ("KR", self.k), ("VR", self.v))}
        text = constants(
            SQ=self.sq,
            SK=self.sk,
            D=self.d,
            DV=self.dv,
            **rows,
            CAUSAL=self.node.attrs["causal"],
            MASKED=self.masked,
            **more,
        )
        text += f"#define SCALE {float(np.float32(self.node.attrs['scale']))!r}f\n"
        for name, v in (("Q_AT", self.q), ("K_AT", self.k), ("V_AT", self.v)):
            shape = (*self.lead, *v.type.shape[-2:])
            strides = broadcast(v.type.shape, layouts[v], shape)
            text += macro(f"{name}(b)", Grid(shape, self.grid.b, (), ()).address(strides))
        strides = broadcast(self.mask.type.shape, layouts[self.mask], self.scores.shape)
        load = "ldn_f32(mask + {}, n)" if self.scores.step(strides) else "bc_f32(*(mask + {}))"
        head = "AI vf32 mask_at(const args *a, const float *mask, idx b, idx r, idx c, int n)"
        text += code(head + " { return {}; }\n", code(load, self.scores.address(strides)))
        return text + LOADS[self.k.type.dtype] + self._scale_block(layouts)

    def _scale_block(self, layouts: Layouts) -> Text:
        """Emits functions that load the scales of n keys, or of their values, from c on."""
        text = constants(**{f"{name}_SCALED": v is not None for name, v in zip(("KEY", "VALUE"), self.scales)})
        for name, v in zip(("key", "value"), self.scales):
            body = code("return bc_f32(1);")
            if v is not None:
                strides = broadcast(v.type.shape, layouts[v], (*self.lead, self.sk, 1))
                at = Grid((*self.lead, self.sk, 1), self.grid.b, (), ()).address(strides)
                step = strides[-2]
                vector = "ldn_f32(p + c, n)" if step == 1 else code("ldg_f32(p + c * ({}), {}, n)", step, step)
                operand = self.operands.index(v)
                body = code("const float *p = (const float *)a[{}].p + {}; return {};", operand, at, vector)
            text += code("AI vf32 {}_scales(const args *a, idx b, idx c, idx n) { {} }\n", name, body)
        return text


class Attention(Template):
    """Base of both templates: unit stride along rows, any strides of the outer axes, a pointwise tail."""

    anchors: tuple[str, ...] = ("attention", "cache_attention")
    dynamic = True
    types: tuple[DType, ...] = (F32,)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.output.type.dtype not in self.types:
            return f"not {' or '.join(t.value for t in self.types)}"
        if not is_known(node.inputs[0].type.shape[-1], node.output.type.shape[-1]):
            return "the width of a head is dynamic"
        if node.op is cache_attention and any(v.type.dtype is not F32 for v in (node.inputs[2], node.inputs[4])):
            return "scales in another type than f32"
        if not abs(node.attrs["scale"]) <= float(np.finfo(np.float32).max):
            return "its scale is no finite f32"
        return tail_rejection(region, node.output.type.shape)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns the queries' axis order: where a transpose split heads for free, another one joins them for free."""
        q, rank = region.anchor.inputs[0], value.type.rank
        if q.type.shape[:-1] == value.type.shape[:-1] and has_unit_stride(q.type.shape, layouts[q]):
            order = order_of(q.type.shape, layouts[q])
            if order[-1] == rank - 1:
                return order
        return row_major(rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        h, shape, strides = Heads(region), value.type.shape, layouts[value]
        if value in (h.q, h.k, h.v) and not has_unit_stride(shape, strides):
            return False
        if value is h.mask and h.masked and h.scores.step(broadcast(shape, strides, h.scores.shape)) not in (0, 1):
            return False
        return fits_grid(region, h.grid, value, strides)


@template
class FewQueries(Attention):
    name = "attention_few"

    def node_rejection(self, region: Region) -> str | None:
        if reason := super().node_rejection(region):
            return reason
        few = optimum(region.anchor.output.type.shape[-2]) <= 4
        return None if few else "so many queries that packing the keys pays"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        vectors = ceil_div(region.anchor.output.type.shape[-1], target.lanes)
        nv = ceil_div(vectors, ceil_div(vectors, 8))
        yield Tactic(self.name, target.isa, (("NV", nv), ("PARTS", max(1, 8 // nv))))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        h = Heads(region)
        operands = h.operands
        end = tail(region, layouts, h.grid, (region.anchor.output,), first=len(operands))
        return kernel(
            "attention_few.c",
            region,
            tactic,
            h.block(layouts) + end.text,
            (*operands, *end.operands),
            h.batch * h.sq,
            scratch=4 * ceil_div(h.sk, target.lanes) * target.lanes,
        )


@template
class BlockedAttention(Attention):
    name = "attention"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        h = Heads(region)
        seen = set()
        blocks = ((96, 256), (48, 256), (96, 512)) if h.sk > 512 else ((48, 512), (24, 512), (96, 512))
        for mr, nv in ((6, 2), (4, 3)):
            nr = nv * target.lanes
            for mb, kb in blocks:
                mr = min(mr, h.sq)
                mb = min(ceil_div(mb, mr) * mr, ceil_div(h.sq, mr) * mr)
                choice = (mr, nv, mb, ceil_div(min(kb, h.sk), nr) * nr)
                if choice not in seen:
                    seen.add(choice)
                    yield Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "MB", "KB"), choice)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        h = Heads(region)
        operands = h.operands
        end = tail(region, layouts, h.grid, (region.anchor.output,), first=len(operands))
        nr, mb = tactic["NV"] * target.lanes, tactic["MB"]
        keys, cols = ceil_div(h.sk, nr) * nr, ceil_div(h.dv, nr) * nr
        running, row = bounds(h.sk)[1] > tactic["KB"], tactic["KB"] + (0 if tactic["KB"] % 256 else target.lanes)
        scratch = 4 * (keys * h.d + h.sk * cols + mb * (h.d + row + (cols if running else 0) + 3))
        return kernel(
            "attention.c",
            region,
            tactic,
            h.block(layouts, RUNNING=running) + end.text,
            (*operands, *end.operands),
            h.batch * ceil_div(h.sq, mb),
            scratch=scratch,
        )
