"""Cores of micro-controllers: flags of GCC and clang for each, and an emulated board."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pelton.record import record
from pelton.targets import MICRO_CONTROLLERS


@record(frozen=True)
class Board:
    """A board of QEMU (hw/arm/mps2.c, mps2-tz.c): its machine, the addresses and sizes of memory for code and for
    data, and the clock of SysTick in Hz."""

    machine: str
    flash: tuple[int, int]
    ram: tuple[int, int]
    clock: int

    @property
    def tick(self) -> float:
        """Instructions of a tick, where the emulator takes a nanosecond for each."""
        return 1e9 / self.clock


@record(frozen=True)
class Core:
    """A core: flags for GCC and clang, and a board that has it."""

    flags: tuple[str, ...]
    board: Board


MB, MHZ = 1 << 20, 1_000_000
HARD, SOFT = "-mfloat-abi=hard", "-mfloat-abi=soft"
# by the names in MICRO_CONTROLLERS
CORES: Mapping[str, Core] = MappingProxyType(
    {
        "cortex-m4": Core(
            ("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", HARD),
            Board("mps2-an386", (0, 4 * MB), (0x20000000, 4 * MB), 25 * MHZ),
        ),
        "cortex-m7": Core(
            ("-mcpu=cortex-m7", "-mfpu=fpv5-d16", HARD),
            Board("mps2-an500", (0, 4 * MB), (0x20000000, 4 * MB), 25 * MHZ),
        ),
        "cortex-m33": Core(
            ("-mcpu=cortex-m33", "-mfpu=fpv5-sp-d16", HARD),
            Board("mps2-an505", (0x10000000, 4 * MB), (0x38000000, 4 * MB), 20 * MHZ),
        ),
        "cortex-m55": Core(
            ("-mcpu=cortex-m55", HARD),
            Board("mps3-an547", (0x10000000, MB // 2), (0x30000000, MB // 2), 32 * MHZ),
        ),
        "thumb-generic": Core(
            ("-mcpu=cortex-m3", SOFT), Board("mps2-an385", (0, 4 * MB), (0x20000000, 4 * MB), 25 * MHZ)
        ),
    }
)


def core_of(level: str) -> tuple[str, Core]:
    """Returns the name and the record of the core with this level."""
    name = next(name for name, of in MICRO_CONTROLLERS.items() if of == level)
    return name, CORES[name]
