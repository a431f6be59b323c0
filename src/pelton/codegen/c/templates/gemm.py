"""Matrix products in f32: matmul, and 1×1 convolutions of stride one, which are products over pixels."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import Size, bounds
from pelton.ir.graph import Value
from pelton.ops.conv import is_product
from pelton.plan.layout import Layouts, Order, broadcast, channels_last, last_of, row_major
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.code import Text, code
from pelton.codegen.grid import (
    Grid,
    all_f32,
    is_constant,
    ceil_div,
    fits_grid,
    grid_of,
    instructions_by_lane,
    register_tiles,
    tail_rejection,
)
from pelton.codegen.c.halves import weight_text
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, template

KC = 384  # 384 × 16 floats are 24 KiB: a panel stays in L1 (91–98 % of peak on Zen 3)


def pack_panels(b: np.ndarray, out: np.ndarray) -> None:
    """Packs […, K, N] into […, panel, K, nr]; leaves columns beyond N as they are."""
    for p in range(out.shape[-3]):
        part = b[..., p * out.shape[-1] : (p + 1) * out.shape[-1]]
        out[..., p, :, : part.shape[-1]] = part


@template
class Gemm(Template):
    name = "gemm"
    anchors: tuple[str, ...] = ("matmul", "convolution")
    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if not all_f32(*node.inputs, node.output):
            return "not f32"
        if node.op.name == "convolution":
            if not is_product(node):
                return "not a 1×1 convolution of stride one without padding and groups"
            if not is_constant(region, node.inputs[1]) or not is_constant(region, node.inputs[2]):
                return "the filters are not constant"
        elif min(len(v.type.shape) for v in node.inputs) < 2:
            return "an operand is a vector"
        columns = 1 if node.op.name == "convolution" else node.output.type.rank - 1
        return tail_rejection(region, node.output.type.shape, columns)

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        rank = value.type.rank
        return channels_last(rank) if region.anchor.op.name == "convolution" else row_major(rank)

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        if region.anchor.op.name == "convolution":
            return last_of(channels_last(region.anchor.output.type.rank), value.type.rank)
        return row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        p, shape, strides = MatrixProduct(region), value.type.shape, layouts[value]
        if value is p.a and p.node.op.name == "convolution":
            grid = grid_of(shape, "pixels")
            runs = grid.runs(grid.r, strides)
            return (shape[1] == 1 or strides[1] == 1) and len(runs) <= 1
        if value is p.a and shape[-1] != 1 and strides[-1] != 1:
            return False
        if value is p.b and not is_constant(region, value) and shape[-2:] != (1, 1):
            if 1 not in [s for s, d in zip(strides[-2:], shape[-2:]) if d != 1]:
                return False
        return fits_grid(region, p.grid, value, strides)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["MR"], tactic["NV"]

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p = MatrixProduct(region, layouts)
        seen = set()
        for mr, nv, mb, nb, kc in self._choices(p, target):
            nr = nv * target.lanes
            mr = min(mr, p.m)
            mb = min(ceil_div(mb, mr) * mr, ceil_div(p.m, mr) * mr)
            nb = min(max(nr, nb // nr * nr), ceil_div(p.n, nr) * nr)
            choice = (mr, nv, mb, nb, kc if p.k > kc else ceil_div(p.k, 8) * 8)
            if choice not in seen:
                seen.add(choice)
                yield Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "MB", "NB", "KC"), choice)))

    def _choices(self, p: MatrixProduct, target: Target):
        if p.m <= 2:  # bound by reading B: wide panels, all of K at once
            for nv in (4, 8, 2):
                yield p.m, nv, p.m, nv * target.lanes * 2, 1 << 20
            return
        tasks = target.threads * 6  # enough to even out, few enough to be cheap
        choices = list[tuple[int, int, int, int, int]]()
        for mr, nv in register_tiles(p.n, p.m, target):
            cols = ceil_div(p.n, nv * target.lanes)
            # All rows at once only if they stay in a cache between two panels: 10816 × 128 by 64 took 1.16 ms alone (by
            # blocks 1.22), 2.2 in YOLOv2 (1.4). Not blocks of similar size (`balanced`: 66, 66 and 64 rows, not 96, 96
            # and 4): in products, direct and Winograd convolutions they make BERT 1 to 4 % faster and ResNet-50 1 %
            # slower; in Winograd alone they make it 2 % faster.
            small = 4 * p.m * p.k <= 2 * target.l2
            whole = [ceil_div(p.m, 6) * 6, ceil_div(ceil_div(p.m, target.threads), mr) * mr] if small else []
            for mb in (96, 48, 192, *whole):
                per = max(1, min(cols, cols * ceil_div(p.m, mb) * p.batch // tasks))
                # All columns at once: a thread then reads the rows of A that it wrote itself, if the step before is
                # divided among threads by rows as well.
                depths = (KC, 256, p.k) if p.k > KC else (p.k,)
                for columns in (per, cols) if ceil_div(p.m, mb) >= target.threads else (per,):
                    choices += [(mr, nv, mb, columns * nv * target.lanes, kc) for kc in depths]
        yield from sorted(choices, key=lambda c: self._cycles(p, target, *c))

    def _cycles(self, p: MatrixProduct, target: Target, mr: int, nv: int, mb: int, nb: int, kc: int) -> float:
        """Models roughly how long a core waits.

        It counts products, starts of tiles and tasks, panels of B that do not fit L1, and blocks of A that do not fit
        L2. Of 65 products, by both register tiles, the first choice took 15 % longer than the best of all, the better
        of two 4 %, the best of four 1 % (Zen 3, 2 threads).
        """
        nr = nv * target.lanes
        panels, blocks = ceil_div(p.n, nr), ceil_div(p.m, mb)
        tiles, splits, kn = panels * blocks * ceil_div(mb, mr), ceil_div(panels * nr, nb), min(kc, p.k)
        products = tiles * (mr * nv / 2 * p.k + 100 * ceil_div(p.k, kc))
        if target.level.by_lane:
            products = instructions_by_lane(ceil_div(p.n, target.lanes), p.m, (mr, nv), p.k) / 2
        panel = 4 * nr * p.k * tiles / 64 if 4 * kn * (nr + mr) > target.l1 * 0.9 else 0
        block = 4 * p.m * p.k * panels / 4 if 4 * mb * kn > target.l2 / 4 else 0
        tasks = p.batch * blocks * splits
        rounds = ceil_div(tasks, target.threads)
        return (products + panel + block + 1000 * blocks * splits) * rounds * target.threads / tasks

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p = MatrixProduct(region, layouts)
        node, grid = p.node, p.grid
        nr = tactic["NV"] * target.lanes
        packed, stored = is_constant(region, p.b), self.stored(tactic)
        ar, a_at = rows_of_a(p, layouts)
        if node.op.name == "convolution":
            b_at: Text = "0"
            bk, bn = 0, 0
        else:
            b_shape = (*grid.shape[:-2], p.k, p.n)
            shape = p.b.type.shape
            if packed:
                dense = tuple(
                    math.prod([ceil_div(shape[-1], nr) * nr, *shape[i + 1 : -1]]) for i in range(len(shape) - 2)
                )
                b = broadcast(shape, (*dense, 0, 0), b_shape)
                bk = bn = 0
            else:
                b = broadcast(shape, layouts[p.b], b_shape)
                bk, bn = b[-2:]
            b_at = Grid(b_shape, grid.b, (), ()).address(b)
        end = tail(region, layouts, grid, (node.output,), first=2, bias=p.bias, unit=target.lanes)
        block = (
            constants(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=ar, PACKED=packed, BK=bk, BN=bn)
            + weight_text(tactic, stored)
            + macro("A_AT(b)", a_at)
            + macro("B_AT(b)", b_at)
            + end.text
        )
        mb, nb, kc = tactic["MB"], tactic["NB"], tactic["KC"]
        mbs, nbs = ceil_div(p.m, mb), ceil_div(p.n, nb)
        scratch = 4 * ((mb * nb if bounds(p.k)[1] > kc else 0) + (0 if packed else nb * p.k))
        weights: Value | Packed = p.b
        if packed:
            array = region.body.constants[p.b]
            panels = (ceil_div(p.n, nr), p.k, nr)
            if node.op.name == "convolution":
                weights = Packed(
                    (p.b,),
                    f"panels{nr}t{stored.value}",
                    panels,
                    lambda out: pack_panels(array.reshape(array.shape[0], array.shape[1]).T, out),
                    stored,
                )
            else:
                weights = Packed(
                    (p.b,),
                    f"panels{nr}{stored.value}",
                    (*array.shape[:-2], *panels),
                    lambda out: pack_panels(array, out),
                    stored,
                )
        operands, tiles = (p.a, weights, *end.operands), p.batch * mbs * nbs
        return kernel("gemm.c", region, tactic, block, operands, tiles, scratch=scratch)


def rows_of_a(p: MatrixProduct, layouts: Layouts) -> tuple[Size, Text]:
    """Returns the stride between rows of A, and the address of a batch's rows."""
    if p.node.op.name == "convolution":
        pixels = grid_of(p.a.type.shape, "pixels")
        runs = pixels.runs(pixels.r, layouts[p.a])
        return runs[0][1] if runs else 0, code("(b) * {}", layouts[p.a][0])
    shape = (*p.grid.shape[:-1], p.k)
    strides, rows = broadcast(p.a.type.shape, layouts[p.a], shape), Grid(shape, p.grid.b, p.grid.r, ())
    runs = rows.runs(rows.r, strides)
    return runs[0][1] if runs else 0, Grid(shape, p.grid.b, (), ()).address(strides)
