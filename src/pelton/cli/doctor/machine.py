"""The facts of `pelton doctor` about the machine, with the advice that follows from them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pelton.system.probes import bandwidth, containers, cuda, groups, kernel, processors
from pelton.system.probes.tree import FileTree, cpu_list, whole
from pelton.system.share import default_threads

from . import advice, fits

LATELY = 0.1  # seconds between two readings of the time that other guests took, if nothing is measured between them


@dataclass(frozen=True)
class MachineFacts:
    """What the probes read. expected: GB/s that the CPU's memory should give, None if unknown. interval, boot: shares
    of CPU time that other guests took, during the measurement and since the start of the machine."""

    system: kernel.OperatingSystem
    topology: processors.CpuTopology
    group: groups.ControlGroup
    numa: list[processors.NumaNode]
    pages: kernel.HugePages
    clock: processors.ClockFrequency
    container: containers.ContainerRuntime
    driver: cuda.CudaDriver
    toolkits: list[cuda.CudaToolkit]
    libraries: list[cuda.CudaLibrary]
    available: int | None
    bandwidth: bandwidth.MemoryBandwidth | None
    expected: float | None
    interval: float | None
    boot: float | None


def read(tree: FileTree, caches: Mapping[str, int], expected: float | None = None, timed: bool = True) -> MachineFacts:
    """Reads the facts below a root. caches: bytes of a core's caches, as in `backends.cpu.describe`; expected: GB/s of
    this CPU by its maker; timed: measures the memory, which takes 0.3 s."""
    allowed = processors.affinity()
    group = groups.control_group(tree)
    kilobytes = whole(tree.fields("proc/meminfo", ":").get("MemAvailable", ""))
    available = None if kilobytes is None else kilobytes << 10
    before, rate = processors.cpu_time(tree), None
    if timed:
        last = max(caches.values(), default=0)
        free = min((n for n in (available, group.memory) if n is not None), default=None)
        rate = bandwidth.measure(bandwidth.cache_bytes(tree, sorted(allowed), last), default_threads(), free)
        if rate is None:
            time.sleep(LATELY)
    after = processors.cpu_time(tree)
    return MachineFacts(
        system=kernel.operating_system(tree),
        topology=processors.topology(tree, allowed),
        group=group,
        numa=processors.numa(tree),
        pages=kernel.huge_pages(tree),
        clock=processors.frequency(tree),
        container=containers.containers(tree),
        driver=cuda.driver(tree),
        toolkits=cuda.toolkits(tree),
        libraries=cuda.libraries(tree),
        available=available,
        bandwidth=rate,
        expected=expected,
        interval=processors.stolen(before, after),
        boot=processors.stolen(processors.CpuTime(0, 0), after),
    )


def advise(facts: MachineFacts) -> list[advice.Advice]:
    """Returns the advice about a machine, problems of the CPU first."""
    allowed = cpu_list(facts.topology.allowed)
    inside = bool(facts.container.inside)
    nodes = [node for node in facts.numa if allowed & cpu_list(node.cpus)]
    cpupower = shutil.which("cpupower") is not None
    rate = facts.bandwidth.rate if facts.bandwidth else float("inf")
    update = advice.DRIVER.get(facts.system.manager)
    users = {"cuda-bindings": fits.installed("cuda-bindings"), "torch": fits.torch_cuda()}
    users |= {f"the toolkit in {toolkit.path}": toolkit.version or None for toolkit in facts.toolkits}
    return [
        *advice.limits(facts.group, facts.topology, len(allowed)),
        *advice.clocks(facts.clock, facts.system, cpupower, inside),
        *advice.time_share(facts.interval, facts.boot),
        *advice.pages(facts.pages, inside),
        *advice.nodes(facts.numa, nodes),
        *advice.bandwidth(rate, facts.expected, facts.system.load, len(allowed)),
        *advice.loading(facts.system, inside),
        *advice.gpus(facts.driver, facts.system, facts.container),
        *fits.drivers(facts.driver, users, update),
        *fits.library_pairs(facts.libraries),
    ]


def plain(facts: MachineFacts) -> dict[str, Any]:
    """Returns the facts as plain data, by the keys of --json."""
    rate = facts.bandwidth
    return {
        "system": asdict(facts.system),
        "topology": asdict(facts.topology),
        "control_group": asdict(facts.group),
        "numa": [asdict(node) for node in facts.numa],
        "huge_pages": asdict(facts.pages),
        "clock": asdict(facts.clock),
        "steal": {"interval": facts.interval, "boot": facts.boot},
        "bandwidth": None if rate is None else {**asdict(rate), "expected": facts.expected},
        "container": asdict(facts.container),
        "cuda": {
            **asdict(facts.driver),
            "toolkits": [asdict(toolkit) for toolkit in facts.toolkits],
            "libraries": [asdict(library) for library in facts.libraries],
        },
    }
