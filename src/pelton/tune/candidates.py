"""The kernels that could run a region, the best guess first."""

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
    """None where some template takes the region, else the refusals. isa: what code is made for; unless it is a GPU's,
    it makes no difference."""
    refusals = []
    for t in templates(isa).values():
        if strict and t.inexact:
            continue
        reason = template_rejection(t, region)
        if reason is None:
            return None
        refusals.append(f"{t.name}: {reason}")
    return "; ".join(refusals)


def template_rejection(t: Template, region: Region) -> str | None:
    """None where a template can compute a region, else the reason."""
    if not t.dynamic and symbols(region.body):
        return "needs sizes that do not vary"
    try:
        return t.rejection(region)
    except Undecided as e:
        return str(e)


def accepting_templates(region: Region, strict: bool = False, isa: str = "") -> tuple[Template, ...]:
    """The templates that take the region, in order of preference: the demands of any may count where its operands
    lie."""
    return tuple(
        t for t in templates(isa).values() if not (strict and t.inexact) and template_rejection(t, region) is None
    )


def preferred_layout(graph: Graph, target: Target, strict: bool, value: Value) -> Layout | None:
    """The layout that a value had better be written in, by the first template that prefers one for the only node that
    reads it; None where none does."""
    users = graph.users.get(value, ())
    if len(users) != 1 or users[0].inputs.count(value) != 1:
        return None
    region = cut(graph, (users[0],), (users[0],))
    asked = (t for t in templates(target.isa).values() if users[0].op.name in t.anchors and not (strict and t.inexact))
    able = (t for t in asked if template_rejection(t, region) is None)
    return next((layout for t in able if (layout := t.preferred_layout(region, value, target)) is not None), None)


def first_template(region: Region, strict: bool = False) -> Template:
    """The first of them."""
    return accepting_templates(region, strict)[0]


def candidates(
    region: Region, layouts: Layouts, target: Target, strict: bool, max_tactics: int
) -> list[tuple[Template, Tactic]]:
    """Tactics of all templates that can run the region in these layouts, at most `max_tactics` of each family.

    Tactics are chosen at the optimum of dynamic dimensions.
    """
    sizes, to = region.optimum_sizes(layouts), dict[Value, Value]()
    usual = region.sized(sizes, to) if sizes else region
    lies = layouts.sized(sizes, to) if sizes else layouts
    out = []
    for t in templates(target.isa).values():
        if (
            (strict and t.inexact)
            or template_rejection(t, region) is not None
            or not all(t.fits(region, v, layouts) for v in layouts)
        ):
            continue
        count: dict[tuple[int, ...], int] = {}
        for tactic in t.tactics(usual, lies, target):
            if strict and not t.is_exact(tactic):
                continue
            form = t.family(tactic)
            count[form] = count.get(form, 0) + 1
            if count[form] <= max_tactics:
                out.append((t, tactic))
    return out
