"""Fuses launches on GPUs: chains of regions, small except perhaps the first, that are faster as one launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pelton.ir.graph import Graph, Value
from pelton.codegen.template import Kernel, Tactic, Target, Template
from pelton.codegen.triton.chain import TritonChain, chain_kernels, is_chainable
from pelton.codegen.triton.cost import AWAY, BEGIN, BYTES, OPERATIONS
from pelton.plan import lower
from pelton.plan.fuse import is_view
from pelton.plan.layout import Layouts
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region

from . import packed_weights
from .candidates import candidates
from .search import Choice, Timing
from .tasks import digest

MARGIN = 0.97  # maximum time of one launch relative to those of the parts
MAX_CHAIN = 6  # maximum regions of a chain; all runs up to it are tried
WARPS = (8, 4)  # of a chain's program; the first if nothing is timed
# candidates of a region to try for the fewest tiles
MAX_TRIED = 6
# bytes in flight of a program of eight warps: 32 for each thread
IN_FLIGHT = 8 << 10
# maximum programs per multiprocessor of a chain's first part: with more, a launch is negligible
MAX_HEAD_PROGRAMS = 16


@dataclass(frozen=True, eq=False)
class ChainPart:
    """A task with its kernel as one program."""

    task: Task
    kernel: Kernel

    @property
    def bytes(self) -> int:
        return int(self.kernel.traffic(self.task.region, self.task.layouts))

    def min_cycles(self) -> float:
        """Returns minimum cycles: latency of memory per tile, bandwidth of L2, or arithmetic of a multiprocessor."""
        return max(int(self.kernel.tiles) * AWAY, self.bytes / BYTES, self.task.region.flops() / OPERATIONS)

    def cycles_as_first(self, cycles: float) -> float:
        """Returns cycles as a chain's first part: one program per tile, two memory latencies for their counter."""
        tiles = int(self.kernel.tiles)
        return cycles / tiles + (2 * AWAY if tiles > 1 else 0)

    def max_cycles(self) -> float:
        """Returns maximum cycles: tile by tile, all operands from memory with few bytes in flight, then computed."""
        return int(self.kernel.tiles) * AWAY + self.bytes * AWAY / IN_FLIGHT + self.task.region.flops() / OPERATIONS


def launch_cycles(parts: int, launch: float) -> float:
    """Returns the minimum cycles of the launches of so many parts, without the start of the first."""
    return (parts - 1) * launch + parts * AWAY


@dataclass(frozen=True, eq=False)
class LaunchChain:
    """Tasks by number, the joined task, and its kernel; `saved`: nanoseconds if timed, else cycles by the model;
    `explanation`: the basis of the decision."""

    tasks: tuple[int, ...]
    whole: Task
    choice: Choice
    saved: float
    explanation: str

    def title(self) -> str:
        return "+".join(self.whole.region.layers) or self.whole.region.title()


def find_chains(
    placed: Placed, choices: Mapping[int, Choice], target: Target, timing: Timing | None, strict: bool
) -> list[LaunchChain]:
    """Finds the chains that are faster as one launch, by the clock or, without one, by a pessimistic model."""
    return list(_Search(placed, choices, target, timing, strict).runs())


def join_chains(
    placed: Placed, choices: Mapping[int, Choice], runs: Sequence[LaunchChain]
) -> tuple[Placed, dict[int, Choice]]:
    """Replaces each chain by one task at the position of its first part; it waits for all dependences of the chain."""
    first = {run.tasks[0]: run for run in runs}
    gone = {i for run in runs for i in run.tasks[1:]}
    left = [i for i in range(len(placed.tasks)) if i not in gone]
    tasks = [first[i].whole if i in first else placed.tasks[i] for i in left]
    now = {k: first[i].choice if i in first else choices[i] for k, i in enumerate(left) if i in choices}
    return replace(placed, tasks=tasks), now


