"""Merges chains of convolutions whose intermediate values exceed the caches into one region where that is faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pelton.ir.dims import optimum
from pelton.ir.graph import Graph, Node
from pelton.ir.text import key
from pelton.codegen.template import Target
from pelton.ops.words import convolution
from pelton.plan.fuse import Fused
from pelton.plan.layout import Layouts, channels_last, dense
from pelton.plan.placed import Task
from pelton.plan.region import Region, cut

from .candidates import candidates, rejection
from .search import Found, Timing, best_of
from .tasks import digest

# maximum time of one kernel relative to those of the parts
MARGIN = 0.97

Chain = tuple[Region, ...]


def join(fused: Fused, timing: Timing | None, target: Target, strict: bool, max_tactics: int) -> Fused:
    """Merges each chain into one region if that measures faster, and records the decisions in `chains`.

    Without timings, a chain is merged if its largest intermediate value exceeds the L2 caches of all threads together.
    """
    chains = {
        run: Task(whole, channels_last_layouts(whole))
        for run in find_chains(fused, target, strict)
        for whole in (join_regions(fused.graph, run),)
    }
    parts = {r: Task(r, channels_last_layouts(r)) for run in chains for r in run}
    digests = {t: digest(t) for t in (*parts.values(), *chains.values())}
    first = {d: t for t, d in reversed(digests.items())}
    kernels: Mapping[str, Found] = {
        d: candidates(t.region, t.layouts, target, strict, max_tactics) for d, t in first.items()
    }
    chains = {
        run: whole
        for run, whole in chains.items()
        if all(kernels[digests[t]] for t in (whole, *map(parts.__getitem__, run)))
    }
    if timing is not None:
        needed = {d: first[d] for run in chains for d in (digests[parts[r]] for r in run)}
        timing.tune(needed, {d: kernels[d] for d in needed}, alone=True)
    merged: dict[Chain, Region] = {}
    lines = []
    for run, whole in chains.items():
        tasks = [parts[r] for r in run]
        apart, together = _times(whole, tasks, digests, kernels, timing) if timing is not None else (None, None)
        between = max_bytes_between(run)
        better = (
            between > target.l2 * target.threads if apart is None or together is None else together < apart * MARGIN
        )
        if better:
            merged[run] = whole.region
        reason = (
            f"not timed, {between / 1e6:.1f} MB between"
            if apart is None or together is None
            else f"{together / 1e3:.1f} µs, apart {apart / 1e3:.1f} µs"
        )
        lines.append(
            f"{'+'.join(whole.region.layers) or whole.region.title()}: {'one kernel' if better else 'apart'} ({reason})"
        )
    return _merged(fused, merged, lines)


def rejoin(fused: Fused, recorded: Sequence[str], target: Target, strict: bool) -> Fused:
    """Merges the chains with these texts, each as often as it occurs in `recorded`, whatever their size."""
    left = Counter(recorded)

    def longest(runs: Sequence[Chain]) -> Chain | None:
        for run in reversed(runs):
            text = key(join_regions(fused.graph, run).body)
            if left[text]:
                left[text] -= 1
                return run
        return None

    merged = (
        {run: join_regions(fused.graph, run) for run in _disjoint(fused, target, strict, longest)} if recorded else {}
    )
    lines = [f"{'+'.join(r.layers) or r.title()}: one kernel (as recorded)" for r in merged.values()]
    return _merged(fused, merged, lines)


def _merged(fused: Fused, wholes: Mapping[Chain, Region], lines: Sequence[str]) -> Fused:
    """Returns the program with each of these chains replaced by its whole, at the position of the last part."""
    last, gone = {run[-1]: whole for run, whole in wholes.items()}, {r for run in wholes for r in run[:-1]}
    items = tuple(last.get(i, i) if isinstance(i, Region) else i for i in fused.items if i not in gone)
    return replace(fused, items=items, chains=tuple(lines), joined=tuple(wholes.values()))


def _times(
    whole: Task, parts: Sequence[Task], digests: Mapping[Task, str], kernels: Mapping[str, Found], timing: Timing
) -> tuple[int | None, int | None]:
    """Times a chain in ns by the best kernels of its parts, and by the best single kernel, in turns.

    Separate times of the parts would sum to less than their time together, and the machine may be slower now.
    """
    best = [best_of(kernels[digests[t]], timing.cache.get(digests[t]))[:2] for t in parts]
    apart = "+".join(tactic.name for _, tactic in best)
    programs = {
        apart: [template.emit(t.region, t.layouts, tactic, timing.target) for t, (template, tactic) in zip(parts, best)]
    }
    one = {
        tactic.name: [template.emit(whole.region, whole.layouts, tactic, timing.target)]
        for template, tactic in kernels[digests[whole]]
    }
    times = timing.race(digests[whole], (*parts, whole), {**programs, **one})
    return times.get(apart), min((times[name] for name in one if name in times), default=None)


def find_chains(fused: Fused, target: Target, strict: bool) -> list[Chain]:
    """Returns disjoint chains that a template takes as one, with an intermediate larger than one core's L2."""
    return _disjoint(fused, target, strict, lambda runs: runs[-1] if max_bytes_between(runs[-1]) > target.l2 else None)


