"""Chains of 1×1, depthwise and 1×1 convolutions, depth first: in strips of rows whose intermediates stay in caches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.plan.layout import Layouts, Order, channels_last
from pelton.plan.region import Region, cut

from .depthwise import pack_taps
from pelton.codegen.c.emit import constants, kernel, tail
from pelton.codegen.code import Text
from .gemm import is_product, pack_panels
from .images import WindowGeometry, window_geometry
from pelton.codegen.grid import all_f32, is_constant, ceil_div, fits_grid, grid_of, register_tiles, tail_rejection
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, template


@dataclass(frozen=True)
class ConvChain:
    """A region as one region per anchor, with the pointwise nodes behind it; `expand` or `project` may be absent."""

    expand: Region | None
    filter: Region
    project: Region | None

    @property
    def parts(self) -> tuple[Region, ...]:
        return tuple(p for p in (self.expand, self.filter, self.project) if p is not None)


def parts(region: Region) -> tuple[Region, ...]:
    """Returns a region for each anchor, with the nodes that need it and no later one."""
    after: dict[Value, int] = {}
    nodes: list[list[Node]] = [[] for _ in region.anchors]
    for n in region.body.nodes:
        if n in region.anchors:
            k = region.anchors.index(n)
        else:
            k = max((after[v] for v in n.inputs if v in after), default=0)
        nodes[k].append(n)
        after.update(dict.fromkeys(n.outputs, k))
    return tuple(cut(region.body, tuple(own), (a,)) for own, a in zip(nodes, region.anchors))


def is_depthwise(node: Node) -> bool:
    return node.attrs["group"] == node.inputs[1].type.shape[0] == node.inputs[0].type.shape[1]


def chain(region: Region) -> ConvChain:
    """Returns the parts by their role."""
    convs = parts(region)
    k = 0 if is_depthwise(convs[0].anchors[0]) and not is_product(convs[0].anchors[0]) else 1
    return ConvChain(convs[0] if k else None, convs[k], convs[k + 1] if len(convs) > k + 1 else None)


def _kind(node: Node) -> str:
    if is_product(node):
        return "product"
    return "depthwise" if is_depthwise(node) else ""


@template
class Strips(Template):
    """A chain of convolutions as one kernel; timing decides which chains are.

    Against separate kernels, which write intermediates to L3 and read them back (MobileNetV2, 2 threads, interleaved):
    expand, filter and project 1.1 to 1.5 times as fast down to images of 28 × 28, 0.9 to 1.0 times at 14 × 14 and
    7 × 7, where all of it fits L2; filter and project at 112 × 112 × 32 1.3 times; expand and filter with SiLU
    (EfficientNet) 0.8 to 1.05 times: rows that two strips need are computed twice, and there arithmetic takes the time.
    """

    name = "strips"
    dynamic = True

    def rejection(self, region: Region) -> str | None:
        if len(region.anchors) not in (2, 3) or any(a.op.name != "convolution" for a in region.anchors):
            return "no chain of two or three convolutions"
        kinds = [_kind(a) for a in region.anchors]
        if kinds not in (["product", "depthwise", "product"], ["product", "depthwise"], ["depthwise", "product"]):
            return "not 1×1, depthwise and 1×1 convolutions, or two neighbours of these"
        for a in region.anchors:
            if a.inputs[0].type.rank != 4 or not all_f32(*a.inputs, a.output):
                return "not f32 with two spatial axes"
            if not all(is_constant(region, v) for v in a.inputs[1:]):
                return "the filters are not constant"
            if 0 in a.inputs[0].type.shape or 0 in a.output.type.shape:
                return "nothing to compute"
        convs = parts(region)
        for part, then in zip(convs, convs[1:]):
            between = then.anchors[0].inputs[0]
            if part.body.outputs != (between,) or region.body.uses(between) != 1 or not all_f32(between):
                return "an intermediate has several readers, or is not the only one"
        s = window_geometry(chain(region).filter)
        if (s.dh, s.dw) != (1, 1) or s.sh > s.kh or s.sw > s.kw or s.pt >= s.kh or s.pl >= s.kw:
            return "dilated filters, strides larger than the filter, or windows entirely in the padding"
        return next(
            (reason for part in convs if (reason := tail_rejection(part, part.anchors[0].output.type.shape, 1))), None
        )

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        return channels_last(value.type.rank)

    copy_order = output_order

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        shape, strides = value.type.shape, layouts[value]
        if value is region.anchors[0].inputs[0] and shape[1] != 1 and strides[1] != 1:
            return False
        return all(
            fits_grid(part, grid_of(part.anchors[0].output.type.shape, "pixels"), value, strides)
            for part in parts(region)
        )

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        it = chain(region)
        s, lanes = window_geometry(it.filter), target.lanes
        out = region.anchors[-1].output.type.shape[1]
        tiles = ((4, 3), (6, 2)) if target.registers < 32 else ((8, 3), (6, 2))
        mr, nv = min(tiles, key=lambda t: ceil_div(s.w, t[0]) * t[0] * ceil_div(s.c, t[1] * lanes) * t[1])
        pm, pv = min(tiles, key=lambda t: ceil_div(out, t[1] * lanes) * t[1]) if it.project else tiles[0]
        if target.level.by_lane:  # blocks of 7, 8 or 14 pixels instead of 6 take at least as many instructions
            (mr, nv), (pm, pv) = register_tiles(s.c, s.w, target)[0], register_tiles(out, 2 * s.ow, target)[0]
        seen = set()
        # rows of the first product at a time, strips per thread
        for rows, strips in ((2, 2), (2, 1), (1, 2)):
            rb = ceil_div(s.oh, ceil_div(strips * target.threads, s.n))
            choice = (mr, nv, min(6, s.ow), pm, pv, rb, min(rb, max(1, rows // s.sh)))
            tactic = Tactic(self.name, target.isa, tuple(zip(("MR", "NV", "TW", "PM", "PV", "RB", "G"), choice)))
            if choice not in seen and scratch(s, tactic, lanes, it.project is not None) <= target.l2 * 3 // 4:
                seen.add(choice)
                yield tactic

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        it = chain(region)
        s, lanes = window_geometry(it.filter), target.lanes
        x, taps = region.anchors[0].inputs[0], it.filter.anchors[0].inputs[1]
        operands: list[Value | Packed] = [x]
        if it.expand:
            operands.append(panels(region, it.expand.anchors[0], tactic["NV"] * lanes))
        operands.append(pack_taps(taps, region.body.constants[taps], lanes))
        if it.project:
            operands.append(panels(region, it.project.anchors[0], tactic["PV"] * lanes))
        text: Text = ""
        for part, name in (
            (it.expand, "expanded"),
            (it.filter if it.project else None, "filtered"),
            (it.project or it.filter, ""),
        ):
            if part is None:
                text += (
                    f"typedef struct {{}} {name}_tail;\nAI {name}_tail {name}_tail_open(const args *a) {{ return"
                    f" ({name}_tail){{}}; }}\nAI vf32 {name}(const {name}_tail *t, vf32 x, idx b, idx r, idx c, int n)"
                    " { return x; }\n"
                )
                continue
            made = part.anchors[0].output
            own = tail(
                part,
                layouts,
                grid_of(made.type.shape, "pixels"),
                (made,),
                first=len(operands),
                bias=part.anchors[0].inputs[2],
                unit=lanes,
                inner=name,
            )
            text, operands = text + own.text, [*operands, *own.operands]
        sizes = s.sizes(layouts[x])
        block = (
            constants(
                EXPAND=it.expand is not None,
                PROJECT=it.project is not None,
                C=s.c,
                IN=x.type.shape[1],
                OUT=region.anchors[-1].output.type.shape[1],
                **{k: v for k, v in sizes.items() if k not in ("DH", "DW")},
            )
            + text
        )
        # of all heights, which are compiled once
        common = replace(tactic, params=tuple(p for p in tactic.params if p[0] != "RB"))
        return kernel(
            "strips.c",
            region,
            common,
            block,
            operands,
            s.n * ceil_div(s.oh, tactic["RB"]),
            scratch=scratch(s, tactic, lanes, it.project is not None),
            arguments={"RB": tactic["RB"]},
        )


def panels(region: Region, node: Node, nr: int) -> Packed:
    """Packs the filters of a 1×1 convolution as for gemm."""
    w = node.inputs[1]
    array = region.body.constants[w]
    oc, c = array.shape[:2]
    return Packed((w,), f"panels{nr}t", (ceil_div(oc, nr), c, nr), lambda out: pack_panels(array.reshape(oc, c).T, out))


def scratch(s: WindowGeometry, tactic: Tactic, lanes: int, project: bool) -> Size:
    """Returns the bytes of scratch memory per worker: ring buffers of rows, and the rows for the last product."""
    nr, g = tactic["NV"] * lanes, tactic["G"]
    ring = ((g - 1) * s.sh + s.kh) * ((s.ow - 1) * s.sw + s.kw) * nr
    return 4 * (ceil_div(s.c, nr) * ring + (g * s.ow * ceil_div(s.c, lanes) * lanes if project else 0))