class _Search:
    """Finds chains of tasks in order, and splits them where that saves most."""

    def __init__(
        self, placed: Placed, choices: Mapping[int, Choice], target: Target, timing: Timing | None, strict: bool
    ):
        self.placed, self.choices, self.target, self.timing, self.strict = placed, choices, target, timing, strict
        self.before = lower.dependences(placed)
        self.above: list[int] = []  # transitive dependences of a task, as bits
        self.readers: list[list[int]] = [[] for _ in placed.tasks]
        for i, earlier in enumerate(self.before):
            self.above.append(0)
            for k in earlier:
                self.above[i] |= self.above[k] | 1 << k
                self.readers[k].append(i)
        self.best_kernels: dict[tuple[str, int], tuple[Template, Tactic] | None] = {}
        self.parts: dict[tuple[int, int], ChainPart | None] = {}
        self.known: dict[tuple[int, ...], LaunchChain | None] = {}

    def runs(self) -> Iterator[LaunchChain]:
        taken: set[int] = set()
        for i in self.choices:
            for run in self.cut(self.line(i, taken)) if i not in taken else ():
                taken.update(run.tasks)
                yield run

    def line(self, first: int, taken: set[int]) -> tuple[int, ...]:
        """Returns small tasks from this one on, each reading the one before, without further dependences."""
        line: tuple[int, ...] = (first,)

        def fits(i: int) -> bool:
            there = all(self.above[first] >> k & 1 for k in self.before[i].difference(line))
            return (
                i in self.choices
                and i not in taken
                and there
                and any(self.one_program_part(i, warps) for warps in WARPS)
            )

        while len(line) < MAX_CHAIN and (then := next(filter(fits, self.readers[line[-1]]), None)) is not None:
            line = (*line, then)
        return line

    def cut(self, line: tuple[int, ...]) -> tuple[LaunchChain, ...]:
        """Returns the disjoint runs of a line that save most in total."""
        best: list[tuple[float, tuple[LaunchChain, ...]]] = [(0.0, ())] * (len(line) + 1)
        for begin in reversed(range(len(line))):
            options = [best[begin + 1]]
            for end in range(begin + 2, len(line) + 1):
                if line[begin:end] not in self.known:
                    self.known[line[begin:end]] = self.run(line[begin:end])
                run = self.known[line[begin:end]]
                if run is not None:
                    options.append((run.saved + best[end][0], (run, *best[end][1])))
            best[begin] = max(options, key=lambda option: option[0])
        return best[0][1]

    def run(self, tasks: tuple[int, ...]) -> LaunchChain | None:
        """Returns tasks as one launch if that is faster, else None."""
        variants = list(self.variants(tasks))
        if not variants:
            return None
        whole, made = join_tasks(self.placed, tasks), dict[Tactic, tuple[Kernel, Sequence[ChainPart]]]()
        for warps, parts in variants:
            kernel = chain_kernels([p.kernel for p in parts])
            params = ("PARTS", len(tasks)), ("PROGRAMS", int(kernel.tiles)), ("WARPS", warps)
            made.setdefault(Tactic(TritonChain.name, self.target.isa, params), (kernel, parts))
        times: dict[str, int] = {}
        if self.timing is None:
            tactic = max(made, key=lambda tactic: self.min_saving(made[tactic][1]))
            saved, explanation = self.min_saving(made[tactic][1]), "not timed, all small"
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

    def variants(self, tasks: Sequence[int]) -> Iterator[tuple[int, Sequence[ChainPart]]]:
        """Yields warps and parts of a chain that may be faster as one launch.

        First with one program for all parts, then with the first part in its own form.
        """
        first, choice = tasks[0], self.choices[tasks[0]]
        for whole in (False, True):
            for warps in WARPS:
                rest = [p for i in tasks[1:] if (p := self.one_program_part(i, warps)) is not None]
                if not whole:
                    head = self.one_program_part(first, warps)
                elif is_chainable(choice.tactic) and choice.tactic["WARPS"] == warps:
                    head = self.standalone_part(first)
                else:
                    head = None
                if (
                    head is not None
                    and len(rest) == len(tasks) - 1
                    and head.cycles_as_first(head.min_cycles()) + sum(p.min_cycles() for p in rest)
                    < launch_cycles(len(tasks), BEGIN)
                ):
                    yield warps, [head, *rest]

    def min_saving(self, parts: Sequence[ChainPart]) -> float:
        """Returns the minimum saving in cycles of one launch of one program; for several, only a clock can decide."""
        return (
            launch_cycles(len(parts), BEGIN - AWAY) - sum(p.max_cycles() for p in parts)
            if parts[0].kernel.tiles == 1
            else -1.0
        )

    def standalone_part(self, i: int) -> ChainPart | None:
        """Returns a task with its own kernel if a chain may begin with that, else None."""
        task, choice = self.placed.tasks[i], self.choices[i]
        if task.region.optimum_sizes(task.layouts) or choice.kernel.dims or choice.kernel.scratch:
            return None
        return (
            ChainPart(task, choice.kernel)
            if 1 < int(choice.kernel.tiles) <= MAX_HEAD_PROGRAMS * self.target.threads
            else None
        )

    def one_program_part(self, i: int, warps: int) -> ChainPart | None:
        """Returns a task for one program with so many warps; None if that takes longer than a launch."""
        if (i, warps) not in self.parts:
            self.parts[i, warps] = self._find_part(i, warps)
        return self.parts[i, warps]

    def _find_part(self, i: int, warps: int) -> ChainPart | None:
        task, one = self.placed.tasks[i], replace(self.target, threads=1)
        if task.region.optimum_sizes(task.layouts) or ChainPart(task, self.choices[i].kernel).bytes / BYTES >= BEGIN:
            return None
        key = digest(task), warps
        if key not in self.best_kernels:
            chainable = (
                (template, tactic)
                for template, tactic in candidates(task.region, task.layouts, one, self.strict, 1 << 30)
                if is_chainable(tactic) and tactic["WARPS"] == warps
            )
            tiles = {
                (t, tactic): t.emit(task.region, task.layouts, tactic, one).tiles
                for t, tactic in islice(chainable, MAX_TRIED)
            }
            self.best_kernels[key] = min(tiles, key=tiles.__getitem__, default=None)
        best = self.best_kernels[key]
        if best is None:
            return None
        template, tactic = best
        part = ChainPart(task, template.emit(task.region, task.layouts, tactic, one))
        return part if part.min_cycles() < BEGIN else None


def join_tasks(placed: Placed, tasks: Sequence[int]) -> Task:
    """Joins tasks into one, whose body includes the views between them, and whose outputs are theirs."""
    parts = [placed.tasks[i] for i in tasks]
    made: set[Value] = set()
    nodes = []

    def view(v: Value) -> None:
        """Adds the views between computed values and this one."""
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
