"""Compilation targets: instruction set levels of CPUs, and architectures of NVIDIA GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

WITH_ZEROS = ("cuda",)  # archs whose contexts have memory that stays zero between runs


def is_gpu(target: Mapping[str, Any]) -> bool:
    """Returns True if engines of this target (`Engine.target` in their file) run on a GPU."""
    return target.get("arch") == "cuda"


# ---- CPUs ----

# Levels of the x86-64 psABI by clang's names; each includes the one before.
_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
# Arm Architecture Reference Manual, A2: Armv8.0, what cores since Cortex-A55 and A76 have, and cores since Armv8.6.
_NEON = ("neon",)
_DOTPROD = (*_NEON, "dotprod", "fullfp16")
_I8MM = (*_DOTPROD, "bf16", "i8mm")
_NO_X18 = ("-ffixed-x18",)  # other systems than Linux reserve this register; bundles run there, too
_X86, _ARM, _RISCV, _WASM = "x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu", "wasm32-freestanding"
# Armv7-M and Armv8-M Architecture Reference Manuals; "dsp": smlad, sxtb16 and others of pairs of i16.
_ARM_NONE = "thumb-none-eabi"
_ALONE = ("-ffunction-sections", "-fdata-sections", "-meabi", "gnu")  # memcpy, as on Linux, instead of __aeabi_memcpy
# WebAssembly Core Specification 2.0 and 3.0: fixed-width vectors; instructions whose results differ by machine.
_SIMD = ("simd128",)
_RELAXED = (*_SIMD, "relaxed-simd")
# clang makes selections of vectors relaxed_min and relaxed_max, which lose NaN, also where it vectorizes by itself
_RELAXED_FLAGS = ("-msimd128", "-mrelaxed-simd", "-fno-vectorize", "-fno-slp-vectorize")


@dataclass(frozen=True)
class Isa:
    """An instruction set level that kernels are compiled for.

    triple, march, flags: for clang. features: of the CPU. lanes: f32 elements of a vector. registers: number of vector
    registers. dot: how it adds products of bytes, "pairs" (two in i16, then in i32) or "fours" (four in i32, by one
    instruction) or "words" (two i16 in i32; bytes are widened first). factor: the type of the bytes that it multiplies
    by i8. by_lane: True if its multiply-adds take one lane of a vector as a factor. bf16: True if it multiplies bf16.
    small: True if the size of code counts more than its last percent of speed, and memory is counted in KB.
    """

    triple: str
    march: str
    features: tuple[str, ...]
    lanes: int
    registers: int
    dot: Literal["pairs", "fours", "words"] = "pairs"
    factor: Literal["u8", "i8"] = "u8"
    by_lane: bool = False
    bf16: bool = False
    small: bool = False
    flags: tuple[str, ...] = ()

    @property
    def arch(self) -> str:
        """The architecture, by `uname -m`'s name."""
        return self.triple.partition("-")[0]

    @property
    def is_wasm(self) -> bool:
        return self.arch == "wasm32"

    @property
    def is_thumb(self) -> bool:
        return self.arch == "thumb"

    @property
    def relocatable(self) -> bool:
        """True if an engine's code is an object, which a program is linked with, instead of a shared object."""
        return self.is_wasm or self.is_thumb


def _cortex(cpu: str, features: tuple[str, ...], floats: Literal["hard", "soft"] = "hard") -> Isa:
    """A level of Arm's micro-controllers, whose vectors are two registers each."""
    flags = (f"-mcpu={cpu}", f"-mfloat-abi={floats}", *_ALONE)
    return Isa(_ARM_NONE, "", features, 2, 16 if floats == "hard" else 4, "words", "i8", small=True, flags=flags)


