"""Matrix products on tensor cores: matmul and 1×1 convolutions, and code shared with other convolutions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Node, Value
from pelton.ir.types import BF16, F16, F32, I32, DType
from pelton.codegen.c.templates.conv_int8 import accumulates_rejection
from pelton.codegen.c.templates.gemm import is_product
from pelton.codegen.code import Text
from pelton.codegen.grid import Grid, is_constant, ceil_div, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Packed, Tactic, Target, Template
from pelton.plan.layout import Layouts, Order, broadcast, channels_last, last_of, row_major
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.emit import ALIGNED, emit_offset, nodes_rejection
from .integers import LEAST, bytes_rejection, float8_rejection, sums_bytes, sums_float8
from .pointwise import power_of_two

TILES = (
    (128, 256, 8, 3),
    (256, 128, 8, 3),
    (128, 128, 8, 3),
    (128, 128, 4, 3),
    (128, 64, 8, 3),
    (128, 64, 4, 4),
    (64, 128, 4, 4),
    (64, 64, 4, 4),
    # rows, columns, warps, stages
    (64, 32, 4, 5),
    (32, 64, 4, 5),
    (32, 32, 4, 5),
    (16, 64, 4, 5),
    (16, 32, 4, 5),
)

# bytes of a factor → elements summed per step, the preferred ones first
STEPS = {4: (32, 16), 2: (64, 32, 128), 1: (128, 64, 32)}
PARTS = (2, 3, 4, 6, 8, 12, 16)  # numbers of parts of a sum
TILES_PER_MULTIPROCESSOR = 4  # with as many, no steps are shared
# candidates that share tiles are kept up to this multiple of the time of one tile per program
LIKELY = 1.2
TF32 = 2  # the precision of single TF32 products


def tiles(name: str, k: int, whole: int, size: int, target: Target, steps: tuple[int, ...] = ()) -> Iterable[Tactic]:
    """Yields tactics for sums over k, of factors of `size` bytes; of equally fast ones, the preferred come first.

    A thread holds half as many sums if an A100 has to hold them: with twice as many its kernels spilled 112 to 424
    bytes per thread. whole: steps that divide it are preferred. steps: elements summed per step, if not the usual ones.
    """
    most = (32 if size == 4 and not target.tf32 else 64) * (2 if target.isa == "sm_90" else 1)
    ways = [(bk, precision) for precision in precisions(size, target) for bk in steps or STEPS[size]]
    least = min(steps, default=LEAST if size == 1 else 16)
    ways = [w for w in ways if w[0] <= power_of_two(k, least)] or [(least, ways[0][1])]
    ways.sort(key=lambda w: whole % w[0] != 0)
    for bk, precision in ways:
        for bm, bn, warps, stages in TILES:
            if (bm + bn) * bk * size * stages > 160 << 10 or bm * bn > 32 * warps * most:
                continue  # past shared memory, or registers
            yield Tactic(
                name,
                target.isa,
                (
                    ("BM", bm),
                    ("BN", bn),
                    ("BK", bk),
                    ("TALL", 8),
                    ("WARPS", warps),
                    ("STAGES", stages),
                    ("PRECISION", precision),
                ),
            )


def precisions(size: int, target: Target) -> tuple[int, ...]:
    """Returns values of the tactic PRECISION: 0, the operands' own type; for f32, too, 1, three products of TF32 for
    each one, as exact as sums of f32, or 2, a single one of TF32."""
    if size != 4:
        return (0,)
    return (TF32,) if target.tf32 else (1, 0)


def tf32_rounding(region: Region, tactic: Tactic, a: Value, b: Value) -> dict[str, Size]:
    """Selects the factors that a kernel has to round to TF32; constant ones already are."""
    return {
        name: tactic["PRECISION"] == TF32 and not is_constant(region, v) for name, v in (("ROUND_A", a), ("ROUND_B", b))
    }


def keep_likely(found: list[tuple[float, Tactic]]) -> list[tuple[float, Tactic]]:
    """Returns the first, whose programs have a tile each, and the best of the others, whose programs share tiles, if it
    may be faster."""
    best = min(found[1:], key=lambda pair: pair[0], default=None)
    return [found[0]] if best is None or best[0] > LIKELY * found[0][0] else [found[0], best]


def stream_counts(count: int, steps: int, target: Target) -> list[int]:
    """Returns numbers of programs that may share the steps of so many tiles, each of two and more: equal parts of the
    tiles, or as many as there is room for.

    Parts are added in the same launch. By the model, another launch adds them faster only for a few large tiles of
    eight parts (22,700 cycles against 28,500 for 3×3 at 13×13 with 1,024 channels in f16 on an H100)."""
    most = min(2 * target.threads, count * steps // 2)
    numbers = (
        {*(parts * count for parts in PARTS), target.threads, 2 * target.threads}
        if count < TILES_PER_MULTIPROCESSOR * target.threads and steps > 1
        else ()
    )
    return sorted(n for n in numbers if n <= most and n != count and count * steps * n < 1 << 30)


def workspaces(tactic: Tactic, sums: DType = F32) -> tuple[KernelWorkspace, KernelWorkspace]:
    """Returns the workspaces of a stream's programs: parts of sums, of that type, and the numbers of arrived ones."""
    return KernelWorkspace((2 * tactic["STREAM"], tactic["BM"], tactic["BN"]), sums), KernelWorkspace(
        (tactic["STREAM"],), I32, zero=True
    )


def is_convolution(node: Node) -> bool:
    return node.op.name.startswith("conv")


