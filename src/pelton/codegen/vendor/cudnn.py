"""Convolutions by cuDNN."""

from __future__ import annotations

from typing import NamedTuple

from pelton.engine.convolution import ConvolutionDescriptor
from pelton.engine.work import ENDS, KINDS
from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32
from pelton.ops.words import add, convolution, relu
from pelton.codegen.c.templates.images import window_geometry
from pelton.codegen.grid import is_constant
from pelton.codegen.template import Packed, Tactic, Target, gpu_template
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from .template import LibraryTemplate
from pelton.codegen.triton.templates.conv import TritonConvolution, PackedFilters

# divisor of a group's channels: the library's kernels read them sixteen bytes at a time
DEEP = 8


class CudnnEpilogue(NamedTuple):
    """The library's addends to the sums, and its operation as it stores them."""

    bias: Value | None
    added: Value | None
    end: str


@gpu_template
class CuDnn(LibraryTemplate, TritonConvolution):
    """Regions with a kernel of the library: a convolution, an added tensor, then ReLU. 1×1 convolutions are left to
    cuBLASLt. Its f32 kernels for current GPUs read TF32 only."""

    name = ConvolutionDescriptor.symbol

    def sizes_rejection(self, region: Region) -> str | None:
        node = region.anchor
        x, w, _ = node.inputs
        if node.op is not convolution:
            return "a transposed convolution"
        if x.type.rank != 4:
            return "not two spatial axes"
        if not is_constant(region, w) or w.type.shape[1] % DEEP:
            return f"not constant filters of {DEEP}, {2 * DEEP}, … channels"
        s = window_geometry(region)
        if (
            is_known(s.kh, s.kw)
            and (s.kh, s.kw, s.sh, s.sw, node.attrs["group"]) == (1, 1, 1, 1, 1)
            and not any(node.attrs["pads"])
        ):
            return "a product"
        reason = epilogue(region)
        return reason if isinstance(reason, str) else super().sizes_rejection(region)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        if target.tf32 or region.anchor.inputs[0].type.dtype is not F32:
            yield from super().tactics(region, layouts, target)

    def describe(self, region: Region, layouts: Layouts) -> tuple[dict[str, int], tuple[Value | Packed, ...]] | None:
        fields, end = descriptor_fields(region, layouts), epilogue(region)
        if fields is None or isinstance(end, str):
            return None
        operands = (
            packed_filters(region, layouts).operand,
            *(v for v in (end.bias, end.added) if v is not None),
            region.output,
        )
        return fields, (region.anchor.inputs[0], *operands)


def packed_filters(region: Region, layouts: Layouts) -> PackedFilters:
    """Returns the filters as packed for our own kernels, so that one can replace the other."""
    return PackedFilters(
        region, layouts, Tactic(TritonConvolution.name, "", (("BK", DEEP), ("PICTURES", 0), ("FLAT", 0)))
    )


def epilogue(region: Region) -> CudnnEpilogue | str:
    """Returns the operations behind the sums, or the reason why a library cannot compute them. Kernels for more than
    sums need a bias: zeros if there is none."""
    if region.pieces or len(region.body.outputs) != 1:
        return "several outputs"
    x, _, bias = region.anchor.inputs
    at, added, end = region.anchor.output, None, ""
    for node in region.tail:
        others = [v for v in node.inputs if v is not at]
        if at not in node.inputs or end or node.op not in (add, relu):
            return f"{node.op.name} is none of the ends that it knows"
        if node.op is relu:
            end = "relu"
        elif added is None and len(others) == 1 and others[0].type.shape == at.type.shape:
            added = others[0]
        else:
            return "the added tensor is no feature map"
        at = node.output
    if at is not region.output:
        return "its output is not the last of its values"
    if {v.type.dtype for v in (added, at) if v is not None} != {x.type.dtype}:
        return "its operands are of several types"
    none = bias in region.body.constants and not region.body.constants[bias].any() and added is None and not end
    return CudnnEpilogue(None if none else bias, added, end)


def descriptor_fields(region: Region, layouts: Layouts) -> dict[str, int] | None:
    """Returns the descriptor's fields except version and choice; None if the library rejects an operand's layout."""
    node, s, end = region.anchor, window_geometry(region), epilogue(region)
    if isinstance(end, str) or not is_known(s.n, s.c, s.h, s.w, s.oh, s.ow):
        return None
    x, y, z = (None if v is None else layouts[v] for v in (node.inputs[0], region.output, end.added))
    if any(strides is not None and (strides[1] != 1 or not is_known(*strides)) for strides in (x, y, z)):
        return None
    if end.bias is not None and layouts[end.bias] != (1,):
        return None
    top, left, bottom, right = node.attrs["pads"]
    fields = dict(
        kind=KINDS.index(node.inputs[0].type.dtype.value),
        end=ENDS.index(end.end),
        bias=int(end.bias is not None),
        added=int(end.added is not None),
        n=s.n,
        c=s.c,
        h=s.h,
        w=s.w,
        out=s.oc,
        group=node.attrs["group"],
        kernel_h=s.kh,
        kernel_w=s.kw,
        stride_h=s.sh,
        stride_w=s.sw,
        dilation_h=s.dh,
        dilation_w=s.dw,
        top=top,
        left=left,
        bottom=bottom,
        right=right,
        w_step=packed_filters(region, layouts).step,
    )
    for of, strides in (("x", x), ("y", y), ("z", z or (0, 1, 0, 0))):
        assert strides is not None
        fields |= {f"{of}_n": strides[0], f"{of}_h": strides[2], f"{of}_w": strides[3]}
    numbers = {what: int(size) for what, size in fields.items()}
    return numbers if ConvolutionDescriptor(0, 0, **numbers).rejection() is None else None
