"""How much of the machine is ours: affinity and the quota of the control group."""
from __future__ import annotations

import math
import os
from pathlib import Path


def quota(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """CPUs that the control groups of this process allow, the tightest of version 2 and version 1; infinity for no limit."""
    limit = math.inf
    for line in _text(proc).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            mounts = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / controllers, root / "cpu"]
        else:
            continue
        for mount in mounts:
            for directory in _up(mount, group):
                limit = min(limit, _allowed(directory))
    return limit


def cores() -> float:
    """CPUs this process may use, also parts of one."""
    return min(float(len(os.sched_getaffinity(0))), quota())


def default_threads() -> int:
    """One thread per CPU that this process may use, a part counting as one."""
    return max(1, math.ceil(cores()))


def _up(mount: Path, group: str):
    """The directories of a group and of all around it. Inside a container the path may be the host's: then only the mount exists."""
    parts = [p for p in group.split("/") if p not in ("", "..")]
    for n in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:n])


def _allowed(directory: Path) -> float:
    words = _text(directory / "cpu.max").split() or [_text(directory / "cpu.cfs_quota_us").strip(), _text(directory / "cpu.cfs_period_us").strip()]
    try:
        share, period = (int(w) for w in words)
    except ValueError:                                   # "max", or no such file
        return math.inf
    return share / period if share > 0 and period > 0 else math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
