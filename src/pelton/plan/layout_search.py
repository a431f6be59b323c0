"""Layout search: chooses, over the whole graph, the template of each region whose layouts count.

A state is the layout of every value still to be read. From each state, every template of the next region leads to a
state after the region, at the cost of its kernel and the copies that it needs. Transitions to the same state merge;
where all templates need the same layouts there is one, and nothing multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pelton.ir.graph import Node, Value

from .fuse import Fused
from .place import Placer, PreferredLayout
from .placed import LayoutConstraints, Task
from .region import Region

MAX_STATES = 16  # kept side by side; those of the first templates come first
NEVER = float("inf")  # the cost of a task that no kernel runs


@dataclass(frozen=True, eq=False)
class Transition:
    """From a state before an item to a state after it (by number), in the layouts of a template; the tasks it adds."""

    before: int
    after: int
    by: LayoutConstraints | None
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Decision:
    """The template chosen for a region, and the extra cost of the whole graph with each of the others."""

    region: Region
    by: str
    instead: Mapping[str, float]


@dataclass(frozen=True)
class LayoutSearch:
    """All transitions across every item (None: the outputs of the graph), those of the first templates first."""

    items: tuple[Region | Node | None, ...]
    transitions: tuple[tuple[Transition, ...], ...]

    def undecided_tasks(self) -> list[Task]:
        """Returns the tasks whose cost matters: those of items with more than one transition."""
        return list(dict.fromkeys(t for past in self.transitions if len(past) > 1 for p in past for t in p.tasks))

    def cheapest(
        self, cost: Callable[[Task], float]
    ) -> tuple[Mapping[Region, LayoutConstraints], tuple[Decision, ...]]:
        """Returns each region's template on the cheapest path, and its decisions. cost: NEVER if a task cannot run."""
        ahead: dict[int, float] = {p.after: 0.0 for p in self.transitions[-1]}  # cost from a state to the end
        totals: list[list[float]] = []
        for past in reversed(self.transitions):
            totals.append(
                [(sum(map(cost, p.tasks)) if len(past) > 1 else 0.0) + ahead.get(p.after, NEVER) for p in past]
            )
            ahead = {p.before: min(t for q, t in zip(past, totals[-1]) if q.before == p.before) for p in past}
        state, chosen, decisions = 0, dict[Region, LayoutConstraints](), []
        for item, past, costs in zip(self.items, self.transitions, reversed(totals)):
            here = [(c, p) for c, p in zip(costs, past) if p.before == state]
            lowest, best = min(here, key=lambda pair: pair[0])  # the first of equals
            if isinstance(item, Region) and best.by is not None:
                chosen[item] = best.by
                instead = {p.by.name: c - lowest for c, p in here if p is not best and p.by is not None and c < NEVER}
                if instead:
                    decisions.append(Decision(item, best.by.name, instead))
            state = best.after
        return chosen, tuple(decisions)


def explore(
    fused: Fused,
    templates_of: Callable[[Region], Sequence[LayoutConstraints]],
    preferred: PreferredLayout = lambda v: None,
) -> LayoutSearch:
    """Returns all transitions through a graph. templates_of: the templates of a region, the preferred one first."""
    items = (*fused.items, None)
    last_use = _last_uses(fused)
    states, transitions = [Placer(fused.graph, preferred)], []
    for k, item in enumerate(items):
        forks = [
            (before, by, placer)
            for before, state in enumerate(states)
            for by, placer in _place(item, state, templates_of(item) if isinstance(item, Region) else (None,))
        ]
        number: dict[object, int] = {}
        after = [
            number.setdefault(_state(p, last_use, k) if len(forks) > 1 else None, len(number)) for _, _, p in forks
        ]
        transitions.append(
            tuple(
                Transition(before, a, by, tuple(placer.result.tasks))
                for (before, by, placer), a in zip(forks, after)
                if a < MAX_STATES
            )
        )
        states = [forks[after.index(a)][2] for a in range(min(len(number), MAX_STATES))]
    return LayoutSearch(items, tuple(transitions))


def _place(
    item: Region | Node | None, placer: Placer, templates: Sequence[LayoutConstraints | None]
) -> list[tuple[LayoutConstraints | None, Placer]]:
    """Places an item by each template, once per distinct result; the placers hold the tasks of this item only."""
    placements: dict[object, tuple[LayoutConstraints | None, Placer]] = {}
    placer.result.tasks.clear()
    for by in templates:
        new = placer.fork() if len(templates) > 1 else placer
        if isinstance(item, Region) and by is not None:
            new.place_region(item, by)
        elif isinstance(item, Node):
            new.place_node(item)
        else:
            new.place_outputs()
        placements.setdefault(tuple(tuple(t.layouts.values()) for t in new.result.tasks), (by, new))
    return list(placements.values())


def _last_uses(fused: Fused) -> dict[Value, int]:
    """Returns the last item that depends on each value's layout: reads it, or makes it (concats come early)."""
    last = {
        v: k
        for k, i in enumerate(fused.items)
        for n in (i.body.nodes if isinstance(i, Region) else (i,))
        for v in (*n.inputs, *n.outputs)
    }
    return {**last, **dict.fromkeys(fused.graph.outputs, len(fused.items))}


def _state(placer: Placer, last_use: Mapping[Value, int], k: int) -> object:
    """Returns all that items after item k depend on."""
    return (
        frozenset((v, at) for v, at in placer.places.items() if last_use.get(v, -1) > k),
        frozenset(key for key in placer.copied if last_use.get(key[0], -1) > k),
    )
