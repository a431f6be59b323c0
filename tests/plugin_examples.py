"""Plugins shared by tests, and networks of one plugin."""

import numpy as np

import pelton
from pelton.plugins import CKernel

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def single(plugin, *types, **attrs):
    """A network of one layer, with inputs x0, x1, …"""
    net = pelton.Network()
    inputs = [net.input(f"x{i}", t) for i, t in enumerate(types)]
    found = getattr(net, plugin)(*inputs, **attrs)
    for i, y in enumerate(found if isinstance(found, tuple) else (found,)):
        net.output(y, f"y{i}")
    return net


ROW_SUMS = """// Sums of the rows of a matrix, scaled, plus an element of a table.
#include "vec.h"
// <region>
// </region>
// <tactic>
// </tactic>
void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const operands o = open(a);
    for (idx t = begin; t < end; t++)
        for (idx r = t * ROWS; r < X_0 && r < (t + 1) * ROWS; r++) {
            float sum = 0;
            for (idx k = 0; k < X_1; k++) sum += o.x[r * X_S0 + k * X_S1];
            o.y0[r * Y0_S0] = sum * SCALE + o.table[1];
        }
}
"""


def row_sums(source=ROW_SUMS, kernels=True, **how):
    class RowSums(pelton.Plugin):
        onnx = ("com.example", "RowSums")
        scale: float = 1.0

        def configure(self, x):
            return [np.float32([1, self.scale, 3])]

        def infer(self, x, table):
            if x.rank != 2:
                raise ValueError("needs a matrix")
            return x.with_shape(x.shape[:1])

        def reference(self, x, table):
            return x.sum(1) * self.scale + table[1]

    if kernels:
        how = dict(dynamic=True, tactics=({"ROWS": 3}, {"ROWS": 1})) | how
        tiles = how.pop("tiles", lambda inputs, outputs, ROWS: -(-inputs[0].shape[0] // ROWS))
        RowSums.kernels = (CKernel(source, tiles, **how),)
    return pelton.register(RowSums)
