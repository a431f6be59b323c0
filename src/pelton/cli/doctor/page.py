"""The report of `pelton doctor` for people: the machine, the working features, then what to mend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pelton import variables
from pelton.errors import near

from .. import text

Row = tuple[str, str]


def format_facts(found: Mapping[str, Any]) -> str:
    """Formats facts for people."""
    machine = found["machine"]
    read = "problem" not in machine
    rows = [
        ("Pelton", f"{found['pelton']}, Python {found['python']} ({found['executable']})"),
        ("system", _system(machine["system"]) if read else found["platform"]),
        *_cpu(found["cpu"]),
        *(_processors(machine) if read else ()),
        *_memory(found["memory"]),
        *(_memory_system(machine) if read else ()),
        ("compiler", found["compiler"].get("version", "none")),
        *_gpu(found["gpu"]),
        *(_nvidia(machine["cuda"]) if read else ()),
        *(_container(machine["container"]) if read else ()),
        *_cache(found["cache"]),
        *_environment(found),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {text.printable(value)}".rstrip() for name, value in rows]
    lines += ["", text.table(_uses(found), "lll", heading=False)]
    problems = [
        (name, found[name]["problem"])
        for name in ("cpu", "compiler", "gpu", "cache", "machine")
        if "problem" in found[name]
    ]
    if problems:
        lines += ["", *(f"{name}: {why}" for name, why in problems)]
    if found["advice"]:
        lines += ["", *_advice(found["advice"])]
    return "\n".join(lines)


def _system(system: Mapping[str, Any]) -> str:
    parts = [system["distribution"], system["libc"], f"kernel {system['kernel']}"]
    where = [("wsl", "Windows' Linux (WSL)"), ("virtual", "in a virtual machine")]
    parts += [said for key, said in where if system[key]][:1]
    return ", ".join(filter(None, parts))


def _cpu(cpu: Mapping[str, Any]) -> Iterator[Row]:
    if "model" in cpu:
        caches = ", ".join(f"{name} {text.size(size)}" for name, size in cpu["caches"].items())
        limited = "" if cpu["quota"] is None else f", limited by the control group to {cpu['quota']:g}"
        yield "CPU", f"{cpu['model']}: {cpu['cores']:g} for this process{limited}"
        yield "", f"{cpu['isa']}; {caches or 'caches unknown'}"
        yield "builds for", cpu["target"]


def _processors(machine: Mapping[str, Any]) -> Iterator[Row]:
    topology, group = machine["topology"], machine["control_group"]
    cores = topology["cores"]
    threads = "" if topology["smt"] in (None, 1) else f", {topology['smt']} threads each"
    on = "" if cores is None else f" on {text.count(cores, 'core')}{threads}"
    of = "" if topology["online"] is None else f" of {topology['online']}"
    yield "affinity", f"CPUs {topology['allowed']}{of}{on}"
    if group["version"]:
        quota = "no CPU quota" if group["quota"] is None else f"{group['quota']:g} CPUs"
        subset = f", CPUs {group['cpuset']}" if group["cpuset"] else ""
        stopped = "" if group["throttled"] is None else f", stopped in {group['throttled']:.0%} of the periods"
        yield "control groups", f"version {group['version']}: {quota}{subset}{stopped}"
    yield "clock", _clock(machine["clock"])
    shares = [(name, machine["steal"][key]) for name, key in (("now", "interval"), ("since the start", "boot"))]
    if known := [f"{share:.1%} {name}" for name, share in shares if share is not None]:
        yield "steal time", ", ".join(known)


def _clock(clock: Mapping[str, Any]) -> str:
    governors = ", ".join(f"{name} on {count}" for name, count in clock["governors"].items())
    boost = {True: ["boost on"], False: ["boost off"], None: []}[clock["boost"]]
    highest = [] if clock["highest"] is None else [f"up to {clock['highest'] / 1e3:.1f} GHz"]
    known = [*([f"governor {governors}"] if governors else []), *boost, *highest]
    return ", ".join(known) or "not shown by the kernel"


def _memory(memory: Mapping[str, Any]) -> Iterator[Row]:
    installed, limit = memory["installed"], memory["limit"]
    size = "unknown" if installed is None else text.size(installed)
    yield "memory", size + (f", limited to {text.size(limit)}" if limit else "")


def _memory_system(machine: Mapping[str, Any]) -> Iterator[Row]:
    if rate := machine["bandwidth"]:
        expected = "" if rate["expected"] is None else f" of {rate['expected']:.0f} that the CPU has"
        yield "bandwidth", f"{rate['rate']:.1f} GB/s{expected}, read by {text.count(rate['threads'], 'thread')} now"
    if nodes := machine["numa"]:
        yield "NUMA", "; ".join(f"node {n['node']}: CPUs {n['cpus'] or 'none'}" for n in nodes)
    if (pages := machine["huge_pages"])["mode"]:
        yield "huge pages", f"{pages['mode']}, defragmentation {pages['defrag'] or 'unknown'}"


def _gpu(gpu: Mapping[str, Any]) -> Iterator[Row]:
    yield "GPU", f"{gpu['model']}, {gpu['isa']}, {text.size(gpu['memory'])}" if "model" in gpu else "none"


def _nvidia(cuda: Mapping[str, Any]) -> Iterator[Row]:
    if cuda["module"] or cuda["library"] or cuda["api"]:
        flavor = " (open module)" if cuda["open"] else ""
        newest = f", up to CUDA {cuda['api']}" if cuda["api"] else ""
        version = f"{cuda['module']}{flavor}" if cuda["module"] else "kernel module not loaded"
        yield "NVIDIA driver", version + newest + (f", {cuda['library']}" if cuda["library"] else "")
    for toolkit in cuda["toolkits"]:
        yield "CUDA toolkit", f"{toolkit['version'] or 'version unknown'}, {toolkit['path']} (engines need none)"
    for library in cuda["libraries"]:
        yield library["name"], f"{library['version'] or 'version unknown'}, {library['path']}"


def _container(container: Mapping[str, Any]) -> Iterator[Row]:
    installed = ", ".join(container["installed"]) or "no runtime"
    inside = f"inside {container['inside']}" if container["inside"] else "not in a container"
    yield "containers", f"{inside}; {installed} installed"


def _cache(kept: Mapping[str, Any]) -> Iterator[Row]:
    if "directory" in kept:
        yield "cache", f"{kept['directory']}: {text.size(kept['bytes'])} of at most {text.size(kept['limit'])}"


def _environment(found: Mapping[str, Any]) -> Iterator[Row]:
    for name, value in found["environment"].items():
        unknown = f": there is no such variable{near(name, variables.VARIABLES)}" if name in found["unknown"] else ""
        yield name, value + unknown


def _uses(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    uses = [
        (
            "no " if use["missing"] else "yes",
            use["use"],
            f"{', '.join(use['missing'])} missing: {use['mend']}"
            if use["missing"]
            else ", ".join(f"{p} {v}" for p, v in use["packages"].items()),
        )
        for use in found["uses"]
    ]
    return uses + [
        ("yes" if folder else "no ", f"convert models of {name}", folder or f"pelton import-env {name}")
        for name, folder in found["frameworks"].items()
    ]


def _advice(advice: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for each piece of advice, and one for its command."""
    for item in advice:
        yield f"{item['about']}: {text.printable(item['what'])}"
        if item["mend"]:
            place = "on the host: " if item["place"] == "host" else ""
            yield f"  {place}{item['mend']}"
