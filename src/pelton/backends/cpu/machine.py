"""Describes the CPU: model, instruction sets, caches."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import lru_cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from pelton.system.share import cores
from pelton.targets import ISAS, LEVELS, fits

from pelton.native import library

_EAX, _EBX, _ECX, _EDX = range(4)


@lru_cache(maxsize=1)
def identity() -> Mapping[str, Any]:
    """Returns the native library's report, Pelton's only source about the CPU: tests replace this to imitate another
    one."""
    lib = library()
    arch = lib.pelton_cpu_architecture().decode()
    names = takewhile(lambda name: name is not None, map(lib.pelton_cpu_feature, count()))
    features = sorted(name.decode() for name in names if name)
    about = {"x86_64": _x86, "aarch64": _arm}.get(arch, _other)
    return {"arch": arch, **about(arch), "features": tuple(features)}


def _cpuid(leaf: int, subleaf: int = 0) -> tuple[int, ...]:
    out = (ctypes.c_uint32 * 4)()
    library().pelton_cpuid(leaf, subleaf, out)
    return tuple(out)


def _x86(arch: str) -> dict[str, Any]:
    vendor = b"".join(r.to_bytes(4, "little") for r in (_cpuid(0)[i] for i in (_EBX, _EDX, _ECX))).decode(
        "ascii", "replace"
    )
    brand = b"".join(r.to_bytes(4, "little") for leaf in range(0x80000002, 0x80000005) for r in _cpuid(leaf))
    signature = _cpuid(1)[_EAX]
    family, model = signature >> 8 & 15, signature >> 4 & 15
    if family in (6, 15):
        model |= (signature >> 16 & 15) << 4
    if family == 15:
        family += signature >> 20 & 255
    caches = {}
    for i in range(8):
        kind, geometry, sets, _ = _cpuid(0x8000001D if vendor == "AuthenticAMD" else 4, i)
        if kind & 31 == 0:
            break
        line, partitions, ways = (geometry & 4095) + 1, (geometry >> 12 & 1023) + 1, (geometry >> 22) + 1
        caches[f"l{kind >> 5 & 7}" + {1: "d", 2: "i"}.get(kind & 31, "")] = line * partitions * ways * (sets + 1)
    return {
        "vendor": vendor,
        "family": family,
        "cpu_model": model,
        "stepping": signature & 15,
        "model": (
            " ".join(brand.split(b"\0")[0].decode("ascii", "replace").split())
            or f"{vendor} family {family} model {model}"
        ),
        "caches": caches,
    }


def _arm(arch: str) -> dict[str, Any]:
    """By MIDR_EL1: revision r2p1 of a part is model 2, stepping 1 of that family."""
    midr = _cpuid(0)[_EAX]
    return {
        **_other(arch),
        "vendor": f"0x{midr >> 24:02x}",
        "family": midr >> 4 & 4095,
        "cpu_model": midr >> 20 & 15,
        "stepping": midr & 15,
    }


def _other(arch: str) -> dict[str, Any]:
    name = ctypes.create_string_buffer(64)
    library().pelton_cpu_model(name)
    return {
        "vendor": arch,
        "family": 0,
        "cpu_model": 0,
        "stepping": 0,
        "model": name.value.decode("ascii", "replace"),
        "caches": caches_of_system(),
    }


def caches_of_system(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> dict[str, int]:
    """Returns the bytes of the caches of one core, as `describe` has them, by Linux's files; none without these files.

    Under an emulator they are of the wrong CPU. They only choose sizes of blocks, so this changes no result.
    """
    caches = {}
    for cache in sorted(Path(folder).glob("index*")):
        try:
            level, kind, size = ((cache / name).read_text().strip() for name in ("level", "type", "size"))
            caches[f"l{int(level)}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = parse_size(size)
        except (OSError, ValueError):  # a kernel may know a cache, and not its size
            continue
    return caches


def parse_size(text: str) -> int:
    """Returns the bytes of a size in one of Linux's files, such as 48K."""
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    return int(text[:-1] if unit else text) << unit


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
