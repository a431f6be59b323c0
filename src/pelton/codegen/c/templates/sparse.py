"""Products of f32 rows by a constant matrix of mostly zeros, which the kernel skips and the engine does not keep."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pelton.ir import lineage
from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I32, U16
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro, tail
from pelton.codegen.c.halves import known
from pelton.codegen.grid import ceil_div, is_constant
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

from .gemm import Gemm, rows_of_a

MAX_NONZERO = 0.55  # share of weights: half of them zero, 1.3 times as fast; a third, 1.1 times
FEWEST = 1 << 10  # weights; the times of fewer hardly differ
FEW = 4  # rows that share a narrow vector
MAX_COLUMNS = 512  # of a block: more make longer sums
# Columns of a block by the rows of a tile, where these are few: 4096 × 4096 by one row, 20 % not zero: 1.64 ms by all
# columns at once, 0.97 by 2048 (Zen 4, one thread).
NARROW = {1: (2048, 1024), FEW: (1024, 512)}
MAX_PLACE = 1 << 16


@template
class SparseGemm(Gemm):
    """Finite rows give the sums of a dense product. Where a weight is 0, an infinity or NaN of a row does not count:
    no tactic of strict builds."""

    name = "sparse"
    inexact = True

    def node_rejection(self, region: Region) -> str | None:
        if reason := super().node_rejection(region):
            return reason
        b = region.anchor.inputs[1]
        if not is_constant(region, b):
            return "the weights are not constant"
        array = region.body.constants[b]
        if lineage.is_weight(array):
            return "the weights can be refitted: their zeros may differ"
        if region.anchor.op.name == "matmul" and array.size != array.shape[-2] * array.shape[-1]:
            return "a matrix for each batch"
        if array.size < FEWEST:
            return f"fewer than {FEWEST} weights"
        if (share := _nonzero(array)) > MAX_NONZERO:
            return f"{share:.0%} of the weights are not zero, more than {MAX_NONZERO:.0%}"
        return None

    def sparsity(self, tactic: Tactic) -> str:
        return f"about {100 - tactic['NONZERO']} % of the weights skipped, which are zero"

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return (tactic["ROWS"],)

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterator[Tactic]:
        p = MatrixProduct(region, layouts)
        share = max(5, round(20 * _nonzero(region.body.constants[p.b])) * 5)  # part of the key of times
        lanes, seen = target.lanes, set()
        for rows in _tiles(p, target):
            in_l1 = max(target.l1 * 3 // 4 // (4 * rows) // lanes, 1) * lanes
            for kc in NARROW.get(rows, (in_l1, 2 * in_l1, MAX_COLUMNS)):
                kc = min(kc, ceil_div(p.k, lanes) * lanes, MAX_PLACE // rows)
                tiles = ceil_div(p.m, rows) * p.batch
                for tasks in (6 * target.threads, target.threads):
                    splits = min(ceil_div(p.n, lanes), ceil_div(tasks, tiles))
                    nb = ceil_div(ceil_div(p.n, splits), lanes) * lanes
                    choice = (rows, kc, nb, share)
                    if choice not in seen:
                        seen.add(choice)
                        yield Tactic(self.name, target.isa, tuple(zip(("ROWS", "KC", "NB", "NONZERO"), choice)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        p, rows, kc = MatrixProduct(region, layouts), tactic["ROWS"], tactic["KC"]
        step, start = rows_of_a(p, layouts)
        array = region.body.constants[p.b]
        by_outputs = array.reshape(p.n, p.k) if p.node.op.name == "convolution" else array.reshape(p.k, p.n).T
        pad = 4 if rows <= target.lanes else 2
        starts_of_lists = known(array, f"starts {p.n} {kc} {pad}", lambda _: _starts(by_outputs, kc, pad))
        lists = SparseRows(by_outputs, kc, starts_of_lists)
        step_of_place = rows // 2 if rows > 1 else 1
        form, sources = f"sparse{kc}_{pad}", (p.b,)
        weights = Packed(sources, form, (lists.size,), lists.fill_weights)
        places = Packed(
            sources,
            f"{form}_places{step_of_place}",
            (lists.size,),
            lambda out: lists.fill_places(out, step_of_place),
            U16,
            has_indices=True,
        )
        starts = Packed(sources, f"{form}_starts", lists.starts.shape, lists.fill_starts, I32, has_indices=True)
        end = tail(region, layouts, p.grid, (p.node.output,), first=4, bias=p.bias, unit=target.lanes)
        block = constants(BATCH=p.batch, M=p.m, N=p.n, K=p.k, AR=step) + macro("A_AT(b)", start) + end.text
        tiles = p.batch * ceil_div(p.m, rows) * ceil_div(p.n, tactic["NB"])
        columns = ceil_div(min(p.k, kc), target.lanes) * target.lanes
        scratch = 4 * rows * (columns + (tactic["NB"] if p.k > kc else target.lanes))
        operands: tuple[Value | Packed, ...] = (p.a, weights, places, starts, *end.operands)
        return kernel("sparse.c", region, tactic, block, operands, tiles, scratch=scratch)


class SparseRows:
    """The nonzero weights of [output, column] as sparse.c reads them: by blocks of `depth` columns, then by output.
    starts: where each of these lists begins, and the end of the last one."""

    def __init__(self, array: np.ndarray, depth: int, starts: np.ndarray):
        self.array, self.depth, self.starts = array, depth, starts
        self.size = max(int(starts[-1]), 1)

    def _entries(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields, block by block, of each nonzero weight the index in the lists, the value, the column in the block."""
        outputs = len(self.array)
        for i in range(ceil_div(self.array.shape[1], self.depth)):
            part = self.array[:, i * self.depth : (i + 1) * self.depth]
            rows, columns = np.nonzero(part)
            before = np.searchsorted(rows, np.arange(outputs))  # entries of earlier outputs
            at = self.starts[i * outputs + rows] + np.arange(len(rows)) - before[rows]
            yield at, part[rows, columns], columns

    def fill_weights(self, out: np.ndarray) -> None:
        for at, values, _ in self._entries():
            out[at] = values

    def fill_places(self, out: np.ndarray, step: int) -> None:
        for at, _, columns in self._entries():
            out[at] = columns * step

    def fill_starts(self, out: np.ndarray) -> None:
        out[:] = self.starts


def _starts(array: np.ndarray, depth: int, pad: int) -> np.ndarray:
    """Returns where the lists of SparseRows begin if each is filled up to a multiple of `pad`."""
    counts = np.add.reduceat(array != 0, np.arange(0, array.shape[1], depth), axis=1, dtype=np.int32).T.reshape(-1)
    return np.concatenate([[0], np.cumsum((counts + pad - 1) // pad * pad)]).astype(np.int32)


def _tiles(p: MatrixProduct, target: Target) -> tuple[int, ...]:
    """Returns the numbers of rows of a tile to try, the best guess first."""
    if is_known(p.m) and p.m <= FEW:
        return (1,) if p.m == 1 else (FEW,)
    vectors = {16: (4, 8, 2), 8: (8, 4, 12)}.get(target.lanes, (8, 12, 4))
    needed = ceil_div(p.m, target.lanes) if is_known(p.m) else max(vectors)
    return tuple(dict.fromkeys(min(v, needed) * target.lanes for v in vectors))


def _nonzero(array: np.ndarray) -> float:
    """Returns the share of weights that are not zero."""
    return known(array, "nonzero", lambda a: np.count_nonzero(a) / max(a.size, 1))
