"""CPUs as the kernel manages them: affinity, threads of cores, NUMA nodes, clock frequency, time that others took."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .tree import FileTree, cpu_list, cpu_ranges, whole

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"


@dataclass(frozen=True)
class CpuTopology:
    """online: CPUs of the machine. allowed: those of this process, as a list in Linux's form. cores: physical cores of
    these. smt: threads of the busiest core. Numbers are None if unknown."""

    online: int | None
    allowed: str
    cores: int | None
    smt: int | None


@dataclass(frozen=True)
class NumaNode:
    """cpus: as a list in Linux's form. memory: bytes, None if unknown."""

    node: int
    cpus: str
    memory: int | None


@dataclass(frozen=True)
class ClockFrequency:
    """governors: number of CPUs by their governor. boost: None if the kernel does not show it; `switch` is the file
    that turns it on and `on` what it then contains. highest: MHz."""

    driver: str
    governors: Mapping[str, int] = field(default_factory=dict)
    boost: bool | None = None
    switch: str = ""
    on: int = 1
    highest: float | None = None


@dataclass(frozen=True)
class CpuTime:
    """Ticks of all CPUs since the start of the machine: all of them, and those that other guests took."""

    total: int
    steal: int


def affinity() -> frozenset[int]:
    """Returns the CPUs that this process may use."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # another system than Linux
        return frozenset(range(os.cpu_count() or 1))


def topology(tree: FileTree, allowed: frozenset[int]) -> CpuTopology:
    online = cpu_list(tree.text(f"{CPUS}/online"))
    siblings = {
        cpu: cpu_list(tree.text(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list")) or None for cpu in sorted(allowed)
    }
    known = [group for group in siblings.values() if group]
    complete = len(known) == len(allowed) > 0
    return CpuTopology(
        online=len(online) or None,
        allowed=cpu_ranges(allowed),
        cores=len(set(known)) if complete else None,
        smt=max(map(len, known)) if complete else None,
    )


def numa(tree: FileTree) -> list[NumaNode]:
    """Returns the nodes that have CPUs or memory; none if the kernel does not show them."""
    nodes = []
    for name in tree.names(NODES, "node[0-9]*"):
        number = whole(name.removeprefix("node"))
        if number is None:
            continue
        kilobytes = tree.fields(f"{NODES}/{name}/meminfo", ":").get(f"Node {number} MemTotal", "")
        memory = whole(kilobytes)
        cpus = cpu_ranges(cpu_list(tree.text(f"{NODES}/{name}/cpulist")))
        if cpus or memory:
            nodes.append(NumaNode(number, cpus, None if memory is None else memory << 10))
    return sorted(nodes, key=lambda node: node.node)


def frequency(tree: FileTree) -> ClockFrequency:
    policies = tree.names(f"{CPUS}/cpufreq", "policy[0-9]*")
    governors: Counter[str] = Counter()
    highest = 0
    for policy in policies:
        folder = f"{CPUS}/cpufreq/{policy}"
        if governor := tree.text(f"{folder}/scaling_governor"):
            governors[governor] += len(tree.text(f"{folder}/affected_cpus").split()) or 1
        highest = max(highest, tree.number(f"{folder}/cpuinfo_max_freq") or 0)
    driver = tree.text(f"{CPUS}/cpufreq/{policies[0]}/scaling_driver") if policies else ""
    switches = ((f"{CPUS}/cpufreq/boost", 1), (f"{CPUS}/intel_pstate/no_turbo", 0))
    for switch, on in switches:
        if (now := tree.number(switch)) is not None:
            return ClockFrequency(driver, dict(governors), now == on, "/" + switch, on, highest / 1e3 or None)
    return ClockFrequency(driver, dict(governors), highest=highest / 1e3 or None)


def cpu_time(tree: FileTree) -> CpuTime | None:
    """Returns the times of /proc/stat (proc(5)), None without them."""
    for line in tree.text("proc/stat").splitlines():
        name, *words = line.split()
        if name == "cpu":
            ticks = [whole(word) for word in words[:8]]  # the two behind are part of these
            known = [t for t in ticks if t is not None]
            return CpuTime(sum(known), known[7]) if len(known) == 8 else None
    return None


def stolen(before: CpuTime | None, after: CpuTime | None) -> float | None:
    """Returns the share of CPU time between two readings that other guests of the host took; None if unknown."""
    if before is None or after is None or after.total <= before.total:
        return None
    return min(max(after.steal - before.steal, 0) / (after.total - before.total), 1.0)
