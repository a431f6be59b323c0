"""Matrix products by cuBLASLt."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.engine.product import MatmulDescriptor
from pelton.engine.work import ENDS, KINDS
from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ops.words import add, convolution, gelu_tanh, mul, relu
from pelton.codegen.grid import Grid, scalar_constant
from pelton.codegen.product import MatrixProduct
from pelton.codegen.template import Packed, gpu_template
from pelton.plan.layout import Layouts, Strides, broadcast, dense
from pelton.plan.region import Region

from .template import LibraryTemplate
from pelton.codegen.triton.templates.product import MatrixTemplate, product


@dataclass(frozen=True)
class CublasLtEpilogue:
    """A library's epilogue of sums: end(scale · sum + added + bias)."""

    scale: float = 1.0
    bias: Value | None = None
    added: Value | None = None
    end: str = ""


@gpu_template
class CublasLt(LibraryTemplate, MatrixTemplate):
    """Regions that the library computes entirely: a scaled product, a bias along columns, another matrix, then ReLU or
    tanh GELU, as supported."""

    name = MatmulDescriptor.symbol

    def sizes_rejection(self, region: Region) -> str | None:
        reason = super().sizes_rejection(region) or epilogue(region)
        return reason if isinstance(reason, str) else None

    def describe(self, region: Region, layouts: Layouts) -> tuple[dict[str, int], tuple[Value | Packed, ...]] | None:
        fields, end, p = descriptor_fields(region, layouts), epilogue(region), product(region, layouts)[0]
        if fields is None or isinstance(end, str):
            return None
        return fields, (p.a, p.b, *(v for v in (end.bias, end.added) if v is not None), region.output)


def epilogue(region: Region) -> CublasLtEpilogue | str:
    """Returns the operations behind the sums, or the reason why a library cannot compute them."""
    if region.pieces or len(region.body.outputs) != 1:
        return "several outputs"
    p, grid, _, _ = product(region)
    end, at, scaled = CublasLtEpilogue(), region.anchor.output, True
    if p.bias is not None and (p.bias not in region.body.constants or region.body.constants[p.bias].any()):
        if p.bias.type.shape != (p.n,):
            return "its bias is one number"
        end, scaled = CublasLtEpilogue(bias=p.bias), False
    for node in region.tail:
        others = [v for v in node.inputs if v is not at]
        number = scalar_constant(region, others[0]) if len(others) == 1 else None
        if at not in node.inputs or end.end:
            return f"{node.op.name} is none of the ends that it knows"
        if node.op in (relu, gelu_tanh):
            end = CublasLtEpilogue(end.scale, end.bias, end.added, node.op.name)
        elif node.op is mul and scaled and number is not None:
            end = CublasLtEpilogue(end.scale * number)
        elif (
            node.op is add
            and len(others) == 1
            and number is None
            and (into := _operand_role(others[0], grid))
            and getattr(end, into) is None
        ):
            end, scaled = (
                (
                    CublasLtEpilogue(end.scale, others[0], end.added)
                    if into == "bias"
                    else CublasLtEpilogue(end.scale, end.bias, others[0])
                ),
                False,
            )
        else:
            return f"{node.op.name} is none of the ends that it knows"
        at = node.output
    if at is not region.output:
        return "its output is not the last of its values"
    kinds = {v.type.dtype for v in (end.bias, end.added, at) if v is not None}
    if len(kinds) != 1 or at.type.dtype is not p.a.type.dtype and at.type.dtype.value != "f32":
        return "the added tensor has another type than the output"
    return end


def _operand_role(v: Value, grid: Grid) -> str | None:
    """Returns an addend's role: a bias, with one number for each column, or one as large as the matrix; or None."""
    if v.type.shape == tuple(grid.shape):
        return "added"
    strides = broadcast(v.type.shape, dense(v.type.shape), grid.shape)
    along = not any(strides[a] for a in (*grid.b, *grid.r) if grid.shape[a] != 1)
    return "bias" if along and [d for d in v.type.shape if d != 1] == [grid.shape[a] for a in grid.c] else None


def descriptor_fields(region: Region, layouts: Layouts) -> dict[str, int] | None:
    """Returns the descriptor's fields except version and choice; None if the library rejects an operand's layout."""
    end, (p, grid, batch, m) = epilogue(region), product(region, layouts)
    if isinstance(end, str) or not is_known(batch, m, p.n, p.k):
        return None
    matrices: dict[str, Sequence[Size] | None] = {
        "a": _layout_a(p, grid, layouts),
        "b": _layout_b(p, grid, layouts),
        "d": _matrix_layout(grid, layouts[region.output]),
        "c": (p.n, 0, 0) if end.added is None else _matrix_layout(grid, layouts[end.added]),
    }
    kind, out = (KINDS.index(v.type.dtype.value) for v in (p.a, region.output))
    fields = dict(
        kind=kind,
        out=out,
        end=ENDS.index(end.end),
        bias=int(end.bias is not None),
        added=int(end.added is not None),
        scale=struct.unpack("I", struct.pack("f", end.scale))[0],
        batch=int(batch),
        m=int(m),
        n=p.n,
        k=p.k,
    )
    for of, place in matrices.items():
        if place is None or not is_known(*place):
            return None
        fields |= dict(zip((f"{of}_line", f"{of}_transposed", f"{of}_step"), map(int, place)))
    if fields.pop("c_transposed") or fields.pop("d_transposed"):
        return None
    if end.bias not in (None, p.bias) and grid.runs(
        grid.c, broadcast(end.bias.type.shape, layouts[end.bias], grid.shape)
    ) != [(p.n, 1)]:
        return None
    return fields if MatmulDescriptor(0, 0, **fields).rejection() is None else None


def _layout_a(p: MatrixProduct, grid: Grid, layouts: Layouts) -> Sequence[Size] | None:
    conv = p.node.op is convolution
    shape = p.a.type.shape if conv else (*grid.shape[:-1], p.k)
    strides, within = (
        broadcast(p.a.type.shape, layouts[p.a], shape),
        Grid(shape, grid.b, grid.r, (1,) if conv else (len(shape) - 1,)),
    )
    return _matrix_layout(within, strides)


def _layout_b(p: MatrixProduct, grid: Grid, layouts: Layouts) -> Sequence[Size] | None:
    if p.node.op is convolution:
        return _matrix_layout(Grid(p.b.type.shape, (), (1,), (0,)), layouts[p.b])
    shape = (*grid.shape[:-2], p.k, p.n)
    return _matrix_layout(
        Grid(shape, grid.b, (len(shape) - 2,), (len(shape) - 1,)), broadcast(p.b.type.shape, layouts[p.b], shape)
    )


def _matrix_layout(grid: Grid, strides: Strides) -> Sequence[Size] | None:
    """Returns the layout of matrices of rows r and columns c: (elements from line to line, True if lines are columns,
    elements from matrix to matrix); None if there is none."""
    runs = [grid.runs(axes, strides) for axes in (grid.b, grid.r, grid.c)]
    if any(len(run) > 1 for run in runs):
        return None
    (_, step), (rows, down), (columns, across) = (run[0] if run else (1, 0) for run in runs)
    for turned, lines, line, length, beside in ((0, rows, down, columns, across), (1, columns, across, rows, down)):
        if (length == 1 or beside == 1) and (lines == 1 or line >= length):
            return (length if lines == 1 else line), turned, step
    return None
