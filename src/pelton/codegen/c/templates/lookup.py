"""Pointwise functions of one tensor of bytes, looked up in a table that is computed when the engine is built."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from pelton.ir.builder import Builder
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Value
from pelton.ir.types import I8, U8, TensorType
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants, kernel, macro
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, template

from .pointwise import Pointwise, flatten

BYTES = (U8, I8)


@template
class Lookup(Pointwise):
    """Tables of functions from byte to byte, such as dequantize, GELU, quantize between two INT8 layers; about a cycle
    per byte."""

    name = "lookup"

    def rejection(self, region: Region) -> str | None:
        if (reason := super().rejection(region)) is not None:
            return reason
        inputs, outputs = region.body.inputs, region.body.outputs
        if len(inputs) != 1 or len(outputs) != 1 or any(v.type.dtype not in BYTES for v in (*inputs, *outputs)):
            return "not one tensor of bytes to one of bytes"
        if inputs[0].type.shape != outputs[0].type.shape or not region.body.constants:
            return "not a function of one byte and of constants"
        if any(a.size != 1 for a in region.body.constants.values()):
            return "the function differs from element to element"
        return None

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        grid, flat = flatten(region, layouts)
        (x,), (y,) = region.body.inputs, region.body.outputs
        rows, cols = math.prod(grid.shape[:-1]), grid.shape[-1]
        block = constants(ROWS=rows, COLS=cols)
        for name, v in (("X_AT(r, c)", x), ("Y_AT(r, c)", y)):
            block += macro(name, grid.address(flat[v], r="(r)", c="(c)"))
        form = f"results of {hashlib.sha256(region.key.encode()).hexdigest()[:16]}"
        results = Packed(
            tuple(region.body.constants), form, (256,), lambda out: np.copyto(out, all_results(region)), U8
        )
        tiles = ceil_div(rows, tactic["RB"]) * ceil_div(cols, tactic["CB"])
        return kernel("lookup.c", region, tactic, block, (x, results, y), tiles)


def all_results(region: Region) -> np.ndarray:
    """Returns a region's result for each byte: u8[256], the bits of the result by the bits of the input."""
    b = Builder()
    (x,), (y,) = region.body.inputs, region.body.outputs
    known: dict[Value, Value] = {x: b.input(TensorType(x.type.dtype, (256,)), "x")}
    known |= {v: b.constant(a.reshape(())) for v, a in region.body.constants.items()}
    for node in region.body.nodes:
        made = b.emit(node.op, [known[v] for v in node.inputs], node.attrs)
        known.update(zip(node.outputs, made))
    fed = np.arange(256, dtype=np.uint8).view(x.type.dtype.numpy)
    graph = b.graph([known[y]])
    return evaluate(graph, {graph.inputs[0].name: fed})[known[y].name].view(np.uint8)
