"""Known programs of weak memories, which the machine of memory_machine.c must allow or forbid."""

from __future__ import annotations

from memory_machine import Access, Exploration, Thread, explore


def store(place: str, value: int, order: str = "relaxed") -> Access:
    return Access("store", place, value, order=order)


def load(place: str, order: str = "relaxed") -> Access:
    return Access("load", place, order=order)


def crossing(stores: str, loads: str) -> Exploration:
    """Each of two threads writes its own variable and reads the other's."""

    def thread(own: str, other: str) -> Thread:
        yield store(own, 1, stores)
        missed = int((yield load(other, loads)) == 0)
        assert (yield Access("add", "missed", missed, order="acq_rel")) + missed < 2

    return explore([lambda: thread("x", "y"), lambda: thread("y", "x")], dict(missed=0, x=0, y=0), [])


def message(stores: str, loads: str) -> Exploration:
    def writer() -> Thread:
        yield Access("write", "data", 1)
        yield store("ready", 1, stores)

    def reader() -> Thread:
        if (yield load("ready", loads)):
            assert (yield Access("read", "data")) == 1

    return explore([writer, reader], dict(ready=0), ["data"])


def watchers(loads: str) -> Exploration:
    """Two threads see two stores in different orders."""

    def writer(place: str) -> Thread:
        yield store(place, 1, "seq_cst")

    def watcher(first: str, second: str) -> Thread:
        early = (yield load(first, loads)) == 1
        only = int(early and (yield load(second, loads)) == 0)
        assert (yield Access("add", "both", only, order="acq_rel")) + only < 2

    threads = [lambda: writer("x"), lambda: writer("y"), lambda: watcher("x", "y"), lambda: watcher("y", "x")]
    return explore(threads, dict(both=0, x=0, y=0), [])


def late_load(order: str) -> Exploration:
    """A relaxed load may be made after a seq_cst one that follows it: seq_cst accesses are no fences."""

    def sleeper() -> Thread:
        yield Access("add", "sleepers", 1, order="seq_cst")
        rung = yield load("bell", order)
        assert (yield load("done", "seq_cst")) or not rung

    def finisher() -> Thread:
        yield Access("add", "done", 1, order="seq_cst")
        if (yield load("sleepers", "seq_cst")):
            yield Access("add", "bell", 1, order="release")

    return explore([sleeper, finisher], dict(bell=0, sleepers=0, done=0), [])


def passed_on(order: str) -> Exploration:
    """A read-modify-write hands on what the message before it released."""

    def writer() -> Thread:
        yield Access("write", "data", 1)
        yield store("ready", 1, "release")

    def adder() -> Thread:
        yield Access("add", "ready", 1, order=order)

    def reader() -> Thread:
        if (yield load("ready", "acquire")) == 2:
            yield Access("read", "data")

    return explore([writer, adder, reader], dict(ready=0), ["data"])
