"""The CPUs and the memory that this process may use, by its affinity and the limits of its control groups."""

from __future__ import annotations

import functools
import math
import os
import stat
from collections.abc import Iterator

from .memory import installed

PROC, ROOT = "/proc/self/cgroup", "/sys/fs/cgroup"
UNLIMITED = 1 << 60  # version 1 reports more bytes than this where nothing is limited


def quota(proc: str | os.PathLike[str] = PROC, root: str | os.PathLike[str] = ROOT) -> float:
    """Returns the CPUs that this process's control groups allow (the least of versions 1 and 2), or infinity."""
    return min(map(_allowed, groups("cpu", proc, root)), default=math.inf)


def memory_limit(proc: str | os.PathLike[str] = PROC, root: str | os.PathLike[str] = ROOT) -> int | None:
    """Returns the bytes that the control groups of this process allow, as `quota`; None without a limit."""
    limit = min(map(_allowed_bytes, groups("memory", proc, root)), default=UNLIMITED)
    return limit if limit < UNLIMITED else None


@functools.cache
def memory() -> int:
    """Returns the bytes that this process may use: the machine's, or its control groups' limit at the first call."""
    limit = memory_limit()
    return installed() if limit is None else min(limit, installed())


def cores() -> float:
    """Returns the number of CPUs that this process may use, possibly a fraction."""
    return min(float(len(os.sched_getaffinity(0))), quota())


def default_threads() -> int:
    """Returns one thread per CPU that this process may use, counting a fraction as one."""
    return max(1, math.ceil(cores()))


def groups(controller: str, proc: str | os.PathLike[str], root: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the directories of this process's control groups that limit something, and of their ancestors."""
    for line in _text(proc).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            mounts = [os.fspath(root), os.path.join(root, "unified")]
        elif controller in controllers.split(","):
            mounts = [os.path.join(root, controllers), os.path.join(root, controller)]
        else:
            continue
        for mount in mounts:
            yield from _up(mount, group)


def _up(mount: str, group: str) -> Iterator[str]:
    """Yields the directories of a group and of its ancestors. Inside a container the path may be the host's; then only
    the mount exists."""
    parts = [p for p in group.split("/") if p not in ("", "..")]
    for n in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:n])


def _allowed(directory: str) -> float:
    def text(name: str) -> str:
        return _text(os.path.join(directory, name)).strip()

    words = text("cpu.max").split() or [text("cpu.cfs_quota_us"), text("cpu.cfs_period_us")]
    try:
        share, period = (int(w) for w in words)
    except ValueError:  # "max", or no such file
        return math.inf
    return share / period if share > 0 and period > 0 else math.inf


def _allowed_bytes(directory: str) -> int:
    words = [_text(os.path.join(directory, name)).strip() for name in ("memory.max", "memory.limit_in_bytes")]
    return min((int(w) for w in words if w.isdecimal()), default=UNLIMITED)


def _text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a file, empty if it is missing or unreadable, or would block as a pipe does."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except (OSError, ValueError):
        return ""
