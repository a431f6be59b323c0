"""Matrix products on tensor cores: matmul and 1×1 convolutions, and what other convolutions share with them."""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pelton.ir.dims import Size, bounds, is_known, minimum
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import BF16, F16, F32
from pelton.kernels.emit import Grid
from pelton.kernels.gemm import is_product
from pelton.kernels.grid import constant, divide, tail_refusal
from pelton.kernels.product import Product
from pelton.kernels.template import GPU_TEMPLATES, Kernel, Layouts, Packed, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Order, broadcast, channels_last, last_of, row_major
from pelton.plan.region import Region, cut

from .emit import kernel, place, tail, unreadable
from .pointwise import power_of_two

TILES = ((128, 256, 8, 3), (256, 128, 8, 3), (128, 128, 8, 3), (128, 128, 4, 3), (128, 64, 8, 3), (128, 64, 4, 4), (64, 128, 4, 4), (64, 64, 4, 4),
         (64, 32, 4, 5), (32, 64, 4, 5), (32, 32, 4, 5), (16, 64, 4, 5), (16, 32, 4, 5))                 # rows, columns, warps, stages

PARTS = (1, 2, 3, 4, 6, 8)                      # that sums may be made in
FEW = 4                                        # rows that are summed without tensor cores, which take 16 at least


def cost(tile: tuple[int, int, int, int], m: int, n: int, batch: int, f32: bool, target: Target) -> float:
    """For each element that is summed, waves of tiles × what a tile takes: its products or what it loads. The unit is a product of an H100's tensor cores,
    which make three quarters of 2048 in a cycle (half as many with tiles of less than 64 rows, TF32 a sixth); its L2 cache gives a multiprocessor 40 bytes."""
    bm, bn, *_ = tile
    products = 1.3 * bm * bn * (6 if f32 else 1) * (2 if bm < 64 and target.isa == "sm_90" else 1)
    return divide(batch * divide(m, bm) * divide(n, bn), target.threads) * max(products, (200 if f32 else 100) * (bm + bn))


def tiles(name: str, m: int, n: int, k: int, batch: int, whole: int, f32: bool, target: Target) -> Iterable[Tactic]:
    """Tactics by `cost`.

    Sums that a thread holds are half as many where an A100 has to hold them: with twice as many its kernels spilled 112 to 424 bytes per thread.
    whole: steps that divide it are preferred. f32: exactly rounded products (three of TF32 each, or by the units for f32) instead of half ones.
    """
    most = (32 if f32 else 64) * (2 if target.isa == "sm_90" else 1)
    ways = [(bk, precision) for precision in ((1, 0) if f32 else (0,)) for bk in ((32, 16) if f32 else (64, 32, 128))]
    ways = [w for w in ways if w[0] <= power_of_two(k, 16)] or [(16, ways[0][1])]
    ways.sort(key=lambda w: whole % w[0] != 0)
    for bk, precision in ways:
        for bm, bn, warps, stages in sorted(TILES, key=lambda tile: cost(tile, m, n, batch, f32, target)):
            if (bm + bn) * bk * (4 if f32 else 2) * stages > 160 << 10 or bm * bn > 32 * warps * most:
                continue                                                   # past shared memory, or registers
            yield Tactic(name, target.isa, (("BM", bm), ("BN", bn), ("BK", bk), ("TALL", 8), ("WARPS", warps), ("STAGES", stages), ("PRECISION", precision)))


def convolves(node: Node) -> bool:
    return node.op.name.startswith("conv")