def apart(fused: Fused, target: Target, strict: bool) -> Iterator[tuple[Chain, Region, str]]:
    """Yields the chains that a template takes as one region, but that stay apart without timing: each with that region
    and the reason."""
    timed = find_chains(fused, target, strict)
    taken = {r for run in timed for r in run}
    small = [run for run in _disjoint(fused, target, strict, lambda runs: runs[-1]) if taken.isdisjoint(run)]
    for runs, reason in (
        (timed, "timing decides between one kernel and several (`pelton build -vv`)"),
        (small, "not one kernel, as all between them fits the L2 cache of a core"),
    ):
        for run in runs:
            yield run, join_regions(fused.graph, run), f"a chain of {len(run)} convolutions; {reason}"


def _disjoint(
    fused: Fused, target: Target, strict: bool, pick: Callable[[Sequence[Chain]], Chain | None]
) -> list[Chain]:
    """Returns disjoint chains: for each region, `pick` chooses one that begins there (shortest first), or none."""
    regions = [i for i in fused.items if isinstance(i, Region)]
    home = {n: r for r in regions for n in r.body.nodes}
    out: list[Chain] = []
    taken: set[Region] = set()
    for r in regions:
        runs = list(_growing(fused.graph, r, home, taken, target, strict))
        run = pick(runs) if runs else None
        if run is not None:
            out.append(run)
            taken.update(run)
    return out


def _growing(
    graph: Graph, first: Region, home: Mapping[Node, Region], taken: set[Region], target: Target, strict: bool
) -> Iterator[Chain]:
    """Yields the chains that begin with a region, growing as long as a template takes them as one region."""
    run: Chain = (first,)
    while (
        run[-1] not in taken
        and (then := _only_reader(graph, run[-1], home)) is not None
        and then not in taken
        and rejection(join_regions(graph, (*run, then)), strict, target.isa) is None
    ):
        run = (*run, then)
        yield run


def _only_reader(graph: Graph, region: Region, home: Mapping) -> Region | None:
    """Returns the only reader of a convolution's only output."""
    if len(region.anchors) != 1 or region.anchors[0].op is not convolution or len(region.body.outputs) != 1:
        return None
    readers = {home.get(n) for n in graph.users.get(region.output, ())}
    return readers.pop() if len(readers) == 1 and region.output not in graph.outputs else None


def join_regions(graph: Graph, run: Sequence[Region]) -> Region:
    """Joins the regions of a chain."""
    return cut(graph, tuple(n for r in run for n in r.body.nodes), tuple(a for r in run for a in r.anchors))


def max_bytes_between(run: Chain) -> int:
    """Returns the bytes of the largest intermediate value, at the optimum sizes."""
    return max(optimum(r.output.type.bytes) for r in run[:-1])


def channels_last_layouts(region: Region) -> Layouts:
    """Returns the layouts that convolutions prefer: channels last, constants dense."""
    body = region.body
    last = {v: dense(v.type.shape, channels_last(v.type.rank)) for v in (*body.inputs, *body.outputs)}
    return Layouts({**last, **{v: dense(v.type.shape) for v in body.constants}})
