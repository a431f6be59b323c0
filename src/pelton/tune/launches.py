"""Launches saved: chains of regions so small, all or all but the first, that one program of a GPU makes them sooner
than each would have begun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pelton.ir.graph import Graph, Value
from pelton.codegen.template import Kernel, Tactic, Target, Template
from pelton.codegen.triton.chain import TritonChain, chain_kernels, is_chainable
from pelton.codegen.triton.cost import AWAY, BEGIN, BYTES
from pelton.plan import lower
from pelton.plan.fuse import is_view
from pelton.plan.layout import Layouts
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region

from . import packed_weights
from .candidates import candidates
from .search import Choice, Timing, digest

MARGIN = 0.97  # one launch must take this much less time than those of the parts
MAX_CHAIN = 6  # regions of a chain: all runs of so many are looked at
WARPS = (8, 4)  # of a chain's program, the first where nothing is timed
# tactics of a template that are looked at for the one that makes the fewest tiles
MAX_LOOKS = 6
# bytes that a program of eight warps has asked for at a time: 32 for each thread
HELD = 8 << 10
# programs for each multiprocessor that a chain may begin with: another launch is nothing beside more
WIDE = 16
# that a multiprocessor makes in a cycle without tensor cores: its units for f32 make 128 sums of products
OPERATIONS = 256


@dataclass(frozen=True, eq=False)
class ChainPart:
    """A region as one program would do it."""

    task: Task
    kernel: Kernel

    @property
    def bytes(self) -> int:
        return int(self.kernel.traffic(self.task.region, self.task.layouts))

    def min_cycles(self) -> float:
        """Cycles at best: its tiles wait for memory one after the other, and a multiprocessor gets so much from the L2
        cache, and computes so much."""
        return max(int(self.kernel.tiles) * AWAY, self.bytes / BYTES, self.task.region.flops() / OPERATIONS)

    def cycles_as_first(self, cycles: float) -> float:
        """What all of it takes as the first part of a chain, where each tile has a program; the last of several hears
        of it after two ways to memory."""
        tiles = int(self.kernel.tiles)
        return cycles / tiles + (2 * AWAY if tiles > 1 else 0)

    def max_cycles(self) -> float:
        """Cycles at worst: each tile begins when the one before is done, all is read from memory, with few bytes on
        their way, then computed."""
        return int(self.kernel.tiles) * AWAY + self.bytes * AWAY / HELD + self.task.region.flops() / OPERATIONS


def launch_cycles(parts: int, launch: float) -> float:
    """Cycles that launches of so many parts take at least, without the start of the first."""
    return (parts - 1) * launch + parts * AWAY


@dataclass(frozen=True, eq=False)
class LaunchChain:
    """Tasks by their numbers, what they are as one, and what runs that; `saved` nanoseconds by the clock, cycles by the
    model; `explanation`: how it was decided."""

    tasks: tuple[int, ...]
    whole: Task
    choice: Choice
    saved: float
    explanation: str

    def title(self) -> str:
        return "+".join(self.whole.region.layers) or self.whole.region.title()


def found(
    placed: Placed, choices: Mapping[int, Choice], target: Target, timing: Timing | None, strict: bool
) -> list[LaunchChain]:
    """The chains that take less time in one launch: by the clock, or, where nothing is timed, by a model that thinks
    ill of them."""
    return list(_Search(placed, choices, target, timing, strict).runs())


def joined(
    placed: Placed, choices: Mapping[int, Choice], runs: Sequence[LaunchChain]
) -> tuple[Placed, dict[int, Choice]]:
    """The same with these chains as one task each, where their first part was: all that a chain waits for, that does
    too."""
    first = {run.tasks[0]: run for run in runs}
    gone = {i for run in runs for i in run.tasks[1:]}
    left = [i for i in range(len(placed.tasks)) if i not in gone]
    tasks = [first[i].whole if i in first else placed.tasks[i] for i in left]
    now = {k: first[i].choice if i in first else choices[i] for k, i in enumerate(left) if i in choices}
    return replace(placed, tasks=tasks), now


class _Search:
    """Goes over the tasks in their order and makes chains as long as they pay."""

    def __init__(
        self, placed: Placed, choices: Mapping[int, Choice], target: Target, timing: Timing | None, strict: bool
    ):
        self.placed, self.choices, self.target, self.timing, self.strict = placed, choices, target, timing, strict
        self.before = lower.dependences(placed)
        self.above: list[int] = []  # all that a task waits for, as the bits of a number
        self.readers: list[list[int]] = [[] for _ in placed.tasks]
        for i, earlier in enumerate(self.before):
            self.above.append(0)
            for k in earlier:
                self.above[i] |= self.above[k] | 1 << k
                self.readers[k].append(i)
        self.ways: dict[tuple[str, int], tuple[Template, Tactic] | None] = {}
        self.parts: dict[tuple[int, int], ChainPart | None] = {}
        self.known: dict[tuple[int, ...], LaunchChain | None] = {}

    def runs(self) -> Iterator[LaunchChain]:
        taken: set[int] = set()
        for i in self.choices:
            for run in self.cut(self.line(i, taken)) if i not in taken else ():
                taken.update(run.tasks)
                yield run

    def line(self, first: int, taken: set[int]) -> tuple[int, ...]:
        """Tasks from this one on, each small, reading what the one before it writes, and waiting for nothing that the
        first one does not wait for."""
        line: tuple[int, ...] = (first,)

        def fits(i: int) -> bool:
            there = all(self.above[first] >> k & 1 for k in self.before[i].difference(line))
            return i in self.choices and i not in taken and there and any(self.part(i, warps) for warps in WARPS)

        while len(line) < MAX_CHAIN and (then := next(filter(fits, self.readers[line[-1]]), None)) is not None:
            line = (*line, then)
        return line

    def cut(self, line: tuple[int, ...]) -> tuple[LaunchChain, ...]:
        """The runs of a line that together save most."""
        best: list[tuple[float, tuple[LaunchChain, ...]]] = [(0.0, ())] * (len(line) + 1)
        for begin in reversed(range(len(line))):
            ways = [best[begin + 1]]
            for end in range(begin + 2, len(line) + 1):
                if line[begin:end] not in self.known:
                    self.known[line[begin:end]] = self.run(line[begin:end])
                run = self.known[line[begin:end]]
                if run is not None:
                    ways.append((run.saved + best[end][0], (run, *best[end][1])))
            best[begin] = max(ways, key=lambda way: way[0])
        return best[0][1]

    def run(self, tasks: tuple[int, ...]) -> LaunchChain | None:
        """Tasks as one launch, where that is faster."""
        ways = list(self.possible(tasks))
        if not ways:
            return None
        whole, made = together(self.placed, tasks), dict[Tactic, tuple[Kernel, Sequence[ChainPart]]]()
        for warps, parts in ways:
            kernel = chain_kernels([p.kernel for p in parts])
            params = ("PARTS", len(tasks)), ("PROGRAMS", int(kernel.tiles)), ("WARPS", warps)
            made.setdefault(Tactic(TritonChain.name, self.target.isa, params), (kernel, parts))
        times: dict[str, int] = {}
        if self.timing is None:
            tactic = max(made, key=lambda tactic: self.sure(made[tactic][1]))
            saved, explanation = self.sure(made[tactic][1]), "not timed, all small"
            if saved <= 0:
                return None
        else:
            each = [self.choices[i] for i in tasks]
            apart = "+".join(c.tactic.name for c in each)
            times = self.timing.race(
                digest(whole),
                (whole,),
                {apart: [c.kernel for c in each], **{t.name: [k] for t, (k, _) in made.items()}},
            )
            tactic = min(made, key=lambda tactic: times.get(tactic.name, 1 << 62))
            if apart not in times or tactic.name not in times or times[tactic.name] >= times[apart] * MARGIN:
                return None
            saved, explanation = (
                times[apart] - times[tactic.name],
                f"{times[tactic.name] / 1e3:.1f} µs, apart {times[apart] / 1e3:.1f} µs",
            )
        kernel = made[tactic][0]
        weights = {v: a.nbytes for v, a in whole.region.body.constants.items()}
        packing = packed_weights.Packing(
            sum(self.choices[i].packing.own for i in tasks), packed_weights.packed_bytes(kernel, weights), 0.0
        )
        return LaunchChain(tasks, whole, Choice(TritonChain(), tactic, kernel, packing, times), saved, explanation)

    def possible(self, tasks: Sequence[int]) -> Iterator[tuple[int, Sequence[ChainPart]]]:
        """Warps and the parts of a chain that may be faster in one launch: those with few tiles, then those whose first
        part is as it would be by itself."""
        first, choice = tasks[0], self.choices[tasks[0]]
        for whole in (False, True):
            for warps in WARPS:
                rest = [p for i in tasks[1:] if (p := self.part(i, warps)) is not None]
                if not whole:
                    head = self.part(first, warps)
                elif is_chainable(choice.tactic) and choice.tactic["WARPS"] == warps:
                    head = self.alone(first)
                else:
                    head = None
                if (
                    head is not None
                    and len(rest) == len(tasks) - 1
                    and head.cycles_as_first(head.min_cycles()) + sum(p.min_cycles() for p in rest)
                    < launch_cycles(len(tasks), BEGIN)
                ):
                    yield warps, [head, *rest]

    def sure(self, parts: Sequence[ChainPart]) -> float:
        """The cycles that they save in one launch of one program even at worst; what programs lose that count each
        other, only a clock can say."""
        return (
            launch_cycles(len(parts), BEGIN - AWAY) - sum(p.max_cycles() for p in parts)
            if parts[0].kernel.tiles == 1
            else -1.0
        )

    def alone(self, i: int) -> ChainPart | None:
        """A task as it would be by itself, where a chain may begin with that."""
        task, choice = self.placed.tasks[i], self.choices[i]
        if task.region.optimum_sizes(task.layouts) or choice.kernel.dims or choice.kernel.scratch:
            return None
        return ChainPart(task, choice.kernel) if 1 < int(choice.kernel.tiles) <= WIDE * self.target.threads else None

    def part(self, i: int, warps: int) -> ChainPart | None:
        """A task for one program with so many warps; None where that takes longer than another launch."""
        if (i, warps) not in self.parts:
            self.parts[i, warps] = self._part(i, warps)
        return self.parts[i, warps]

    def _part(self, i: int, warps: int) -> ChainPart | None:
        task, one = self.placed.tasks[i], replace(self.target, threads=1)
        if task.region.optimum_sizes(task.layouts) or ChainPart(task, self.choices[i].kernel).bytes / BYTES >= BEGIN:
            return None
        key = digest(task), warps
        if key not in self.ways:
            ways = (
                w
                for w in candidates(task.region, task.layouts, one, self.strict, 1 << 30)
                if is_chainable(w[1]) and w[1]["WARPS"] == warps
            )
            tiles = {
                (t, tactic): t.emit(task.region, task.layouts, tactic, one).tiles
                for t, tactic in islice(ways, MAX_LOOKS)
            }
            self.ways[key] = min(tiles, key=lambda way: tiles[way], default=None)
        way = self.ways[key]
        if way is None:
            return None
        part = ChainPart(task, way[0].emit(task.region, task.layouts, way[1], one))
        return part if part.min_cycles() < BEGIN else None


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
    body = Graph(
        tuple(v for v in read if v not in held),
        {v: held[v] for v in read if v in held},
        tuple(nodes),
        tuple(dict.fromkeys(v for part in parts for v in part.writes)),
        "chain",
    )
    strides = {v: placed.places[v].strides for v in body.inputs}
    strides |= {v: s for part in parts for v, s in part.layouts.items()}
    layouts = Layouts(strides, frozenset[Value]().union(*(part.layouts.zero_padded for part in parts)))
    return Task(Region(body, tuple(a for part in parts for a in part.region.anchors)), layouts)
