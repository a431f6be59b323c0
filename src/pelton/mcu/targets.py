"""The cores that `--target` names: the level of each, flags of GCC and clang for it, and an emulated board."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pelton.record import record


@record(frozen=True)
class Board:
    """A board of QEMU (hw/arm/mps2.c, mps2-tz.c): its machine, the addresses and sizes of memory for code and for
    data, and nanoseconds of a tick of SysTick."""

    machine: str
    flash: tuple[int, int]
    ram: tuple[int, int]
    tick: int


@record(frozen=True)
class Core:
    """A core: its level, flags for GCC and clang, and a board that has it."""

    level: str
    flags: tuple[str, ...]
    board: Board


MB = 1 << 20
HARD, SOFT = "-mfloat-abi=hard", "-mfloat-abi=soft"
# The generic one is of Armv7-M without floats in registers, which all of these cores run.
CORES: Mapping[str, Core] = MappingProxyType(
    {
        "cortex-m4": Core(
            "thumb_m4",
            ("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", HARD),
            Board("mps2-an386", (0, 4 * MB), (0x20000000, 4 * MB), 40),
        ),
        "cortex-m7": Core(
            "thumb_m7",
            ("-mcpu=cortex-m7", "-mfpu=fpv5-d16", HARD),
            Board("mps2-an500", (0, 4 * MB), (0x20000000, 4 * MB), 40),
        ),
        "cortex-m33": Core(
            "thumb_m33",
            ("-mcpu=cortex-m33", "-mfpu=fpv5-sp-d16", HARD),
            Board("mps2-an505", (0x10000000, 4 * MB), (0x38000000, 4 * MB), 50),
        ),
        "cortex-m55": Core(
            "thumb_m55",
            ("-mcpu=cortex-m55", HARD),
            Board("mps3-an547", (0x10000000, MB // 2), (0x30000000, MB // 2), 31),
        ),
        "thumb-generic": Core(
            "thumb_m3", ("-mcpu=cortex-m3", SOFT), Board("mps2-an385", (0, 4 * MB), (0x20000000, 4 * MB), 40)
        ),
    }
)
LEVELS: Mapping[str, str] = MappingProxyType({name: core.level for name, core in CORES.items()})


def core_of(level: str) -> tuple[str, Core]:
    """Returns the name and the record of the core with this level."""
    return next((name, core) for name, core in CORES.items() if core.level == level)
