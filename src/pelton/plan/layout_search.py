"""Layouts chosen together: any template that takes a region may be the one whose demands count, and the cheapest way
through the whole graph is taken.

A state is where everything lies that is still to be read. From each state a template leads, by the copies that it asks
for and the kernel that it brings about, to a state behind the region; ways that meet in one state go on as one. Where
templates agree there is one way: nothing is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pelton.ir.graph import Node, Value

from .fuse import Fused
from .place import Placer, PreferredLayout
from .placed import LayoutConstraints, Task
from .region import Region

MAX_STATES = 16  # states side by side; what the first templates lead to comes first
NEVER = float("inf")


@dataclass(frozen=True, eq=False)
class Transition:
    """One way past an item: from a state before it to a state behind it (both by number), as a template demands; the
    tasks that come of it."""

    before: int
    after: int
    by: LayoutConstraints | None
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Decision:
    """A region whose templates demand different layouts: the one that counts, and how much more the whole graph would
    cost by each of the others."""

    region: Region
    by: str
    instead: Mapping[str, float]


@dataclass(frozen=True)
class LayoutSearch:
    """For every item (None stands for the graph's outputs) the ways past it. The first from a state are what the first
    templates demand."""

    items: tuple[Region | Node | None, ...]
    transitions: tuple[tuple[Transition, ...], ...]

    def undecided_tasks(self) -> list[Task]:
        """The tasks whose cost decides: all where there is more than one way."""
        return list(dict.fromkeys(t for ways in self.transitions if len(ways) > 1 for w in ways for t in w.tasks))

    def cheapest(
        self, cost: Callable[[Task], float]
    ) -> tuple[Mapping[Region, LayoutConstraints], tuple[Decision, ...]]:
        """The template of every region on the cheapest way (NEVER: it cannot be gone), and where there was a choice."""
        ahead: dict[int, float] = {w.after: 0.0 for w in self.transitions[-1]}
        totals: list[list[float]] = []
        for ways in reversed(self.transitions):
            totals.append(
                [(sum(map(cost, w.tasks)) if len(ways) > 1 else 0.0) + ahead.get(w.after, NEVER) for w in ways]
            )
            ahead = {w.before: min(t for v, t in zip(ways, totals[-1]) if v.before == w.before) for w in ways}
        state, chosen, decisions = 0, dict[Region, LayoutConstraints](), []
        for item, ways, costs in zip(self.items, self.transitions, reversed(totals)):
            here = [(c, w) for c, w in zip(costs, ways) if w.before == state]
            least, best = min(here, key=lambda pair: pair[0])  # the first of equals
            if isinstance(item, Region) and best.by is not None:
                chosen[item] = best.by
                instead = {w.by.name: c - least for c, w in here if w is not best and w.by is not None and c < NEVER}
                if instead:
                    decisions.append(Decision(item, best.by.name, instead))
            state = best.after
        return chosen, tuple(decisions)


def explore(
    fused: Fused, takers: Callable[[Region], Sequence[LayoutConstraints]], preferred: PreferredLayout = lambda v: None
) -> LayoutSearch:
    """All ways through a graph. `takers(region)`: the templates that take it, of which the first is preferred.
    `preferred`: see `place.place`."""
    items = (*fused.items, None)
    until = _until(fused)
    states, past = [Placer(fused.graph, preferred)], []
    for k, item in enumerate(items):
        made = [
            (before, by, new)
            for before, placer in enumerate(states)
            for by, new in _past(item, placer, takers(item) if isinstance(item, Region) else (None,))
        ]
        number: dict[object, int] = {}
        after = [number.setdefault(_state(new, until, k) if len(made) > 1 else None, len(number)) for _, _, new in made]
        past.append(
            tuple(
                Transition(before, a, by, tuple(new.result.tasks))
                for (before, by, new), a in zip(made, after)
                if a < MAX_STATES
            )
        )
        states = [made[after.index(a)][2] for a in range(min(len(number), MAX_STATES))]
    return LayoutSearch(items, tuple(past))


def _past(
    item: Region | Node | None, placer: Placer, takers: Sequence[LayoutConstraints | None]
) -> list[tuple[LayoutConstraints | None, Placer]]:
    """An item placed by each of its templates, as far as they demand different things; the placers hold the tasks of
    this item alone."""
    found: dict[object, tuple[LayoutConstraints | None, Placer]] = {}
    placer.result.tasks.clear()
    for by in takers:
        new = placer.fork() if len(takers) > 1 else placer
        if isinstance(item, Region) and by is not None:
            new.place_region(item, by)
        elif isinstance(item, Node):
            new.place_node(item)
        else:
            new.place_outputs()
        found.setdefault(tuple(tuple(t.layouts.values()) for t in new.result.tasks), (by, new))
    return list(found.values())


def _until(fused: Fused) -> dict[Value, int]:
    """The last item that it makes a difference to where a value lies: what reads it, or makes it (joins are laid before
    they come)."""
    until = {
        v: k
        for k, i in enumerate(fused.items)
        for n in (i.body.nodes if isinstance(i, Region) else (i,))
        for v in (*n.inputs, *n.outputs)
    }
    return {**until, **dict.fromkeys(fused.graph.outputs, len(fused.items))}


def _state(placer: Placer, until: Mapping[Value, int], k: int) -> object:
    """What makes a difference behind item k."""
    return (
        frozenset((v, at) for v, at in placer.places.items() if until.get(v, -1) > k),
        frozenset(key for key in placer.copied if until.get(key[0], -1) > k),
    )
