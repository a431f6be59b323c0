"""Regions that one kernel computes depth first: chains whose intermediate values are too large for the caches, made one region where that is faster."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pelton.ir.graph import Graph, symbols
from pelton.kernels.template import Target
from pelton.plan.fuse import Fused
from pelton.plan.layout import channels_last, dense
from pelton.plan.place import Task
from pelton.plan.region import Region, cut

from .candidates import candidates, claim
from .search import Found, Timing, best_of, digest

MARGIN = 0.97                                          # one kernel must take this much less time than those of the parts

Chain = tuple[Region, ...]


def join(fused: Fused, timing: Timing | None, target: Target, strict: bool, most: int) -> Fused:
    """The same program with chains as one region where the clock says so; where nothing is timed, where what lies between is too large for the L2 of all
    threads together. Says of each chain what was decided."""
    chains = {run: joined(fused.graph, run) for run in found(fused, target, strict)}
    tasks = {r: usual(r) for run, whole in chains.items() for r in (*run, whole)}
    digests = {r: digest(t) for r, t in tasks.items()}
    first = {digests[r]: t for r, t in reversed(tasks.items())}
    ways: Mapping[str, Found] = {d: candidates(t.region, t.layouts, target, strict, most) for d, t in first.items()}
    chains = {run: whole for run, whole in chains.items() if all(ways[digests[r]] for r in (*run, whole))}
    times: dict[str, int] = {}
    if timing is not None and chains:
        needed = {digests[r] for run, whole in chains.items() for r in (*run, whole)}
        timing.tune({d: t for d, t in first.items() if d in needed}, {d: w for d, w in ways.items() if d in needed}, alone=True)
        times = {d: min(known.values()) for d in needed if (known := best_of(ways[d], timing.cache.get(d))[2])}
    merged: dict[Region, Region] = {}                  # the last part → the whole
    gone: set[Region] = set()
    lines = []
    for run, whole in chains.items():
        large = most_between(run) > target.l2 * target.threads
        apart, together = sum(times.get(digests[r], 0) for r in run), times.get(digests[whole], 0)
        timed = together > 0 and all(digests[r] in times for r in run)
        better = together < apart * MARGIN if timed else large
        if better:
            merged[run[-1]] = whole
            gone.update(run[:-1])
        told = f"{together / 1e3:.1f} µs, apart {apart / 1e3:.1f} µs" if timed else f"not timed, {most_between(run) / 1e6:.1f} MB between"
        lines.append(f"{'+'.join(whole.layers) or whole.title()}: {'one kernel' if better else 'apart'} ({told})")
    items = tuple(merged.get(i, i) if isinstance(i, Region) else i for i in fused.items if i not in gone)
    return replace(fused, items=items, chains=tuple(lines))


def found(fused: Fused, target: Target, strict: bool) -> list[Chain]:
    """The chains that a template takes as one region, none of which share a part, with more between their parts than one core's L2 holds."""
    regions = [i for i in fused.items if isinstance(i, Region)]
    home = {n: r for r in regions for n in r.body.nodes}
    out: list[Chain] = []
    taken: set[Region] = set()
    for r in regions:
        run: Chain = (r,)
        while run[-1] not in taken and (then := _only_reader(fused.graph, run[-1], home)) is not None and then not in taken \
                and claim(joined(fused.graph, (*run, then)), strict) is None:
            run = (*run, then)
        if len(run) > 1 and most_between(run) > target.l2:
            out.append(run)
            taken.update(run)
    return out


def _only_reader(graph: Graph, region: Region, home: Mapping) -> Region | None:
    """The region that alone reads a convolution's only value; sizes that vary are none of a chain's."""
    if len(region.anchors) != 1 or region.anchors[0].op.name != "convolution" or len(region.body.outputs) != 1 or symbols(region.body):
        return None
    readers = {home.get(n) for n in graph.users.get(region.output, ())}
    return readers.pop() if len(readers) == 1 and region.output not in graph.outputs else None


def joined(graph: Graph, run: Sequence[Region]) -> Region:
    return cut(graph, tuple(n for r in run for n in r.body.nodes), tuple(a for r in run for a in r.anchors))


def most_between(run: Chain) -> int:
    """Bytes of the largest value that the parts hand on."""
    return max(r.output.type.bytes for r in run[:-1])


def usual(region: Region) -> Task:
    """A region as convolutions usually find it: channels last."""
    body = region.body
    last = {v: dense(v.type.shape, channels_last(v.type.rank)) for v in (*body.inputs, *body.outputs)}
    return Task(region, {**last, **{v: dense(v.type.shape) for v in body.constants}})