class TensorCoreTemplate(Template):
    """Base of products on tensor cores: their element types; operands may have any offset."""

    dynamic = True
    multiplies_bytes = True  # True to include bytes, summed in i32

    def types_rejection(self, product: Node) -> str | None:
        if self.multiplies_bytes and sums_float8(product):
            return None
        integers = self.multiplies_bytes and sums_bytes(product)
        return accumulates_rejection(product) if integers else super().types_rejection(product)

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        kinds = {v.type.dtype for v in node.inputs}
        if sums_bytes(node):
            if (reason := bytes_rejection(region)) is not None:
                return reason
        elif sums_float8(node):
            if (reason := float8_rejection(region)) is not None:
                return reason
        elif len(kinds) != 1 or not kinds <= {F32, F16, BF16}:
            return "not in one of f32, f16 and bf16, nor bytes"
        conv = is_convolution(node)
        if conv and node.inputs[0] in node.inputs[1:]:
            return "the image is its own filter"
        return (
            self.sizes_rejection(region)
            or tail_rejection(region, node.output.type.shape, 1 if conv else node.output.type.rank - 1)
            or nodes_rejection(region.tail)
        )

    def sizes_rejection(self, region: Region) -> str | None:
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        rank = value.type.rank
        return channels_last(rank) if is_convolution(region.anchor) else row_major(rank)

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        rank = value.type.rank
        if (
            not is_convolution(region.anchor)
            or value in region.anchor.inputs[1:]
            and not any(value in n.inputs for n in region.tail)
        ):
            return row_major(rank)
        return last_of(channels_last(region.anchor.output.type.rank), rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        node, shape, strides = region.anchor, value.type.shape, layouts[value]
        if is_convolution(node):
            if value in node.inputs[2:] and value.type.size != 1 and strides != (1,):
                return False
            # few channels gain nothing by being adjacent
            return value is not node.inputs[0] or strides[1] == 1 or is_known(shape[1]) and shape[1] < 8
        return (
            value not in node.inputs
            or 1 in [s for s, d in zip(strides[-2:], shape[-2:]) if d != 1]
            or shape[-2:] == (1, 1)
        )

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["BM"], tactic["BN"]

    def is_exact(self, tactic: Tactic) -> bool:
        return tactic["PRECISION"] == 0


def pixel_grid(shape: tuple[int, ...]) -> Grid:
    """Returns the grid of all pixels of all images × channels."""
    return Grid(tuple(shape), (), (0, *range(2, len(shape))), (1,))


def product(region: Region, layouts: Layouts | None = None) -> tuple[MatrixProduct, Grid, Size, Size]:
    """Returns (the product, its output's grid, batch, rows)."""
    p = MatrixProduct(region, layouts)
    if p.node.op.name != "convolution":
        return p, p.grid, p.batch, p.m
    return p, pixel_grid(p.node.output.type.shape), 1, p.batch * p.m


def offsets_a(p: MatrixProduct, grid: Grid, layouts: Layouts) -> tuple[Text, Size]:
    """Returns the function of the offsets of A's rows, and A's stride along the sum."""
    if p.node.op.name == "convolution":
        return emit_offset("a_at", Grid(p.a.type.shape, (), grid.r, ()), layouts[p.a]), layouts[p.a][1]
    shape = (*grid.shape[:-1], p.k)
    strides = broadcast(p.a.type.shape, layouts[p.a], shape)
    return emit_offset("a_at", Grid(shape, grid.b, grid.r, ()), strides), strides[-1]


def offsets_b(p: MatrixProduct, grid: Grid, layouts: Layouts) -> tuple[Text, Size]:
    """Returns the same for the columns of B."""
    if p.node.op.name == "convolution":
        return emit_offset("b_at", Grid(p.b.type.shape, (), (), (0,)), layouts[p.b]), layouts[p.b][1]
    shape = (*grid.shape[:-2], p.k, p.n)
    strides = broadcast(p.b.type.shape, layouts[p.b], shape)
    return emit_offset("b_at", Grid(shape, grid.b, (), grid.c), strides), strides[-2]


class MatrixTemplate(TensorCoreTemplate):
    """Products of two matrices, as they are."""

    anchors = ("matmul", "convolution")

    def sizes_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if node.op.name == "convolution":
            return None if is_product(node) else "not a 1×1 convolution of stride one without padding and groups"
        return "an operand is a vector" if min(v.type.rank for v in node.inputs) < 2 else None


def is_packable(region: Region, p: MatrixProduct) -> bool:
    """True if B is one constant matrix, which can be packed for the kernel."""
    return is_constant(region, p.b) and p.b.type.size == p.n * p.k


def column_step(p: MatrixProduct) -> int:
    """Returns the elements between starts of columns of a transposed B: multiples of 16 bytes."""
    whole = max(8, ALIGNED // p.b.type.dtype.size)
    return ceil_div(p.k, whole) * whole


def turned(region: Region, p: MatrixProduct) -> tuple[Packed, Text, Size]:
    """Returns a constant B by columns, with the offsets of these and the step along them."""
    step, array = column_step(p), region.body.constants[p.b]
    rows = array.reshape(p.n, p.k) if p.node.op.name == "convolution" else array.reshape(p.k, p.n).T
    matrix = Packed((p.b,), f"turned{step}", (p.n, step), lambda out: pack_rows(rows, out), p.b.type.dtype)
    return matrix, emit_offset("b_at", Grid(matrix.shape, (), (), (0,)), (step, 1)), 1


def pack_rows(rows: np.ndarray, out: np.ndarray) -> None:
    """Copies rows along which sums run; leaves elements past them as they are."""
    out[:, : rows.shape[1]] = rows
