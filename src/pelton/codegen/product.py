"""A region read as a matrix product: its sizes and its grid."""

from __future__ import annotations

import math

from pelton.ir.graph import Value
from pelton.ops.words import convolution
from pelton.plan.layout import broadcast
from pelton.plan.region import Region

from .grid import Grid, grid_of
from .template import Layouts


class MatrixProduct:
    """A region read as C[b, m, n] = A[b, m, k] · B[b, k, n]."""

    def __init__(self, region: Region, layouts: Layouts | None = None):
        node = region.anchor
        self.region, self.node = region, node
        self.a, self.b = node.inputs[:2]
        out = node.output.type.shape
        self.bias: Value | None = None
        if node.op is convolution:
            self.bias = node.inputs[2]
            self.grid = grid_of(out, "pixels")
            self.batch, self.m, self.n, self.k = out[0], math.prod(out[2:]), out[1], self.a.type.shape[1]
        else:
            self.grid = grid_of(out, "rows")
            self.batch, self.m, self.n, self.k = math.prod(out[:-2]), out[-2], out[-1], self.a.type.shape[-1]
            joined = Grid(out, (), tuple(range(len(out) - 1)), (len(out) - 1,))
            if (
                self.batch != 1
                and math.prod(self.b.type.shape[:-2]) == 1
                and (layouts is None or self._rows_are_one_run(joined, layouts))
            ):
                self.grid, self.batch, self.m = joined, 1, self.batch * self.m

    def _rows_are_one_run(self, joined: Grid, layouts: Layouts) -> bool:
        """True if all rows of A, across batches, are one stride apart."""
        strides = broadcast(self.a.type.shape, layouts[self.a], (*joined.shape[:-1], self.k))
        return len(joined.runs(joined.r, strides)) <= 1
