"""The devices of an advice: rows of the catalog, profile files, and this machine's CPU, each with its roof."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pelton.backends import cpu
from pelton.errors import InputError
from pelton.system.share import default_threads
from pelton.tuning.peak import peak

from .catalog import Catalog, Hardware
from .predict import RatedDevice
from .profile import BandwidthLevel, DeviceProfile, load_profile, measured_cpu, published

THIS = "cpu:this"
SINCE = 2020  # year of the oldest devices that are compared if none are named
MEASURED = "measured"
CPU_MARKS = re.compile(
    r"\((?:r|tm|c)\)|[®™]|\b\d+(?:th|st|nd|rd) gen\b|\b\d+-cores?\b|\b(?:processor|cpu)\b|@.*|\bwith radeon graphics\b"
)  # in model names of /proc/cpuinfo
CHANNEL = 8  # bytes of a transfer of a memory channel


def choose(names: Sequence[str], catalog: Catalog) -> tuple[list[RatedDevice], list[str]]:
    """Returns the devices of names, patterns and profile files, and why devices were left out. Without names: this CPU,
    and the GPUs of the catalog since 2020 with price, peak and bandwidth.

    A profile holds for all devices of its kind; one of this machine is cpu:this. Raises InputError for names that match
    nothing, and if a device that is named itself has no roof.
    """
    profiles = [load_profile(name) for name in names if is_file(name)]
    for_kind = {p.kind: p for p in profiles}
    devices, left = [of_profile(p, catalog) for p in profiles if p.has_roof], list[str]()
    chosen = [name for name in names if not is_file(name)]
    if not chosen and not devices:
        rows = [d for d in catalog if d.kind == "gpu" and d.year >= SINCE and d.price]
        return [this_cpu(for_kind.get("cpu"), catalog), *rate(rows, for_kind, [])], left
    for name in chosen:
        if name.lower() == THIS:
            devices += [] if any(map(is_this_machine, profiles)) else [this_cpu(for_kind.get("cpu"), catalog)]
            continue
        if name.lower().startswith("cpu:"):
            raise InputError(f"{name!r}: the CPU of this machine is {THIS}; others have names in the catalog")
        rated = rate(catalog.find(name), for_kind, left)
        if not rated:
            raise InputError(left[-1])
        devices += rated
    unique = {d.name: d for d in devices}
    return list(unique.values()), left


def is_file(name: str) -> bool:
    """True for names of profile files."""
    return name.endswith(".toml") or os.sep in name


def rate(rows: Iterable[Hardware], profiles: dict[str, DeviceProfile], left: list[str]) -> list[RatedDevice]:
    """Returns the devices whose roof is published; adds to `left` a sentence for each other."""
    devices = []
    for row in rows:
        gbs = bandwidth(row)
        if gbs is None or not row.dense:
            what = "bandwidth" if gbs is None else "peaks"
            left.append(f"{row.name}: no source states its {what}; add it by --catalog")
            continue
        own = profiles.get(row.kind)
        devices.append(
            RatedDevice(
                row.name,
                row.kind,
                dict(row.dense),
                (BandwidthLevel("memory", gbs),),
                row.memory_gb,
                row.power_w,
                row.price,
                own if own and own.holds_for(row) else published(row),
                "quoted",
                runs=row.kind == "cpu" or row.vendor == "NVIDIA",
            )
        )
    return devices


def bandwidth(row: Hardware) -> float | None:
    """Returns the bandwidth of a device in GB/s: published, or that of its memory channels; None if unknown."""
    if row.bandwidth_gbs is not None:
        return row.bandwidth_gbs
    if row.channels and row.memory_mtps:
        return row.channels * row.memory_mtps * CHANNEL / 1e3
    return None


def of_profile(profile: DeviceProfile, catalog: Iterable[Hardware] = ()) -> RatedDevice:
    """Returns the measured machine of a profile that has its roof, with the price and power of its CPU's row in the
    catalog."""
    row = row_of_cpu(str(profile.machine.get("cpu", "")), catalog) if profile.kind == "cpu" else None
    memory = profile.machine.get("memory_gb")
    known_power, price = (row.power_w, row.price) if row else (None, None)
    power = profile.machine.get("power_w", known_power)
    d = RatedDevice(
        profile.name, profile.kind, dict(profile.peaks), profile.levels, memory, power, price, profile, MEASURED
    )
    return replace(d, own=True, here=is_this_machine(profile))


def is_this_machine(profile: DeviceProfile) -> bool:
    """True if a profile was measured on a CPU of this name, with as many threads and the same instruction set."""
    known, of = cpu.describe(), profile.machine
    same = (of.get("cpu"), of.get("isa"), of.get("threads")) == (known["model"], known["isa"], default_threads())
    return profile.has_roof and same


def row_of_cpu(model: str, catalog: Iterable[Hardware]) -> Hardware | None:
    """Returns the CPU of the catalog that a system calls by this model name; None if there is none, or several.

    Marks of trade, generation, number of cores and clock do not count: "13th Gen Intel(R) Core(TM) i9-13900K" is Intel
    Core i9-13900K. The rest must be a name or an alias, word by word: an EPYC 7302P is no EPYC 7302.
    """
    words = cpu_words(model)
    rows = [d for d in catalog if d.kind == "cpu" and any(cpu_words(n) == words for n in (d.name, *d.aliases))]
    return rows[0] if words and len(rows) == 1 else None


def cpu_words(name: str) -> str:
    """Returns the words of a CPU's name that tell it from others, in lower case."""
    return " ".join(CPU_MARKS.sub(" ", name.lower()).split())


def this_cpu(profile: DeviceProfile | None = None, catalog: Iterable[Hardware] = ()) -> RatedDevice:
    """Returns this machine's CPU; measures its roof in FP32 and its bandwidth (a second), as it has no profile of its
    own. profile: efficiencies of CPUs, by default those that come with Pelton. Price and power are those of its row in
    the catalog. BuildError without a compiler."""
    known, threads = cpu.describe(), default_threads()
    gflops, gbs = peak(known["isa"], threads)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    name = f"{THIS} ({known['model']}, {threads} threads)"
    levels = (BandwidthLevel("memory", gbs),)
    chosen, row = profile or measured_cpu(), row_of_cpu(known["model"], catalog)
    power, price = (row.power_w, row.price) if row else (None, None)
    return RatedDevice(name, "cpu", {"fp32": gflops / 1e3}, levels, memory, power, price, chosen, MEASURED, here=True)
