"""The candidate kernels of a region, the best guess first."""

from __future__ import annotations

from dataclasses import dataclass

from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Value, symbols
from pelton.codegen.template import Kernel, Tactic, Target, Template, templates
from pelton.plan.layout import Layout, Layouts
from pelton.plan.region import Region, cut


@dataclass(frozen=True)
class Candidate:
    template: Template
    tactic: Tactic
    kernel: Kernel


def rejection(region: Region, strict: bool = False, isa: str = "") -> str | None:
    """Returns None if some template takes the region, else all reasons. isa: matters only for GPUs."""
    reasons = []
    for t in templates(isa).values():
        if strict and t.inexact:
            continue
        reason = template_rejection(t, region)
        if reason is None:
            return None
        reasons.append(f"{t.name}: {reason}")
    return "; ".join(reasons)


def template_rejection(t: Template, region: Region) -> str | None:
    """Returns None if a template can compute a region, else the reason."""
    varying = [] if t.dynamic else [s.name for s in symbols(region.body)]
    if varying:
        return f"{t.known_sizes}, and {', '.join(varying)} {'is' if len(varying) == 1 else 'are'} dynamic"
    try:
        return t.rejection(region)
    except Undecided as e:
        return str(e)


def why_no_kernel(region: Region, isa: str = "") -> str:
    """Returns the reasons why no template takes a region's anchor node: of the templates for its op, or none."""
    assert region.anchor is not None
    named: dict[str, list[str]] = {}
    for t in templates(isa).values():
        if region.anchor.op.name in t.anchors and (why := template_rejection(t, region)) is not None:
            named.setdefault(why, []).append(t.name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in named.items())


def accepting_templates(region: Region, strict: bool = False, isa: str = "") -> tuple[Template, ...]:
    """Returns the templates that take the region, in order of preference; any may decide the layouts of operands."""
    return tuple(
        t for t in templates(isa).values() if not (strict and t.inexact) and template_rejection(t, region) is None
    )


def preferred_layout(graph: Graph, target: Target, strict: bool, value: Value) -> Layout | None:
    """Returns the layout of a value with a single reader, by the first template with a preference; or None."""
    users = graph.users.get(value, ())
    if len(users) != 1 or users[0].inputs.count(value) != 1:
        return None
    region = cut(graph, (users[0],), (users[0],))
    applicable = (
        t for t in templates(target.isa).values() if users[0].op.name in t.anchors and not (strict and t.inexact)
    )
    accepting = (t for t in applicable if template_rejection(t, region) is None)
    return next((layout for t in accepting if (layout := t.preferred_layout(region, value, target)) is not None), None)


def first_template(region: Region, strict: bool = False) -> Template:
    """Returns the first template that takes the region."""
    return accepting_templates(region, strict)[0]


def candidates(
    region: Region, layouts: Layouts, target: Target, strict: bool, max_tactics: int
) -> list[tuple[Template, Tactic]]:
    """Returns tactics of all templates that can run the region in these layouts, at most `max_tactics` per family.

    Tactics are chosen at the optimum of dynamic dimensions.
    """
    sizes, to = region.optimum_sizes(layouts), dict[Value, Value]()
    sized_region = region.sized(sizes, to) if sizes else region
    sized_layouts = layouts.sized(sizes, to) if sizes else layouts
    out = []
    for t in templates(target.isa).values():
        if (
            (strict and t.inexact)
            or template_rejection(t, region) is not None
            or not all(t.fits(region, v, layouts) for v in layouts)
        ):
            continue
        count: dict[tuple[int, ...], int] = {}
        for tactic in t.tactics(sized_region, sized_layouts, target):
            if strict and not t.is_exact(tactic):
                continue
            family = t.family(tactic)
            count[family] = count.get(family, 0) + 1
            if count[family] <= max_tactics:
                out.append((t, tactic))
    return out
