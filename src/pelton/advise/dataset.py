"""Disk and memory for a data set, and the time to read it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# GB/s of sequential reads: of the links of SATA and of NVMe over four lanes of PCIe 4.0, and of a disk with 7200 turns.
DISKS = {"hard disk": 0.16, "SATA": 0.6, "NVMe, PCIe 4.0": 7.88}
SOURCES = (
    "https://geratools.com/storage-interface-reference",
    "https://ithubrock.com/shop/components/harddisk/hardisk-ssd-nvme-consistent/",
)
COPIES = 2  # raw and prepared: an assumption
LARGE = 250e9  # bytes; the guides of 2017 to 2021 name cards of 12 GB above it


@dataclass(frozen=True)
class DatasetAdvice:
    """What a data set of some bytes needs: bytes of disk, and seconds to read it once from each kind of disk."""

    bytes: float
    disk: float
    seconds: dict[str, float]

    def sentences(self) -> list[str]:
        """Returns the advice."""
        times = ", ".join(f"{readable(s)} from {kind}" for kind, s in self.seconds.items())
        said = [
            f"data set of {self.bytes / 1e9:g} GB: an epoch reads it in {times} at best; a disk of {self.disk / 1e9:g} "
            f"GB holds it raw and prepared; it stays in main memory after the first epoch if that has "
            f"{self.bytes / 2**30:.0f} GB free."
        ]
        if self.bytes >= LARGE:
            said.append("Above 250 GB take NVMe disks, and devices with 12 GB or more for larger batches.")
        return said

    def json(self) -> dict[str, Any]:
        """Returns the data of `pelton advise --json`."""
        rows = [{"disk": k, "gbs": DISKS[k], "seconds": s} for k, s in self.seconds.items()]
        return {"bytes": self.bytes, "disk_bytes": self.disk, "epoch": rows, "sources": list(SOURCES)}


def dataset_advice(size: float) -> DatasetAdvice:
    """Returns what a data set of `size` bytes needs."""
    return DatasetAdvice(size, COPIES * size, {kind: size / (gbs * 1e9) for kind, gbs in DISKS.items()})


def readable(seconds: float) -> str:
    """Returns a time as seconds, minutes or hours."""
    for unit, of in (("h", 3600.0), ("min", 60.0)):
        if seconds >= of:
            return f"{seconds / of:.3g} {unit}"
    return f"{seconds:.3g} s"
