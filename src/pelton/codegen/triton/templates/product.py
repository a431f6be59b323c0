"""Matrix products on tensor cores: matmul and 1×1 convolutions, and what other convolutions share with them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pelton.ir.dims import Size, bounds, is_known, minimum
from pelton.ir.graph import Node, Value
from pelton.ir.types import BF16, F16, F32, I32
from pelton.codegen.c.templates.gemm import is_product
from pelton.codegen.code import Text
from pelton.codegen.grid import Grid, is_constant, ceil_div, tail_rejection
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Layouts, Order, broadcast, channels_last, last_of, row_major
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.emit import kernel, emit_offset, tail, nodes_rejection
from .pointwise import power_of_two
from pelton.codegen.triton.cost import cycles

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

PARTS = (2, 3, 4, 6, 8, 12, 16)  # that sums may be made in
TILES_PER_MULTIPROCESSOR = 4  # tiles for each multiprocessor: no steps of theirs need be shared
# candidates that share tiles are kept up to this multiple of the time of one tile per program
LIKELY = 1.2
TF32 = 2  # the precision of products that are made as such
MAX_SKINNY_ROWS = 4  # rows that are summed without tensor cores, which take 16 at least


def tiles(name: str, k: int, whole: int, f32: bool, target: Target) -> Iterable[Tactic]:
    """Tactics for sums over k; of such as may take equally long, the preferred ones come first.

    Sums that a thread holds are half as many where an A100 has to hold them: with twice as many its kernels spilled 112
    to 424 bytes per thread. whole: steps that divide it are preferred. f32: instead of half products those of f32, see
    `precisions`.
    """
    most = (32 if f32 and not target.tf32 else 64) * (2 if target.isa == "sm_90" else 1)
    ways = [(bk, precision) for precision in precisions(f32, target) for bk in ((32, 16) if f32 else (64, 32, 128))]
    ways = [w for w in ways if w[0] <= power_of_two(k, 16)] or [(16, ways[0][1])]
    ways.sort(key=lambda w: whole % w[0] != 0)
    for bk, precision in ways:
        for bm, bn, warps, stages in TILES:
            if (bm + bn) * bk * (4 if f32 else 2) * stages > 160 << 10 or bm * bn > 32 * warps * most:
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


def precisions(f32: bool, target: Target) -> tuple[int, ...]:
    """Values of the tactic PRECISION: 0, the operands' own type; for f32, too, 1, three products of TF32 for each one,
    which is as exact as sums of f32 are, or 2, a single one of TF32."""
    if not f32:
        return (0,)
    return (TF32,) if target.tf32 else (1, 0)


def tf32_rounding(region: Region, tactic: Tactic, a: Value, b: Value) -> dict[str, Size]:
    """Which factors a kernel has to round to TF32: constant ones are."""
    return {
        name: tactic["PRECISION"] == TF32 and not is_constant(region, v) for name, v in (("ROUND_A", a), ("ROUND_B", b))
    }


def estimate_tactics(
    m: int, n: int, k: int, batch: int, f32: bool, boxes: bool, target: Target
) -> list[tuple[float, Tactic]]:
    """Tactics for products with the cycles that they may take. boxes: whether the operands can be fetched as such."""
    found = []
    for t in tiles("gemm", k, k, f32, target):
        count = batch * ceil_div(m, t["BM"]) * ceil_div(n, t["BN"])
        for by_tma in (1, 0) if boxes and min(t["BM"], t["BN"]) >= 64 else (0,):
            ways = (
                Tactic(
                    t.template,
                    t.isa,
                    (*t.params, ("DESCRIBED", by_tma), ("PERSISTENT", int(by_tma and not n)), ("STREAM", n)),
                )
                for n in (0, *stream_counts(count, ceil_div(k, t["BK"]), target))
            )
            found += keep_likely([(cycles(way, count, k, f32, bool(by_tma), target), way) for way in ways])
    return found


def keep_likely(found: list[tuple[float, Tactic]]) -> list[tuple[float, Tactic]]:
    """The first, by which each program has a tile of its own, and the best of the others, by which programs share them,
    where it may be faster."""
    best = min(found[1:], key=lambda pair: pair[0], default=None)
    return [found[0]] if best is None or best[0] > LIKELY * found[0][0] else [found[0], best]


def stream_counts(count: int, steps: int, target: Target) -> list[int]:
    """Numbers of programs that may share the steps of so many tiles, each of two and more: parts of the tiles, all
    alike, or as many as there is room for."""
    most = min(2 * target.threads, count * steps // 2)
    numbers = (
        {*(parts * count for parts in PARTS), target.threads, 2 * target.threads}
        if count < TILES_PER_MULTIPROCESSOR * target.threads and steps > 1
        else ()
    )
    return sorted(n for n in numbers if n <= most and n != count and count * steps * n < 1 << 30)


def workspaces(tactic: Tactic) -> tuple[KernelWorkspace, KernelWorkspace]:
    """What the programs of a stream tell each other: parts of sums, and how many have arrived."""
    return KernelWorkspace((2 * tactic["STREAM"], tactic["BM"], tactic["BN"]), F32), KernelWorkspace(
        (tactic["STREAM"],), I32, zero=True
    )


def is_convolution(node: Node) -> bool:
    return node.op.name.startswith("conv")


class TensorCoreTemplate(Template):
    """The base of products on tensor cores: their element types; operands may have any offset."""

    dynamic = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        kinds = {v.type.dtype for v in node.inputs}
        if len(kinds) != 1 or not kinds <= {F32, F16, BF16}:
            return "not in one of f32, f16 and bf16"
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
            # few channels gain nothing by lying together
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
    """All pixels of all images × channels."""
    return Grid(tuple(shape), (), (0, *range(2, len(shape))), (1,))


def product(region: Region, layouts: Layouts | None = None) -> tuple[MatrixProduct, Grid, Size, Size]:
    """(the product, its output's grid, batch, rows)"""
    p = MatrixProduct(region, layouts)
    if p.node.op.name != "convolution":
        return p, p.grid, p.batch, p.m
    return p, pixel_grid(p.node.output.type.shape), 1, p.batch * p.m


def offsets_a(p: MatrixProduct, grid: Grid, layouts: Layouts) -> tuple[Text, Size]:
    """Where the rows of A begin, and its stride along what is summed."""
    if p.node.op.name == "convolution":
        return emit_offset("a_at", Grid(p.a.type.shape, (), grid.r, ()), layouts[p.a]), layouts[p.a][1]
    shape = (*grid.shape[:-1], p.k)
    strides = broadcast(p.a.type.shape, layouts[p.a], shape)
    return emit_offset("a_at", Grid(shape, grid.b, grid.r, ()), strides), strides[-1]


def offsets_b(p: MatrixProduct, grid: Grid, layouts: Layouts) -> tuple[Text, Size]:
    """The same of the columns of B."""
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
    """Whether B is one constant matrix, which may lie as the kernel likes it."""
    return is_constant(region, p.b) and p.b.type.size == p.n * p.k


def pack_rows(rows: np.ndarray, out: np.ndarray) -> None:
    """Rows along which sums run; what is past them stays as it is."""
    out[:, : rows.shape[1]] = rows


@gpu_template
class TritonSkinnyGemm(MatrixTemplate):
    """Few rows: the matrix is read once, and a constant one lies so that a few programs for each multiprocessor read
    long pieces of it."""

    name = "few"

    def sizes_rejection(self, region: Region) -> str | None:
        reason = super().sizes_rejection(region)
        return reason or (
            None if bounds(product(region)[3])[1] <= MAX_SKINNY_ROWS else f"more than {MAX_SKINNY_ROWS} rows"
        )

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        # the usual ones; `emit` makes them those that a run may have at most
        rows = power_of_two(m)
        for size, warps in ((8192, 8), (4096, 4), (2048, 4), (16384, 8)):
            # pieces of 64 bytes and more then, along the columns
            across = layouts[p.b][-1] == 1 and not is_packable(region, p)
            # one in a chain: it should make as few tiles as it can
            programs = 4 * target.threads if target.threads > 1 else 1
            bn = (
                32
                if across
                else power_of_two(ceil_div(p.n * batch, programs), 1, max(16, size // rows // power_of_two(p.k, 16)))
            )
            bk = power_of_two(p.k, 16, max(16, size // bn // rows))
            yield Tactic(
                self.name, target.isa, (("ROWS", rows), ("BN", bn), ("BK", bk), ("AHEAD", 3), ("WARPS", warps))
            )

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["BN"],)

    def is_exact(self, tactic: Tactic) -> bool:
        return True

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = product(region, layouts)
        (left, ak), (right, bk) = offsets_a(p, grid, layouts), offsets_b(p, grid, layouts)
        matrix: Value | Packed = p.b
        if is_packable(region, p):
            step, array = ceil_div(p.k, 8) * 8, region.body.constants[p.b]  # rows begin at multiples of 16 bytes
            rows = array.reshape(p.n, p.k) if p.node.op.name == "convolution" else array.reshape(p.k, p.n).T
            matrix = Packed((p.b,), f"turned{step}", (p.n, step), lambda out: pack_rows(rows, out), p.b.type.dtype)
            right, bk = emit_offset("b_at", Grid(matrix.shape, (), (), (0,)), (step, 1)), 1
        tactic = Tactic(
            tactic.template, tactic.isa, tuple({**dict(tactic.params), "ROWS": power_of_two(bounds(m)[1])}.items())
        )
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        return kernel(
            "few.py",
            region,
            tactic,
            dict(M=m, N=p.n, K=p.k, AK=ak, BK_STEP=bk),
            left + right + end.text,
            (p.a, matrix, *end.operands),
            batch * ceil_div(p.n, tactic["BN"]),
            layouts,
        )


@gpu_template
class TritonGemm(MatrixTemplate):
    name = "gemm"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        boxes = target.isa == "sm_90" and self.described(region, layouts) is not None
        yield from (
            t
            for _, t in sorted(
                estimate_tactics(m, p.n, p.k, batch, p.a.type.dtype is F32, boxes, target), key=lambda pair: pair[0]
            )
        )

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return *super().family(tactic), tactic["DESCRIBED"], int(tactic["STREAM"] > 0)

    def described(self, region: Region, layouts: Layouts) -> dict[str, Size] | None:
        """What descriptors of both operands say; None where there can be none: rows begin at multiples of 16 bytes,
        elements lie side by side in them."""
        p, grid, batch, _ = product(region, layouts)
        whole = 16 // p.a.type.dtype.size
        # TF32 wants columns of B where it needs them, which are not copied so
        if batch != 1 or p.a.type.dtype is F32:
            return None
        convolves = p.node.op.name == "convolution"
        shape = p.a.type.shape if convolves else (*grid.shape[:-1], p.k)
        a, b = broadcast(p.a.type.shape, layouts[p.a], shape), layouts[p.b]
        runs = Grid(shape, (), grid.r, ()).runs(grid.r, a)
        across, along = (b[0], b[1]) if convolves else (b[-1], b[-2])
        row_a, inner = runs[0][1] if runs else p.k, a[1] if convolves else a[-1]
        turned = along == 1
        row_b = across if turned else along
        steps = is_known(p.k, row_a, row_b) and row_a > 0 and row_b > 0 and row_a % whole == 0 and row_b % whole == 0
        return (
            dict(ROW_A=row_a, ROW_B=row_b, TURNED=turned)
            if len(runs) <= 1 and inner == 1 and 1 in (across, along) and steps
            else None
        )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, grid, batch, m = product(region, layouts)
        (left, ak), (right, bk) = offsets_a(p, grid, layouts), offsets_b(p, grid, layouts)
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        even = is_known(p.k) and p.k % tactic["BK"] == 0
        steps = self.described(region, layouts) if tactic["DESCRIBED"] else None
        # sizes that a run decides may lie otherwise than the usual ones, and leave no steps to share
        instead = {**({"DESCRIBED": 0} if steps is None else {}), **({} if bounds(p.k)[0] > 0 else {"STREAM": 0})}
        tactic = Tactic(tactic.template, tactic.isa, tuple({**dict(tactic.params), **instead}.items()))
        operands: tuple[Value | KernelWorkspace, ...] = (p.a, p.b, *end.operands)
        sizes = dict(
            BATCH=batch,
            M=m,
            N=p.n,
            K=p.k,
            AK=ak,
            BK_STEP=bk,
            EVEN=even,
            SUMS=len(operands),
            ARRIVED=len(operands) + 1,
            **tf32_rounding(region, tactic, p.a, p.b),
            **(steps or dict(ROW_A=0, ROW_B=0, TURNED=False)),
        )
        count = batch * ceil_div(m, tactic["BM"]) * ceil_div(p.n, tactic["BN"])
        programs = minimum(count, target.threads) if tactic["PERSISTENT"] else count
        if tactic["STREAM"]:
            operands += workspaces(tactic)
            programs = minimum(count * ceil_div(p.k, tactic["BK"]), tactic["STREAM"])
        return kernel("gemm.py", region, tactic, sizes, left + right + end.text, operands, programs, layouts)
