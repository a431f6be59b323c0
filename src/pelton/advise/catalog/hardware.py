"""One device of the catalog as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Peaks by precision. Matrix units with sums in FP32 (integers: in INT32) where the device has them, else vector units.
# `fp64_matrix` and `fp32_matrix` are matrix units where `fp64` and `fp32` are vector units; `fp16_acc16` has its sums
# in FP16.
PRECISIONS = (
    *("fp64", "fp64_matrix", "fp32", "fp32_matrix", "tf32", "bf16", "fp16", "fp16_acc16"),
    *("fp8", "fp6", "fp4", "int8", "int4"),
)
KINDS = ("gpu", "cpu", "npu", "soc")
FORMS = ("card", "module", "server", "integrated")


@dataclass(frozen=True)
class Citation:
    """A source: its address, and the fields that it supports."""

    url: str
    supports: str


@dataclass(frozen=True)
class Price:
    """A price: amount, currency (ISO 4217), date (ISO 8601: year, month or day), and its kind: launch, list, street."""

    amount: float
    currency: str
    date: str
    kind: str = "launch"


@dataclass(frozen=True)
class Hardware:
    """A device that can be bought or rented; a field is None or empty where no source states it.

    dense, sparse: peaks by precision in tera-operations per second, a multiply-add being two; `sparse` with 2:4
    structured sparsity. derived: keys of `dense` (or `sparse.KEY`) that are computed from published figures, not
    published. memory_gb: capacity in the units of the vendor (GPUs, CPUs: 2**30 bytes). bandwidth_gbs: memory, 10**9
    bytes per second. memory_bits, memory_gtps: width of the memory bus, transfers per pin in 10**9 per second.
    pcie, lanes: generation and lanes of the bus. slots, length_mm: size of a card. psu_w: the power supply recommended
    for a machine with one card. cores: CUDA cores and their like; of CPUs all cores, and performance_cores those of the
    faster kind. clock_mhz: the highest, base_mhz: the guaranteed clock. cache_mb: the last level. channels,
    memory_mtps: memory channels of a CPU, 10**6 transfers per second. vector_bits, fma_units: of one core of a CPU.
    """

    name: str
    vendor: str
    kind: str
    form: str
    architecture: str
    year: int
    aliases: tuple[str, ...] = ()
    dense: Mapping[str, float] = field(default_factory=dict, hash=False)
    sparse: Mapping[str, float] = field(default_factory=dict, hash=False)
    derived: tuple[str, ...] = ()
    memory_gb: float | None = None
    memory_type: str | None = None
    memory_bits: int | None = None
    memory_gtps: float | None = None
    bandwidth_gbs: float | None = None
    power_w: float | None = None
    pcie: float | None = None
    lanes: int | None = None
    slots: float | None = None
    length_mm: float | None = None
    psu_w: float | None = None
    cores: int | None = None
    performance_cores: int | None = None
    threads: int | None = None
    base_mhz: float | None = None
    clock_mhz: float | None = None
    cache_mb: float | None = None
    channels: int | None = None
    memory_mtps: float | None = None
    isa: tuple[str, ...] = ()
    vector_bits: int | None = None
    fma_units: int | None = None
    price: Price | None = None
    remarks: str | None = None
    sources: tuple[Citation, ...] = ()
    files: tuple[str, ...] = field(default=(), compare=False)

    def peak(self, precision: str, sparse: bool = False) -> float | None:
        """Returns the peak of a precision in tera-operations per second, or None where no source states it."""
        return (self.sparse if sparse else self.dense).get(precision)
