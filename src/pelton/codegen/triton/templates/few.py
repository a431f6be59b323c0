"""Products of few rows: sums at the speed of memory."""

from __future__ import annotations

from pelton.ir.dims import bounds
from pelton.ir.graph import Value
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, gpu_template
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.triton.emit import kernel, tail
from .integers import sums_bytes, sums_float8
from .pointwise import power_of_two
from .product import MatrixTemplate, is_packable, offsets_a, offsets_b, product, turned

MAX_SKINNY_ROWS = 4  # rows summed without tensor cores, which need at least 16


@gpu_template
class TritonSkinnyGemm(MatrixTemplate):
    """Few rows: the matrix is read once, and a constant one lies so that a few programs for each multiprocessor read
    long pieces of it."""

    name = "few"

    def sizes_rejection(self, region: Region) -> str | None:
        if sums_float8(region.anchor):
            return "FP8, which tensor cores multiply"
        reason = super().sizes_rejection(region)
        return reason or (
            None if bounds(product(region)[3])[1] <= MAX_SKINNY_ROWS else f"more than {MAX_SKINNY_ROWS} rows"
        )

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        p, _, batch, m = product(region, layouts)
        # the usual number; `emit` raises it to the most that a run may have
        rows = power_of_two(m)
        for size, warps in ((8192, 8), (4096, 4), (2048, 4), (16384, 8)):
            # then pieces of at least 64 bytes, along the columns
            across = layouts[p.b][-1] == 1 and not is_packable(region, p)
            # one in a chain, which should have as few tiles as possible
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
            matrix, right, bk = turned(region, p)
        tactic = Tactic(
            tactic.template, tactic.isa, tuple({**dict(tactic.params), "ROWS": power_of_two(bounds(m)[1])}.items())
        )
        end = tail(region, layouts, grid, (p.node.output,), first=2, add=p.bias)
        return kernel(
            "few.py",
            region,
            tactic,
            dict(M=m, N=p.n, K=p.k, AK=ak, BK_STEP=bk, INTEGERS=sums_bytes(p.node)),
            left + right + end.text,
            (p.a, matrix, *end.operands),
            batch * ceil_div(p.n, tactic["BN"]),
            layouts,
        )
