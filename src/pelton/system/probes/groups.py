"""Limits of this process's control groups (versions 1 and 2), and how often they stopped it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .. import share
from .tree import FileTree, cpu_list, cpu_ranges


@dataclass(frozen=True)
class ControlGroup:
    """version: "1", "2", "1 and 2", or empty without control groups. quota: CPUs, None without a limit. cpuset: CPUs as
    a list in Linux's form, empty without a limit. memory: bytes. throttled: share of periods in which the quota stopped
    this group, None if unknown."""

    version: str
    quota: float | None
    cpuset: str
    memory: int | None
    throttled: float | None


def control_group(tree: FileTree) -> ControlGroup:
    proc, root = tree.path("proc/self/cgroup"), tree.path("sys/fs/cgroup")
    allowed = share.quota(proc, root)
    return ControlGroup(
        version=_version(tree),
        quota=None if math.isinf(allowed) else allowed,
        cpuset=_cpuset(tree, proc, root),
        memory=share.memory_limit(proc, root),
        throttled=_throttled(tree, proc, root),
    )


def _version(tree: FileTree) -> str:
    """Returns the versions whose controllers can limit this process."""
    unified = bool(
        tree.text("sys/fs/cgroup/cgroup.controllers") or tree.text("sys/fs/cgroup/unified/cgroup.controllers")
    )
    names = (line.split(":")[1] for line in tree.text("proc/self/cgroup").splitlines() if line.count(":") >= 2)
    old = any(name and not name.startswith("name=") for name in names)
    return " and ".join(name for name, here in (("1", old), ("2", unified)) if here)


def _cpuset(tree: FileTree, proc: str, root: str) -> str:
    for folder in share.groups("cpuset", proc, root):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if cpus := cpu_list(tree.text(f"{folder}/{name}")):
                online = cpu_list(tree.text("sys/devices/system/cpu/online"))
                return "" if cpus >= online and online else cpu_ranges(cpus)
    return ""


def _throttled(tree: FileTree, proc: str, root: str) -> float | None:
    for folder in share.groups("cpu", proc, root):
        counts = dict(line.split(None, 1) for line in tree.text(f"{folder}/cpu.stat").splitlines() if " " in line)
        try:
            periods, stopped = int(counts["nr_periods"]), int(counts["nr_throttled"])
        except (KeyError, ValueError):
            continue
        if periods > 0:
            return min(stopped / periods, 1.0)
    return None
