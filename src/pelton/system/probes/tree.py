"""Files of /proc and /sys below a root, read without failing. Tests and containers have other roots."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from fnmatch import fnmatch

LONGEST = 1 << 20  # bytes read of a file
MOST_CPUS = 1 << 16  # CPUs of a list such as 0-63: more are taken for damage


@dataclass(frozen=True)
class FileTree:
    """The files below a root. Names have no leading slash."""

    root: str = "/"

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def text(self, name: str) -> str:
        """Returns the text of a file without surrounding space: empty if it is missing, unreadable or not a file."""
        try:
            if not stat.S_ISREG(os.stat(self.path(name)).st_mode):
                return ""
            with open(self.path(name), "rb") as f:
                return f.read(LONGEST).decode("utf-8", "replace").replace("\0", " ").strip()
        except (OSError, ValueError):
            return ""

    def number(self, name: str) -> int | None:
        """Returns the number at the beginning of a file, None without one."""
        return whole(self.text(name))

    def names(self, folder: str, pattern: str = "*") -> list[str]:
        """Returns the names in a folder that match a pattern, sorted: none if it cannot be listed."""
        try:
            return sorted(n for n in os.listdir(self.path(folder)) if fnmatch(n, pattern))
        except (OSError, ValueError):
            return []

    def exists(self, name: str) -> bool:
        try:
            return os.path.exists(self.path(name))
        except ValueError:
            return False

    def link(self, name: str) -> str:
        """Returns the last part of a symbolic link's target, empty for anything else."""
        try:
            return os.path.basename(os.readlink(self.path(name)))
        except (OSError, ValueError):
            return ""

    def fields(self, name: str, separator: str) -> dict[str, str]:
        """Returns the lines of a file such as /etc/os-release or /proc/meminfo, by their names; the first counts."""
        found: dict[str, str] = {}
        for line in self.text(name).splitlines():
            key, between, value = line.partition(separator)
            if between:
                found.setdefault(key.strip(), value.strip().strip("\"'"))
        return found


def whole(text: str) -> int | None:
    """Returns the whole number that a text begins with, None without one."""
    words = text.split(maxsplit=1)
    try:
        return int(words[0][:20]) if words else None
    except ValueError:
        return None


def cpu_list(text: str) -> frozenset[int]:
    """Returns the CPUs of a list in Linux's form, such as 0-3,8; parts that are none are left out."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = whole(first), whole(last) if dash else whole(first)
        if low is not None and high is not None and 0 <= low <= high < MOST_CPUS:
            cpus.update(range(low, high + 1))
    return frozenset(cpus)


def cpu_ranges(cpus: frozenset[int]) -> str:
    """Formats CPUs as a list in Linux's form."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
