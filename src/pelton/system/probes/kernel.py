"""The operating system: distribution, C library, kernel, hypervisor, load, and transparent huge pages."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass

from .tree import FileTree, whole

# The first words of ID and ID_LIKE in /etc/os-release that a package manager serves.
MANAGERS = {
    "apt": ("debian", "ubuntu"),
    "dnf": ("rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn"),
    "zypper": ("suse", "opensuse", "sles", "opensuse-leap", "opensuse-tumbleweed"),
    "pacman": ("arch",),
    "apk": ("alpine",),
}


@dataclass(frozen=True)
class OperatingSystem:
    """distribution: its name and version. family: ID of /etc/os-release; manager: its package manager, empty if
    unknown. libc: as "glibc 2.36". load: running processes in the last minute. memfd: vm.memfd_noexec, None on kernels
    without it."""

    distribution: str
    family: str
    version: str
    manager: str
    kernel: str
    libc: str
    wsl: bool
    virtual: bool
    load: float | None
    memfd: int | None


@dataclass(frozen=True)
class HugePages:
    """mode and defrag: the choice of /sys/kernel/mm/transparent_hugepage, empty on kernels without them. used: bytes in
    huge pages on this machine now."""

    mode: str
    defrag: str
    used: int | None


def operating_system(tree: FileTree) -> OperatingSystem:
    release = tree.fields("etc/os-release", "=") or tree.fields("usr/lib/os-release", "=")
    family = release.get("ID", "")
    likes = [family, *release.get("ID_LIKE", "").split()]
    served = (name for like in likes for name, families in MANAGERS.items() if like in families)
    kernel = tree.text("proc/sys/kernel/osrelease") or platform.release()
    load = re.match(r"\d{1,9}\.\d{1,9}", tree.text("proc/loadavg"))
    return OperatingSystem(
        distribution=release.get("PRETTY_NAME", "") or f"{platform.system()} {platform.release()}",
        family=family,
        version=release.get("VERSION_ID", ""),
        manager=next(served, ""),
        kernel=kernel,
        libc=_libc(),
        wsl="microsoft" in kernel.lower(),
        virtual="hypervisor" in tree.fields("proc/cpuinfo", ":").get("flags", "").split(),
        load=float(load[0]) if load else None,
        memfd=tree.number("proc/sys/vm/memfd_noexec"),
    )


def _libc() -> str:
    """Returns the C library of this process. Python names glibc alone."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


def huge_pages(tree: FileTree) -> HugePages:
    folder = "sys/kernel/mm/transparent_hugepage/"
    kilobytes = whole(tree.fields("proc/meminfo", ":").get("AnonHugePages", ""))
    return HugePages(
        _chosen(tree.text(folder + "enabled")),
        _chosen(tree.text(folder + "defrag")),
        None if kilobytes is None else kilobytes << 10,
    )


def _chosen(text: str) -> str:
    """Returns the word in brackets: `always [madvise] never`."""
    match = re.search(r"\[([\w+-]{1,40})\]", text)
    return match[1] if match else ""
