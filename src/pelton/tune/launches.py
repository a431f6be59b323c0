"""Launches saved: chains of regions so small that one program of a GPU makes them all, one after the other, sooner than each would have begun."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pelton.ir.graph import Graph, Value
from pelton.kernels.template import Kernel, Tactic, Target, Template
from pelton.kernels.triton.chain import Chain, chained, takes
from pelton.kernels.triton.roofline import AWAY, BEGIN, BYTES
from pelton.plan import lower
from pelton.plan.fuse import is_view
from pelton.plan.place import Placed, Task
from pelton.plan.region import Region

from . import size
from .candidates import candidates
from .search import Choice, Timing, digest

MARGIN = 0.97                                  # one launch must take this much less time than those of the parts
LONGEST = 16                                   # regions of a chain: a bound for what one kernel is compiled of
WARPS = (8, 4)                                 # of a chain's program, the first where nothing is timed
LOOKS = 6                                      # tactics of a template that are looked at for the one that makes the fewest tiles
HELD = 8 << 10                                 # bytes that a program of eight warps has asked for at a time: 32 for each thread
OPERATIONS = 256                               # that a multiprocessor makes in a cycle without tensor cores: its units for f32 make 128 sums of products


@dataclass(frozen=True, eq=False)
class Part:
    """A region as one program would do it."""

    task: Task
    kernel: Kernel

    @property
    def bytes(self) -> int:
        return int(self.kernel.traffic(self.task.region, self.task.layouts))

    def least(self) -> float:
        """Cycles at best: its tiles wait for memory one after the other, and a multiprocessor gets so much from the L2 cache, and computes so much."""
        return max(int(self.kernel.tiles) * AWAY, self.bytes / BYTES, self.task.region.flops() / OPERATIONS)

    def most(self) -> float:
        """Cycles at worst: each tile begins when the one before is done, all is read from memory, with few bytes on their way, then computed."""
        return int(self.kernel.tiles) * AWAY + self.bytes * AWAY / HELD + self.task.region.flops() / OPERATIONS


@dataclass(frozen=True, eq=False)
class Run:
    """Tasks by their numbers, what they are as one, and what runs that; `told` says how that was decided."""

    tasks: tuple[int, ...]
    whole: Task
    choice: Choice
    told: str = ""

    def title(self) -> str:
        return "+".join(self.whole.region.layers) or self.whole.region.title()


def found(placed: Placed, choices: Mapping[int, Choice], target: Target, timing: Timing | None, strict: bool) -> list[Run]:
    """The chains that take less time in one launch: by the clock, or, where nothing is timed, by a model that thinks ill of them."""
    return list(_Search(placed, choices, target, timing, strict).runs())


def joined(placed: Placed, choices: Mapping[int, Choice], runs: Sequence[Run]) -> tuple[Placed, dict[int, Choice]]:
    """The same with these chains as one task each, where their first part was: all that a chain waits for, that does too."""
    first = {run.tasks[0]: run for run in runs}
    gone = {i for run in runs for i in run.tasks[1:]}
    left = [i for i in range(len(placed.tasks)) if i not in gone]
    tasks = [first[i].whole if i in first else placed.tasks[i] for i in left]
    now = {k: first[i].choice if i in first else choices[i] for k, i in enumerate(left) if i in choices}
    return replace(placed, tasks=tasks), now


class _Search:
    """Goes over the tasks in their order and makes chains as long as they pay."""

    def __init__(self, placed: Placed, choices: Mapping[int, Choice], target: Target, timing: Timing | None, strict: bool):
        self.placed, self.choices, self.target, self.timing, self.strict = placed, choices, target, timing, strict
        self.before = lower.before(placed)
        self.above: list[int] = []                             # all that a task waits for, as the bits of a number
        self.readers: list[list[int]] = [[] for _ in placed.tasks]
        for i, earlier in enumerate(self.before):
            self.above.append(0)
            for k in earlier:
                self.above[i] |= self.above[k] | 1 << k
                self.readers[k].append(i)
        self.ways: dict[tuple[str, int], tuple[Template, Tactic] | None] = {}

    def runs(self) -> Iterator[Run]:
        taken: set[int] = set()
        for i, choice in self.choices.items():
            if i in taken:
                continue
            run = Run((i,), self.placed.tasks[i], choice)
            while len(run.tasks) < LONGEST and (longer := self.longer(run, taken)) is not None:
                run = longer
            if len(run.tasks) > 1:
                taken.update(run.tasks)
                yield run

    def longer(self, run: Run, taken: set[int]) -> Run | None:
        """The chain with one more part, which reads what its last one writes and waits for nothing that its first one does not wait for."""
        first, last = run.tasks[0], run.tasks[-1]
        for i in self.readers[last]:
            if i in self.choices and i not in taken and all(self.above[first] >> k & 1 for k in self.before[i] - set(run.tasks)):
                better = self.better(run, i)
                if better is not None:
                    return better
        return None

    def better(self, run: Run, then: int) -> Run | None:
        """A chain with another part, where that is faster."""
        tasks = (*run.tasks, then)
        ways: dict[int, list[Part]] = {}
        for warps in WARPS:
            parts = [p for i in tasks if (p := self.part(i, warps)) is not None]
            if len(parts) == len(tasks) and sum(p.least() for p in parts) < (len(parts) - 1) * BEGIN + len(parts) * AWAY:
                ways[warps] = parts
        if not ways:
            return None
        whole = together(self.placed, tasks)
        made = {Tactic(Chain.name, self.target.isa, (("PARTS", len(tasks)), ("WARPS", w))): chained([p.kernel for p in ps]) for w, ps in ways.items()}
        times: dict[str, int] = {}
        if self.timing is None:
            tactic, kernel = next(iter(made.items()))
            if sum(p.most() for p in ways[tactic["WARPS"]]) > (len(tasks) - 1) * (BEGIN - AWAY) + len(tasks) * AWAY:
                return None
            told = "not timed, all small"
        else:
            before, after = run.choice, self.choices[then]
            apart = f"{before.tactic.name}+{after.tactic.name}"
            times = self.timing.race(digest(whole), (whole,), {apart: [before.kernel, after.kernel], **{t.name: [k] for t, k in made.items()}})
            tactic, kernel = min(made.items(), key=lambda way: times.get(way[0].name, 1 << 62))
            if apart not in times or tactic.name not in times or times[tactic.name] >= times[apart] * MARGIN:
                return None
            told = f"{times[tactic.name] / 1e3:.1f} µs, apart {times[apart] / 1e3:.1f} µs"
        weights = {v: a.nbytes for v, a in whole.region.body.constants.items()}
        packing = size.Packing(sum(c.packing.own for c in (run.choice, self.choices[then])), size.packed_bytes(kernel, weights), 0.0)
        return Run(tasks, whole, Choice(Chain(), tactic, kernel, packing, times), told)

    def part(self, i: int, warps: int) -> Part | None:
        """A task for one program with so many warps; None where that takes longer than another launch."""
        task, alone = self.placed.tasks[i], replace(self.target, threads=1)
        if task.region.usual_sizes(task.layouts) or Part(task, self.choices[i].kernel).bytes / BYTES >= BEGIN:
            return None
        key = digest(task), warps
        if key not in self.ways:
            ways = (w for w in candidates(task.region, task.layouts, alone, self.strict, 1 << 30) if w[1]["WARPS"] == warps and takes(w[1]))
            tiles = {(t, tactic): t.emit(task.region, task.layouts, tactic, alone).tiles for t, tactic in islice(ways, LOOKS)}
            self.ways[key] = min(tiles, key=lambda way: tiles[way], default=None)
        way = self.ways[key]
        if way is None:
            return None
        part = Part(task, way[0].emit(task.region, task.layouts, way[1], alone))
        return part if part.least() < BEGIN else None


def together(placed: Placed, tasks: Sequence[int]) -> Task:
    """Tasks as one, whose region writes all that they write; views of what it writes are part of its body."""
    parts = [placed.tasks[i] for i in tasks]
    made: set[Value] = set()
    nodes = []

    def view(v: Value) -> None:
        """The views that lead from what is made to a value."""
        node = placed.graph.producer.get(v)
        if v in made or node is None or not is_view(node):
            return
        for x in node.inputs:
            view(x)
        if made.intersection(node.inputs):
            nodes.append(node)
            made.update(node.outputs)

    for part in parts:
        for v in part.reads:
            view(v)
        nodes += part.region.body.nodes
        made.update(v for n in part.region.body.nodes for v in n.outputs)
    held = {v: a for part in parts for v, a in part.region.body.constants.items()}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v not in made)
    body = Graph(tuple(v for v in read if v not in held), {v: held[v] for v in read if v in held}, tuple(nodes),
                 tuple(dict.fromkeys(v for part in parts for v in part.writes)), "chain")
    layouts = {v: strides for part in parts for v, strides in part.layouts.items()}
    layouts.update({v: placed.places[v].strides for v in body.inputs if v not in layouts})
    return Task(Region(body, tuple(a for part in parts for a in part.region.anchors)), layouts)