# The best of each architecture last.
ISAS: Mapping[str, Isa] = MappingProxyType(
    {
        "x86_64_v3": Isa(_X86, "x86-64-v3", _V3, 8, 16),
        "x86_64_v3_vnni": Isa(_X86, "x86-64-v3", (*_V3, "avxvnni"), 8, 16, "fours", flags=("-mavxvnni",)),
        "x86_64_v4": Isa(_X86, "x86-64-v4", _V4, 16, 32),
        "x86_64_v4_vnni": Isa(_X86, "x86-64-v4", (*_V4, "avx512vnni"), 16, 32, "fours", flags=("-mavx512vnni",)),
        "x86_64_v4_vnni_bf16": Isa(
            _X86,
            "x86-64-v4",
            (*_V4, "avx512bf16", "avx512vnni"),
            16,
            32,
            "fours",
            bf16=True,
            flags=("-mavx512vnni", "-mavx512bf16"),
        ),
        "aarch64": Isa(_ARM, "armv8-a", _NEON, 4, 32, factor="i8", by_lane=True, flags=_NO_X18),
        "aarch64_dotprod": Isa(
            _ARM, "armv8-a+dotprod+fp16", _DOTPROD, 4, 32, "fours", "i8", by_lane=True, flags=_NO_X18
        ),
        "aarch64_i8mm": Isa(
            _ARM, "armv8-a+dotprod+fp16+bf16+i8mm", _I8MM, 4, 32, "fours", "i8", by_lane=True, flags=_NO_X18
        ),
        "riscv64_v": Isa(_RISCV, "rv64gcv", ("v",), 4, 32, factor="i8", flags=("-mabi=lp64d",)),
        "wasm32_simd": Isa(_WASM, "", _SIMD, 4, 16, factor="i8", flags=("-msimd128",)),
        "wasm32_relaxed": Isa(_WASM, "", _RELAXED, 4, 16, factor="i8", flags=_RELAXED_FLAGS),
        "thumb_m3": _cortex("cortex-m3", ("thumb2",), "soft"),
        "thumb_m4": _cortex("cortex-m4", ("thumb2", "dsp", "fp32")),
        "thumb_m7": _cortex("cortex-m7", ("thumb2", "dsp", "fp32", "vrint", "fp64")),
        "thumb_m33": _cortex("cortex-m33", ("thumb2", "dsp", "fp32", "vrint")),
        "thumb_m55": _cortex("cortex-m55+nomve", ("thumb2", "dsp", "fp32", "vrint", "fp64", "fp16")),
    }
)
# All known levels of CPUs → the features that they need.
LEVELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"x86_64": (), "x86_64_v2": _V2, "riscv64": (), **{name: isa.features for name, isa in ISAS.items()}}
)
# Those that builds choose by themselves; levels with bf16 require its precision.
BUILT = tuple(name for name, isa in ISAS.items() if not (isa.bf16 or isa.relocatable))
# Names of micro-controllers' cores → their level. The generic one is of Armv7-M without floats in registers, which all
# of these cores run.
MICRO_CONTROLLERS: Mapping[str, str] = MappingProxyType(
    {
        "cortex-m4": "thumb_m4",
        "cortex-m7": "thumb_m7",
        "cortex-m33": "thumb_m33",
        "cortex-m55": "thumb_m55",
        "thumb-generic": "thumb_m3",
    }
)


def levels(arch: str) -> tuple[str, ...]:
    """Returns the known levels of an architecture, the lowest first."""
    return tuple(level for level in LEVELS if level.startswith(arch))


def fits(level: str, machine: Mapping[str, Any]) -> bool:
    """Returns True if a CPU (`arch` and `features` of its description) runs code of a level."""
    return level in levels(machine["arch"]) and set(LEVELS[level]) <= set(machine["features"])


def lowest(arch: str) -> str:
    """Returns the lowest level of an architecture that kernels are compiled for; of an unknown one, that of x86-64."""
    return next((level for level in BUILT if ISAS[level].arch == arch), BUILT[0])


def best(machine: Mapping[str, Any], bf16: bool = False) -> str:
    """Returns the best level in BUILT that a CPU runs; the lowest if it runs none. bf16: also consider the level that
    multiplies bf16."""
    *_, level = (lowest(machine["arch"]), *(isa for isa in (ISAS if bf16 else BUILT) if fits(isa, machine)))
    return level


# ---- NVIDIA GPUs ----


@dataclass(frozen=True)
class TypicalGpu:
    """A GPU that represents its architecture; sizes in bytes.

    l1: shared memory of a multiprocessor. block: maximum shared memory of a block. l2: the L2 cache.
    """

    name: str
    multiprocessors: int
    l1: int
    block: int
    l2: int


# The GPUs assumed where none is present. Multiprocessors and L2 are from NVIDIA's white papers ("Turing GPU
# Architecture", 2018, T4; "A100 Tensor Core GPU Architecture", 2020; "Ampere GA102 GPU Architecture", 2020, RTX 3090;
# "Ada GPU Architecture", 2022, RTX 4090; "H100 Tensor Core GPU Architecture", 2022, SXM5; "RTX Blackwell GPU
# Architecture", 2025, RTX 5090), shared memory from the CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability".
TYPICAL = {
    75: TypicalGpu("T4", 40, 64 << 10, 64 << 10, 4 << 20),
    80: TypicalGpu("A100", 108, 164 << 10, 163 << 10, 40 << 20),
    86: TypicalGpu("RTX 3090", 82, 100 << 10, 99 << 10, 6 << 20),
    89: TypicalGpu("RTX 4090", 128, 100 << 10, 99 << 10, 72 << 20),
    90: TypicalGpu("H100 SXM5", 132, 228 << 10, 227 << 10, 50 << 20),
    120: TypicalGpu("RTX 5090", 170, 100 << 10, 99 << 10, 96 << 20),
}

# Compute capabilities in the CUDA C++ Programming Guide that drivers of CUDA 13 run.
ARCHITECTURES = (75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)


def typical(arch: int) -> TypicalGpu:
    """Returns the typical GPU of an architecture: the newest in TYPICAL that is no newer."""
    return TYPICAL[max((a for a in TYPICAL if a <= arch), default=min(TYPICAL))]


def fitting(archs: Iterable[int], arch: int) -> int | None:
    """Returns the newest cubin architecture that a GPU of architecture `arch` runs, or None.

    Cubins run on GPUs of the same generation that are no older; from sm_90 on, they use features of their architecture
    alone.
    """
    return max((a for a in archs if a == arch or (a < 90 and a // 10 == arch // 10 and a <= arch)), default=None)


def gpus(archs: Iterable[int]) -> dict[str, Any]:
    """Returns the `target` of engines with cubins for these architectures."""
    return {"os": sys.platform, "arch": "cuda", "isa": ",".join(f"sm_{a}" for a in sorted(archs)), "features": []}
