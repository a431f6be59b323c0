"""Advice about a machine: what is wrong or slow, and the command that mends it. Functions of facts alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.system.probes.containers import ContainerRuntime
from pelton.system.probes.cuda import CudaDriver
from pelton.system.probes.groups import ControlGroup
from pelton.system.probes.kernel import HugePages, OperatingSystem
from pelton.system.probes.processors import ClockFrequency, CpuTopology, NumaNode

STOLEN = 0.02  # share of CPU time that other guests take before it is worth a word
THROTTLED = 0.01  # share of periods in which the quota stopped the process
SLOW = 0.6  # share of the bandwidth of a CPU that one measurement should reach
# → the command that installs cpupower, by the distribution or its package manager
CPUPOWER = {
    "ubuntu": "apt-get install linux-tools-common linux-tools-$(uname -r)",
    "apt": "apt-get install linux-cpupower",
    "dnf": "dnf install kernel-tools",
    "zypper": "zypper install cpupower",
    "pacman": "pacman -S cpupower",
    "apk": "apk add cpupower",
}
# NVIDIA's driver, from its package repository (docs/install-gpu.md), by package manager
DRIVER = {
    "apt": "sudo apt-get install nvidia-open",
    "dnf": "sudo dnf install nvidia-open",
    "zypper": "sudo zypper install nvidia-open",
}
TOOLKIT = {
    "apt": "sudo apt-get install nvidia-container-toolkit",
    "dnf": "sudo dnf install nvidia-container-toolkit",
    "zypper": "sudo zypper install nvidia-container-toolkit",
}
PAGE = "docs/install-gpu.md"


@dataclass(frozen=True)
class Advice:
    """about: the part of the machine. what: one sentence. mend: a command, None if no command mends it. place: "host"
    if the command belongs outside of the container."""

    about: str
    what: str
    mend: str | None = None
    place: str = "here"


def limits(group: ControlGroup, topology: CpuTopology, cpus: int) -> list[Advice]:
    """cpus: those of the affinity."""
    found = []
    if group.quota is not None and group.quota < cpus:
        threads = max(1, math.ceil(group.quota))
        whole = group.quota == threads
        found.append(
            Advice(
                "cpu",
                f"the control group allows {group.quota:g} of {cpus} CPUs: Pelton runs {threads} threads by default; "
                "build engines for as many, and limit other libraries to them"
                + ("" if whole else f"; they stop {1 - group.quota / threads:.0%} of the time, so set a whole number"),
                f"pelton build model.onnx --threads {threads}"
                if whole
                else f"docker update --cpus {threads} CONTAINER",
                "here" if whole else "host",
            )
        )
    if group.throttled is not None and group.throttled > THROTTLED:
        found.append(
            Advice(
                "cpu",
                f"the control group's quota stopped this process in {group.throttled:.0%} of the periods: "
                "more threads run than it allows",
                f"export OMP_NUM_THREADS={max(1, math.floor(group.quota or cpus))}",
            )
        )
    return found


def pages(pages: HugePages, inside: bool) -> list[Advice]:
    if pages.mode != "never":
        return []
    return [
        Advice(
            "memory",
            "transparent huge pages are off: the memory of contexts is in pages of 4 kB, so first runs take longer, "
            "and more addresses miss the TLB",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "host" if inside else "here",
        )
    ]


def clocks(clock: ClockFrequency, system: OperatingSystem, cpupower: bool, inside: bool) -> list[Advice]:
    place, found = "host" if inside else "here", []
    if slow := {name: count for name, count in clock.governors.items() if name != "performance"}:
        package = CPUPOWER.get(system.family) or CPUPOWER.get(system.manager)
        install = "" if cpupower or package is None else f"sudo {package} && "
        names = ", ".join(f"{name} on {count}" for name, count in slow.items())
        found.append(
            Advice(
                "cpu",
                f"the frequency governor is not performance ({names} CPUs): clocks rise only after a run began",
                f"{install}sudo cpupower frequency-set -g performance",
                place,
            )
        )
    if clock.boost is False:
        found.append(Advice("cpu", "boost clocks are off", f"echo {clock.on} | sudo tee {clock.switch}", place))
    return found


def time_share(interval: float | None, boot: float | None) -> list[Advice]:
    """interval, boot: shares of CPU time that other guests took, lately and since the start of the machine."""
    share = max((s for s in (interval, boot) if s is not None), default=0.0)
    if share <= STOLEN:
        return []
    return [
        Advice(
            "cpu",
            f"other guests of the host take {share:.0%} of the CPU time: latencies vary; dedicated CPUs end that",
        )
    ]


def nodes(nodes: Sequence[NumaNode], allowed: Sequence[NumaNode]) -> list[Advice]:
    """allowed: the nodes whose CPUs this process may use."""
    if len(allowed) < 2:
        return []
    return [
        Advice(
            "memory",
            f"the CPUs of this process are on {len(allowed)} of {len(nodes)} NUMA nodes: run one process on each, or "
            "threads read weights through the link between them",
            f"numactl --cpunodebind={allowed[0].node} --membind={allowed[0].node} pelton serve FOLDER",
        )
    ]


def bandwidth(rate: float, expected: float | None, load: float | None, cpus: int) -> list[Advice]:
    """rate, expected: GB/s, as measured and of the CPU. Says nothing about a machine that others use."""
    if expected is None or rate >= SLOW * expected or load is not None and load >= 1 + cpus / 2:
        return []
    return [
        Advice(
            "memory",
            f"memory gives {rate:.0f} GB/s, this CPU up to {expected:.0f}: some memory channels may be empty, or the "
            "virtual machine has a part of them",
            "sudo dmidecode --type memory",
        )
    ]


def loading(system: OperatingSystem, inside: bool) -> list[Advice]:
    if system.memfd is None or system.memfd < 2:
        return []
    return [
        Advice(
            "system",
            "the kernel forbids code in anonymous files (vm.memfd_noexec=2): engines are loaded through a temporary "
            "file, in a folder that allows it",
            "docker run --tmpfs /tmp:exec IMAGE" if inside else "sudo sysctl vm.memfd_noexec=1",
            "host" if inside else "here",
        )
    ]


def gpus(driver: CudaDriver, system: OperatingSystem, container: ContainerRuntime) -> list[Advice]:
    """Returns what keeps a GPU of this machine from this process."""
    if system.wsl:
        return _windows(driver)
    found = []
    if driver.gpus and not driver.module:
        others = ", ".join(sorted({name for name in driver.gpus.values() if name})) or "no driver"
        found.append(
            Advice(
                "gpu",
                f"there is an NVIDIA GPU, without NVIDIA's kernel module ({others}): see {PAGE}",
                None if container.inside else DRIVER.get(system.manager),
            )
        )
    if not driver.module:
        return found
    if container.inside and "nvidiactl" not in driver.nodes:
        flag = "--device nvidia.com/gpu=all" if container.inside == "podman" else "--gpus all"
        command = f"{'podman' if container.inside == 'podman' else 'docker'} run {flag} IMAGE"
        found.append(Advice("gpu", "the host has an NVIDIA driver; this container got no GPU", command, "host"))
    elif driver.version and driver.version.count(".") and driver.version != driver.module:
        found.append(
            Advice(
                "gpu",
                f"the kernel runs NVIDIA's module {driver.module}, programs would load libcuda {driver.version}: "
                "the driver was updated without a restart",
                "sudo reboot",
                "host" if container.inside else "here",
            )
        )
    runtimes = {"docker", "podman"} & container.installed.keys()
    if not container.inside and driver.nodes and runtimes and "nvidia-ctk" not in container.installed:
        found.append(
            Advice(
                "gpu",
                f"{' and '.join(sorted(runtimes))} cannot give the GPU to containers without NVIDIA's toolkit for them",
                TOOLKIT.get(system.manager),
            )
        )
    return found


def _windows(driver: CudaDriver) -> list[Advice]:
    """Advice inside WSL, where Windows' driver serves and brings libcuda."""
    if driver.library and "/wsl/" not in driver.library:
        return [
            Advice(
                "gpu",
                f"NVIDIA's Linux driver is installed inside WSL ({driver.library}), where the driver of Windows serves",
                f"sudo apt-get purge $(dpkg -S {driver.library} | cut -d: -f1)",
            )
        ]
    if "dxg" in driver.nodes and not driver.library:
        return [Advice("gpu", f"WSL has a GPU, but no libcuda: install NVIDIA's driver in Windows; see {PAGE}")]
    return []
