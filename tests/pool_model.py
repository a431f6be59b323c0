"""A model of how threads claim tiles and wake each other: each method is a function of pool.c or program.c.

An access names its place in the C code, `function operation variable`, from which it takes its memory order. Words of a
program, its memory, outputs of tiles and scratch are plain variables: each access to them is checked for races."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from memory_machine import Access, Exploration, Thread, explore

OPEN, STEPWISE, JOINED, EPOCH = 8, 16, 7, 32  # bits of a seat's state; EPOCH: the lowest bit of the epoch
CLAIMED = 16  # a counter is epoch · CLAIMED + claimed tiles
Steps = Generator[Access, int, Any]


@dataclass(frozen=True)
class Program:
    """A program with one seat. `waves`: tiles of each; `stepwise`: it has a second schedule; `first`: run in which it
    begins."""

    name: str
    seat: str = "seat"
    waves: tuple[int, ...] = (2, 1)
    threads: int = 2
    schedules: int = 1
    first: int = 0

    def places(self, sleeps: bool) -> dict[str, int]:
        per_schedule = ("runs", *(f"{kind}{i}" for i in range(len(self.waves)) for kind in ("next", "done")))
        names = [f"{self.name}.{i}.{kind}" for i in range(self.schedules) for kind in per_schedule]
        at_first = self.first * CLAIMED
        return {
            name: at_first * (".next" in name)
            for name in (*names, *map(self.of, ("at", "bell", "sleepers")[: 3 if sleeps else 1]))
        }

    def plains(self) -> list[str]:
        tiles = [self.tile(i, k) for i, n in enumerate(self.waves) for k in range(n)]
        return [*map(self.of, ("words", "memory")), *tiles, *(self.scratch(slot) for slot in range(self.threads))]

    def of(self, kind: str) -> str:
        return f"{self.name}.{kind}"

    def tile(self, wave: int, k: int) -> str:
        return f"{self.name}.tile{wave}.{k}"

    def scratch(self, slot: int) -> str:
        return f"{self.name}.scratch{slot}"


@dataclass(frozen=True)
class Scenario:
    """Programs, and the calls of each caller: (program, stepwise), or (program, None), which frees it. `sleeps`: with
    parked workers and sleeping participants; without, threads wait by spinning."""

    programs: tuple[Program, ...] = (Program("p"),)
    calls: tuple[tuple[tuple[int, bool | None], ...], ...] = (((0, False), (0, False)),)
    workers: int = 1
    joins: int = 2  # of each worker
    entries: int = 1
    sleeps: bool = True
    fresh: bool = False  # the first run sets the counters
    reused: bool = False  # `limit` and `program` of the seat change
    looks: bool = False  # checks that a worker looks at each run before it sleeps; for one caller


@dataclass(eq=False)
class Protocol:
    """The functions of the runtime. `orders`: (order, order of a failed exchange) by place in the C code."""

    orders: dict[str, tuple[str, str]]
    scenario: Scenario
    used: set[str] = field(default_factory=set)

    def at(self, site: str, place: str, *values: int) -> Access:
        self.used.add(site)
        order, failure = self.orders[site]
        kind = site.split()[1]
        a, b = (*values, 0, 0)[:2]
        if kind == "sub":
            kind, a = "add", -a
        return Access(kind, place, a, b, order, failure, site)

    def limit(self, site: str, s: str) -> Steps:
        """A constant, unless the seat is reused."""
        if self.scenario.reused:
            return (yield self.at(site, f"{s}.limit"))
        return next(p.threads for p in self.scenario.programs if p.seat == s) - 1

    # ---- pool.c ----

    def join(self, s: str) -> Steps:
        state = yield self.at("join load state", f"{s}.state")
        while state & OPEN:
            if not state & JOINED < (yield from self.limit("join load limit", s)):
                break
            result = yield self.at("join swap state", f"{s}.state", state, state + 1)
            if result & 1:
                return state // EPOCH, bool(state & STEPWISE)
            state = result >> 1
        return None

    def take_slot(self, s: str) -> Steps:
        while True:
            taken = yield self.at("take_slot load slots", f"{s}.slots")
            while True:
                bit = (~taken & taken + 1).bit_length() - 1
                if bit > (yield from self.limit("take_slot load limit", s)):
                    break
                result = yield self.at("take_slot swap slots", f"{s}.slots", taken, taken | 1 << bit)
                if result & 1:
                    return bit
                taken = result >> 1

    def leave(self, s: str, slot: int) -> Steps:
        yield self.at("leave and slots", f"{s}.slots", ~(1 << slot))
        yield self.at("leave sub state", f"{s}.state", 1)

    def assist(self) -> Steps:
        for i in range(self.scenario.entries):
            n = yield self.at("assist load open", f"open{i}")
            if not n:
                continue
            s = self.seats()[n - 1]
            if self.scenario.reused:
                yield Access("read", f"{s}.memory")
            r = yield from self.join(s)
            if r is None:
                continue
            slot = yield from self.take_slot(s)
            number = [p.seat for p in self.scenario.programs].index(s)
            if self.scenario.reused:
                number = yield Access("read", f"{s}.program")
            yield from self.program_assist(self.scenario.programs[number], r, slot)
            number = 0
            yield from self.leave(s, slot)
            return True
        return False

    def work(self) -> Thread:
        joins = 0
        while joins < self.scenario.joins:
            seen = yield self.at("work load bell", "bell")
            if self.scenario.looks:
                assert (yield Access("load", "announced")) >= seen, "a worker will sleep past a run"
            if (yield from self.assist()):
                joins += 1
                continue
            rung = False
            if (yield Access("choose", a=2)):  # some time to spin
                rung = (yield self.at("work load bell 2", "bell")) != seen
            if not rung:
                yield self.at("work add parked", "parked", 1)
                yield Access("wait", "bell", seen)
                yield self.at("work sub parked", "parked", 1)

    def spin(self) -> Thread:
        """The same without sleep, for scenarios of other questions."""
        joins = 0
        while joins < self.scenario.joins and (yield Access("choose", a=2)):
            joins += yield from self.assist()

    def seat_open(self, p: Program, stepwise: bool) -> Steps:
        s = p.seat
        state = yield self.at("seat_open load state", f"{s}.state")
        while True:
            opened = (state // EPOCH + 1) * EPOCH | STEPWISE * stepwise | OPEN | state & JOINED
            result = yield self.at("seat_open swap state", f"{s}.state", state, opened)
            if result & 1:
                break
            state = result >> 1
        entry = -1
        for i in range(self.scenario.entries):
            if (yield self.at("seat_open load open", f"open{i}")) == 0:
                result = yield self.at("seat_open swap open", f"open{i}", 0, 1 + self.seats().index(s))
                if result & 1:
                    entry = i
                    break
        if self.scenario.looks:
            yield Access("store", "announced", opened // EPOCH)
        if entry >= 0 and self.scenario.sleeps:
            yield self.at("seat_open add bell", "bell", 1)
            if (yield self.at("seat_open load parked", "parked")):
                yield Access("wake", "bell", p.threads - 1)
        return opened // EPOCH, entry

    def seat_epoch(self, s: str) -> Steps:
        return (yield self.at("seat_epoch load state", f"{s}.state")) // EPOCH

    def seat_close(self, s: str, entry: int) -> Steps:
        yield self.at("seat_close and state", f"{s}.state", ~OPEN)
        if entry >= 0:
            yield self.at("seat_close store open", f"open{entry}", 0)

    def seat_take(self, number: int) -> Steps:
        p = self.scenario.programs[number]
        if number == 0:  # a new seat
            yield Access("write", f"{p.seat}.memory")
        yield Access("write", f"{p.seat}.program", number)
        yield self.at("seat_take store limit", f"{p.seat}.limit", p.threads - 1)
        yield self.at("seat_take store slots", f"{p.seat}.slots", 1)

    def seat_give(self, s: str) -> Steps:
        yield self.at("seat_give load state", f"{s}.state")._replace(kind="until", a=JOINED)
        yield self.at("seat_give and state", f"{s}.state", ~(JOINED | OPEN))
        yield self.at("seat_give store slots", f"{s}.slots", 0)

    # ---- program.c ----

    def claim_tiles(self, p: Program, s: str, i: int, epoch: int) -> Steps:
        following = yield self.at("claim_tiles load next", f"{s}.next{i}")
        while True:
            of, claimed = divmod(following, CLAIMED)
            if of not in (epoch, epoch - 1):
                return "stale"
            claimed = claimed if of == epoch else 0
            if claimed >= p.waves[i]:
                return "exhausted"
            after = epoch * CLAIMED + claimed + 1
            result = yield self.at("claim_tiles swap next", f"{s}.next{i}", following, after)
            if result & 1:
                return claimed
            following = result >> 1

    def execute(self, p: Program, i: int, k: int, epoch: int, slot: int) -> Steps:
        """Checks that the tile runs once in this run, with its arguments, after all tiles of earlier waves."""
        assert (yield Access("read", p.of("words"))) == epoch, "a tile has the arguments of another run"
        yield Access("write", p.scratch(slot), slot)
        for wave in range(i):
            for other in range(p.waves[wave]):
                assert (yield Access("read", p.tile(wave, other))) == epoch, "a wave began before the one before ended"
        assert (yield Access("read", p.tile(i, k))) < epoch, "a tile ran twice"
        yield Access("write", p.tile(i, k), epoch)

    def reached(self, s: str, i: int, target: int) -> Steps:
        return (yield self.at("reached load done", f"{s}.done{i}")) >= target

    def credit(self, p: Program, s: str, i: int, tiles: int, target: int) -> Steps:
        if (yield self.at("credit add done", f"{s}.done{i}", tiles)) + tiles == target and self.scenario.sleeps:
            if (yield self.at("credit load sleepers", p.of("sleepers"))):
                yield self.at("credit add bell", p.of("bell"), 1)
                yield Access("wake", p.of("bell"), 9)

    def until_reached(self, p: Program, s: str, i: int, target: int) -> Steps:
        """await() of program.c: Python has a keyword of this name."""
        if (yield from self.reached(s, i, target)):
            return
        if not self.scenario.sleeps:
            yield self.at("reached load done", f"{s}.done{i}")._replace(kind="until", b=target)
            return
        yield self.at("await add sleepers", p.of("sleepers"), 1)
        while True:
            seen = yield self.at("await load bell", p.of("bell"))
            if (yield self.at("await load done", f"{s}.done{i}")) >= target:
                break
            yield Access("wait", p.of("bell"), seen)
        yield self.at("await sub sleepers", p.of("sleepers"), 1)

    def walk(self, p: Program, s: str, epoch: int, slot: int, start: int) -> Steps:
        runs = yield self.at("walk load runs", f"{s}.runs")
        for i in range(start, len(p.waves)):
            if slot == 0:
                yield self.at("walk store at", p.of("at"), i)
            finished = 0
            while isinstance(claim := (yield from self.claim_tiles(p, s, i, epoch)), int):
                yield from self.execute(p, i, claim, epoch, slot)
                finished += 1
            if claim == "stale":
                assert not finished, "a tile was run but not counted"
                return
            target = runs * p.waves[i]
            if finished:
                yield from self.credit(p, s, i, finished, target)
            yield from self.until_reached(p, s, i, target)

    def program_assist(self, p: Program, r: tuple[int, bool], slot: int) -> Steps:
        start = yield self.at("program_assist load at", p.of("at"))
        yield from self.walk(p, p.of(str(int(r[1]))), r[0], slot, start)
        yield Access("read", p.of("memory"))

    def run_schedule(self, p: Program, stepwise: bool, turn: int, fresh: bool) -> Steps:
        yield Access("write", p.of("words"), turn)
        s = p.of(str(int(stepwise)))
        if fresh:
            epoch = yield from self.seat_epoch(p.seat)
            for i in range(len(p.waves)):
                yield self.at("run_schedule store next", f"{s}.next{i}", epoch * CLAIMED)
        yield self.at("run_schedule add runs", f"{s}.runs", 1)
        yield self.at("run_schedule store at", p.of("at"), 0)
        epoch, entry = yield from self.seat_open(p, stepwise)
        assert epoch == turn
        yield from self.walk(p, s, epoch, 0, 0)
        yield from self.seat_close(p.seat, entry)
        for i, tiles in enumerate(p.waves):
            for k in range(tiles):
                assert (yield Access("read", p.tile(i, k))) == turn, "the run ended before its tiles"

    # ---- the program that calls them ----

    def call(self, calls: tuple[tuple[int, bool | None], ...]) -> Thread:
        turn, last, taken = 0, (calls[0][0], None if self.scenario.fresh else False), -1
        for number, stepwise in calls:
            p = self.scenario.programs[number]
            if stepwise is None:
                yield from self.seat_give(p.seat)
                yield Access("write", p.of("memory"))
                continue
            if self.scenario.reused and taken != number:
                yield from self.seat_take(number)
                taken = number
            turn += 1
            yield from self.run_schedule(p, stepwise, turn, last != (number, stepwise))
            last = (number, stepwise)

    def seats(self) -> list[str]:
        return list(dict.fromkeys(p.seat for p in self.scenario.programs))

    def explore(self, most: int = 10_000_000) -> Exploration:
        programs, reused, sleeps = self.scenario.programs, self.scenario.reused, self.scenario.sleeps
        places, plains = {"bell": 0} | ({"parked": 0} if sleeps else {}), list[str]()
        places |= {"announced": 0} if self.scenario.looks else {}
        places |= {f"open{i}": 0 for i in range(self.scenario.entries)}
        for s in self.seats():
            places |= {f"{s}.state": 0, f"{s}.slots": int(not reused)} | ({f"{s}.limit": 0} if reused else {})
            plains += [f"{s}.memory", f"{s}.program"] if reused else []
        for p in programs:
            places |= p.places(sleeps)
            plains += p.plains()
        worker = self.work if sleeps else self.spin
        callers: list[Callable[[], Thread]] = [partial(self.call, calls) for calls in self.scenario.calls]
        return explore([*callers, *[worker] * self.scenario.workers], places, plains, most)