class Products(Template):
    """What they share: element types, and that any operand may lie anywhere."""

    dynamic = True

    def refuses_node(self, region: Region) -> str | None:
        node = region.anchor
        kinds = {v.type.dtype for v in node.inputs}
        if len(kinds) != 1 or not kinds <= {F32, F16, BF16}:
            return "not in one of f32, f16 and bf16"
        conv = convolves(node)
        if conv and node.inputs[0] in node.inputs[1:]:
            return "the picture is its own filter"
        return self.refuses_sizes(region) or tail_refusal(region, node.output.type.shape, 1 if conv else node.output.type.rank - 1) or unreadable(region.tail)

    def refuses_sizes(self, region: Region) -> str | None:
        return None

    def order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        rank = value.type.rank
        return channels_last(rank) if convolves(region.anchor) else row_major(rank)

    def wanted(self, region: Region, value: Value, layouts: Layouts) -> Order:
        rank = value.type.rank
        if not convolves(region.anchor) or value in region.anchor.inputs[1:] and not any(value in n.inputs for n in region.tail):
            return row_major(rank)
        return last_of(channels_last(region.anchor.output.type.rank), rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        node, shape, strides = region.anchor, value.type.shape, layouts[value]
        if convolves(node):
            if value in node.inputs[2:] and value.type.size != 1 and strides != (1,):
                return False
            return value is not node.inputs[0] or strides[1] == 1 or is_known(shape[1]) and shape[1] < 8      # few channels gain nothing by lying together
        return value not in node.inputs or 1 in [s for s, d in zip(strides[-2:], shape[-2:]) if d != 1] or shape[-2:] == (1, 1)

    def form(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["BM"], tactic["BN"]

    def exact(self, tactic: Tactic) -> bool:
        return tactic["PRECISION"] == 0                                    # 1: three products of TF32 instead of one of f32


def pixels(shape: tuple[int, ...]) -> Grid:
    """All pixels of all pictures × channels."""
    return Grid(tuple(shape), (), (0, *range(2, len(shape))), (1,))


def product(region: Region, layouts: Layouts | None = None) -> tuple[Product, Grid, Size, Size]:
    """(the product, its output's grid, batch, rows)"""
    p = Product(region, layouts)
    if p.node.op.name != "convolution":
        return p, p.grid, p.batch, p.m
    return p, pixels(p.node.output.type.shape), 1, p.batch * p.m


def a_at(p: Product, grid: Grid, layouts: Layouts) -> tuple[str, Size]:
    """Where the rows of A begin, and its stride along what is summed."""
    if p.node.op.name == "convolution":
        return place("a_at", Grid(p.a.type.shape, (), grid.r, ()), layouts[p.a]), layouts[p.a][1]
    shape = (*grid.shape[:-1], p.k)
    strides = broadcast(p.a.type.shape, layouts[p.a], shape)
    return place("a_at", Grid(shape, grid.b, grid.r, ()), strides), strides[-1]


def b_at(p: Product, grid: Grid, layouts: Layouts) -> tuple[str, Size]:
    """The same of the columns of B."""
    if p.node.op.name == "convolution":
        return place("b_at", Grid(p.b.type.shape, (), (), (0,)), layouts[p.b]), layouts[p.b][1]
    shape = (*grid.shape[:-2], p.k, p.n)
    strides = broadcast(p.b.type.shape, layouts[p.b], shape)
    return place("b_at", Grid(shape, grid.b, (), grid.c), strides), strides[-2]


class Plain(Products):
    """Products of two matrices, as they are."""

    anchors = ("matmul", "matmul_wide", "convolution")

    def refuses_sizes(self, region: Region) -> str | None:
        node = region.anchor
        if node.op.name == "convolution":
            return None if is_product(node) else "not a 1×1 convolution of stride one without padding and groups"
        return "an operand is a vector" if min(v.type.rank for v in node.inputs) < 2 else None


def parts(graph: Graph, node: Node, target: Target) -> int:
    """In how many parts a product's sums should be made, which another kernel adds: several where its tiles are few for the multiprocessors."""
    if node.op.name not in ("matmul", "convolution") or GPU_TEMPLATES["gemm"].refuses(cut(graph, (node,), (node,))) is not None:
        return 1
    p, _, batch, m = product(cut(graph, (node,), (node,)))
    if not is_known(batch, m, p.n, p.k) or batch != 1 or p.b.type.size != p.n * p.k or m <= FEW:
        return 1
    f32, n, k = p.a.type.dtype is F32, p.n, p.k
    read = n * k * p.a.type.dtype.size / 2400                              # cycles at least: of an H200's memory, 4.3 TB/s at 1.8 GHz

    def cycles(parts: int) -> float:
        adds = 0 if parts == 1 else 2500 + parts * m * n * 8 / (40 * target.threads)        # another launch; sums written and read
        return adds + max(read, min(cost(tile, m, n, parts, f32, target) for tile in TILES) * k / parts / 2048)
    best = min((parts for parts in PARTS if parts == 1 or k % (32 * parts) == 0), key=cycles)
    return best if cycles(best) < 0.75 * cycles(1) else 1


def lies_turned(region: Region, p: Product) -> bool:
    """Whether B is one constant matrix, which may lie as the kernel likes it."""
    return constant(region, p.b) and p.b.type.size == p.n * p.k


def turned(rows: np.ndarray, out: np.ndarray) -> None:
    """Rows along which sums run; what is past them stays as it is."""
    out[:, :rows.shape[1]] = rows


@gpu_template
class Few(Plain):
    """Few rows: the matrix is read once, and a constant one lies so that a few programs for each multiprocessor read long pieces of it."""

    name = "few"

    def refuses_sizes(self, region: Region) -> str | None:
        reason = super().refuses_sizes(region)
        return reason or (None if bounds(product(region)[3])[1] <= FEW else f"more than {FEW} rows")

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        rows = power_of_two(m)
        for size, warps in ((8192, 8), (4096, 4), (2048, 4), (16384, 8)):
            across = layouts[p.b][-1] == 1 and not lies_turned(region, p)      # pieces of 64 bytes and more then, along the columns
            programs = 4 * target.threads if target.threads > 1 else 1          # one in a chain: it should make as few tiles as it can
            bn = 32 if across else power_of_two(divide(p.n * batch, programs), 1, max(16, size // rows // power_of_two(p.k, 16)))
            bk = power_of_two(p.k, 16, max(16, size // bn // rows))
            yield Tactic(self.name, target.isa, (("ROWS", rows), ("BN", bn), ("BK", bk), ("AHEAD", 3), ("WARPS", warps)))

    def form(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["BN"],)

    def exact(self, tactic: Tactic) -> bool:
        return True

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = product(region, layouts)
        (left, ak), (right, bk) = a_at(p, grid, layouts), b_at(p, grid, layouts)
        matrix: Value | Packed = p.b
        if lies_turned(region, p):
            step, array = divide(p.k, 8) * 8, region.body.constants[p.b]       # rows begin at multiples of 16 bytes
            rows = array.reshape(p.n, p.k) if p.node.op.name == "convolution" else array.reshape(p.k, p.n).T
            matrix = Packed((p.b,), f"turned{step}", (p.n, step), lambda out: turned(rows, out), p.b.type.dtype)
            right, bk = place("b_at", Grid(matrix.shape, (), (), (0,)), (step, 1)), 1
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        return kernel("few.py", region, tactic, dict(M=m, N=p.n, K=p.k, AK=ak, BK_STEP=bk), left + right + end.text, (p.a, matrix, *end.operands),
                      batch * divide(p.n, tactic["BN"]), layouts)


@gpu_template
class Gemm(Plain):
    name = "gemm"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        found = list(tiles(self.name, m, p.n, p.k, batch, p.k, p.a.type.dtype is F32, target))
        copied = [t for t in found if min(t["BM"], t["BN"]) >= 64] if target.isa == "sm_90" and self.described(region, layouts) is not None else []
        large = [t for t in copied if divide(m, t["BM"]) * divide(p.n, t["BN"]) > target.threads]      # its programs make several tiles with their descriptors
        for some, by_tma in ((large, 1), (found, 0), ([t for t in copied if t not in large], 1)):
            for t in some:
                yield Tactic(t.template, t.isa, (*t.params, ("DESCRIBED", by_tma), ("PERSISTENT", by_tma)))

    def form(self, tactic: Tactic) -> tuple[int, ...]:
        return *super().form(tactic), tactic["DESCRIBED"]

    def described(self, region: Region, layouts: Layouts) -> dict[str, Size] | None:
        """What descriptors of both operands say; None where there can be none: rows begin at multiples of 16 bytes, elements lie side by side in them."""
        p, grid, batch, _ = product(region, layouts)
        whole = 16 // p.a.type.dtype.size
        if batch != 1 or p.a.type.dtype is F32:                            # TF32 wants columns of B where it needs them, which are not copied so
            return None
        convolves = p.node.op.name == "convolution"
        shape = p.a.type.shape if convolves else (*grid.shape[:-1], p.k)
        a, b = broadcast(p.a.type.shape, layouts[p.a], shape), layouts[p.b]
        runs = Grid(shape, (), grid.r, ()).runs(grid.r, a)
        across, along = (b[0], b[1]) if convolves else (b[-1], b[-2])
        row_a, inner = runs[0][1] if runs else p.k, a[1] if convolves else a[-1]
        turned = along == 1
        row_b = across if turned else along
        steps = is_known(row_a, row_b) and row_a > 0 and row_b > 0 and row_a % whole == 0 and row_b % whole == 0
        return dict(ROW_A=row_a, ROW_B=row_b, TURNED=turned) if len(runs) <= 1 and inner == 1 and 1 in (across, along) and steps else None

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = product(region, layouts)
        (left, ak), (right, bk) = a_at(p, grid, layouts), b_at(p, grid, layouts)
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        even = is_known(p.k) and p.k % tactic["BK"] == 0
        steps = self.described(region, layouts) if tactic["DESCRIBED"] else None
        if steps is None:                                                  # sizes that a run decides may lie otherwise than the usual ones
            tactic = Tactic(tactic.template, tactic.isa, tuple({**dict(tactic.params), "DESCRIBED": 0}.items()))
        sizes = dict(BATCH=batch, M=m, N=p.n, K=p.k, AK=ak, BK_STEP=bk, EVEN=even, **(steps or dict(ROW_A=0, ROW_B=0, TURNED=False)))
        count = batch * divide(m, tactic["BM"]) * divide(p.n, tactic["BN"])
        return kernel("gemm.py", region, tactic, sizes, left + right + end.text, (p.a, p.b, *end.operands),
                      minimum(count, target.threads) if tactic["PERSISTENT"] else count, layouts)
