"""Describes the CPU: model, instruction sets, caches."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import lru_cache
from itertools import count, takewhile
from typing import Any

from pelton.system.share import cores
from pelton.targets import ISAS, LEVELS, fits

from pelton.native import library

_EAX, _EBX, _ECX, _EDX = range(4)


@lru_cache(maxsize=1)
def identity() -> Mapping[str, Any]:
    """Returns the report of CPUID, Pelton's only source about the CPU: tests replace this to imitate another one."""
    lib = library()

    def cpuid(leaf: int, subleaf: int = 0) -> tuple[int, ...]:
        out = (ctypes.c_uint32 * 4)()
        lib.pelton_cpuid(leaf, subleaf, out)
        return tuple(out)

    vendor = b"".join(r.to_bytes(4, "little") for r in (cpuid(0)[i] for i in (_EBX, _EDX, _ECX))).decode(
        "ascii", "replace"
    )
    brand = b"".join(r.to_bytes(4, "little") for leaf in range(0x80000002, 0x80000005) for r in cpuid(leaf))
    signature = cpuid(1)[_EAX]
    family, model = signature >> 8 & 15, signature >> 4 & 15
    if family in (6, 15):
        model |= (signature >> 16 & 15) << 4
    if family == 15:
        family += signature >> 20 & 255
    names = takewhile(lambda name: name is not None, map(lib.pelton_cpu_feature, count()))
    features = sorted(name.decode() for name in names if name)
    caches = {}
    for i in range(8):
        kind, geometry, sets, _ = cpuid(0x8000001D if vendor == "AuthenticAMD" else 4, i)
        if kind & 31 == 0:
            break
        line, partitions, ways = (geometry & 4095) + 1, (geometry >> 12 & 1023) + 1, (geometry >> 22) + 1
        caches[f"l{kind >> 5 & 7}" + {1: "d", 2: "i"}.get(kind & 31, "")] = line * partitions * ways * (sets + 1)
    return {
        "arch": "x86_64",
        "vendor": vendor,
        "family": family,
        "cpu_model": model,
        "stepping": signature & 15,
        "model": (
            " ".join(brand.split(b"\0")[0].decode("ascii", "replace").split())
            or f"{vendor} family {family} model {model}"
        ),
        "features": tuple(features),
        "caches": caches,
    }


def describe() -> dict[str, Any]:
    """Returns arch, vendor, family, cpu_model, stepping, model (the marketing name), features (by the compiler's
    names), isa (the highest of LEVELS), caches (bytes of "l1d", "l1i", "l2", "l3" for one core) and cores (CPUs this
    process may use)."""
    known = identity()
    *_, isa = (known["arch"], *(level for level in LEVELS if fits(level, known)))
    return {**known, "isa": isa, "caches": dict(known["caches"]), "cores": cores()}


def target(isa: str) -> dict[str, Any]:
    """Returns the target of an engine built here for an ISA level; names this CPU if it has that level."""
    known = identity()
    here = {"cpu": known["model"]} if fits(isa, known) else {}
    return {"os": sys.platform, "arch": ISAS[isa].arch, "isa": isa, "features": list(LEVELS[isa]), **here}
