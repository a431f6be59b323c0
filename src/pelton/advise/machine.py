"""The machine around devices: power supply, space, PCIe lanes, memory, cooling, market and licence, rent or buy.

Figures of devices are quoted by the catalog. What is assumed is a constant here, and each answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from .catalog import Catalog, Hardware
from .predict import Prediction, RunningCosts

REST_W = 150.0  # mainboard, memory, disks, fans: Intel's estimate, in the next source
SPIKES = "https://www.tweaktown.com/news/85717/pcie-5-0-gpus-can-have-power-excursions-use-up-to-1800w-of/index.html"
EXCURSION = 3.0  # a card's power for 100 µs, relative to its sustained power: PCI-SIG, in the same source
ATX3 = "https://hothardware.com/news/psu-manufs-can-skirt-atx-30-tolerance-testing"
OVERLOAD = 2.0  # of a supply's power for 100 µs: ATX 3.0
HEADROOM = 1.25  # an assumption
LANE_GBS = {1.0: 0.25, 2.0: 0.5, 3.0: 0.985, 4.0: 1.969, 5.0: 3.938}  # GB/s of a lane, one direction, by generation
LANES = "https://hpc-notes.pages.dev/reference/pcie"
DISK_LANES = 4  # of the CPU, for an NVMe disk
WIDEST = 16
SLOTS = 7  # of an ATX case
ATX_SLOTS = "https://tickerdossier.com/wiki/microatx"
RAM = "https://benjaminspivey.net/index.php/2018/11/14/building-a-deep-learning-machine-part-1-components/"
LICENCE = "https://www.nvidia.com/en-us/drivers/geforce-license/"
CLAUSE = (
    "the licence of NVIDIA's GeForce driver has the clause No Datacenter Deployment: the software is not licensed for "
    "data centers, but for blockchains; it does not define a data center"
)
CPUS = {"consumer": "Intel Core i9-13900K", "workstation": "Intel Core i9-13900K", "data center": "AMD EPYC 9354"}
CONSUMER = ("GeForce", "NVIDIA Titan", "Radeon RX", "Intel Arc")
FEW, MANY = 10, 100  # machines
MONTHS = 12
HOURS = 730.5  # of a month
CIRCUITS = "16 A at 230 V are 3680 W, 15 A at 120 V are 1800 W"


@dataclass(frozen=True)
class MachinePart:
    """One part of a machine: a sentence, its figures by name, and the addresses behind assumptions. ok: False for a
    problem, None where nothing was checked."""

    name: str
    text: str
    figures: Mapping[str, float | str | None] = field(default_factory=dict)
    ok: bool | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class CopyTime:
    """Seconds to copy the inputs of a batch to a device over all its lanes, and over those that it gets."""

    batch: int
    bytes: float
    full: float
    here: float
    run: float


@dataclass(frozen=True)
class RentalPrices:
    """What renting one device costs. price: of an hour, in the currency of the device's price; hours: of use a month,
    None if unknown."""

    price: float
    hours: float | None = None


@dataclass(frozen=True)
class MachineReport:
    """The machine around `count` devices of a name, with a CPU of the catalog."""

    device: str
    count: int
    cpu: str
    assumed_cpu: bool
    parts: tuple[MachinePart, ...]
    copies: tuple[CopyTime, ...] = ()

    def json(self) -> dict[str, Any]:
        """Returns the data of `pelton advise --json`."""
        return {
            "device": self.device,
            "count": self.count,
            "cpu": self.cpu,
            "cpu_assumed": self.assumed_cpu,
            "parts": [
                {"part": p.name, "text": p.text, "figures": dict(p.figures), "ok": p.ok, "sources": list(p.sources)}
                for p in self.parts
            ],
            "copies": [
                {"batch": c.batch, "bytes": c.bytes, "full_ms": c.full * 1e3, "ms": c.here * 1e3, "run_ms": c.run * 1e3}
                for c in self.copies
            ],
        }


def market(row: Hardware) -> str:
    """Returns "consumer", "workstation" or "data center": where a device is sold, by its name."""
    if row.name.startswith(CONSUMER):
        return "consumer"
    return "workstation" if row.name.startswith("NVIDIA RTX") else "data center"


def around(
    row: Hardware,
    count: int,
    catalog: Catalog,
    predictions: Sequence[Prediction],
    inputs: Mapping[int, float],
    costs: RunningCosts,
    *,
    cpu: str | None = None,
    rental: RentalPrices | None = None,
    machines: int | None = None,
    dataset: float = 0.0,
) -> MachineReport:
    """Returns the machine around devices. predictions: of this device, one for each batch; inputs: batch → bytes of the
    model's inputs; cpu: a name of the catalog; machines: how many devices the rate needs; dataset: bytes.

    Raises InputError for a CPU that the catalog does not have.
    """
    host = catalog.device(cpu or CPUS[market(row)])
    if host.kind != "cpu":
        raise InputError(f"--cpu {cpu}: {host.name} is no CPU (kind {host.kind}); name a CPU of the catalog")
    lanes, width = link(row, host, count)
    copies = copy_times(row, host, width, predictions, inputs)
    model = max((p.work.memory for p in predictions), default=0)
    parts = [supply(row, count, host), space(row, count), lanes, memory(row, count, model, dataset)]
    parts += [cooling(row, count, host), licence(row, math.ceil((machines or 1) / count))]
    if rental is not None:
        parts.append(rent_or_buy(row, rental, costs))
    return MachineReport(row.name, count, host.name, cpu is None, tuple(parts), copies)


def supply(row: Hardware, count: int, host: Hardware) -> MachinePart:
    """Returns the power supply: the largest of the sum with headroom, the maker's recommendation, and spikes."""
    if row.power_w is None or host.power_w is None:
        unknown = row.name if row.power_w is None else host.name
        return MachinePart("power", f"no source states the power of {unknown}; add it by --catalog")
    total = count * row.power_w + host.power_w + REST_W
    figures = {"sum_w": total, "headroom": HEADROOM, "with_headroom_w": total * HEADROOM, "rest_w": REST_W}
    said = [
        f"{count} × {row.power_w:g} W (q), CPU {host.power_w:g} W (q), the rest {REST_W:g} W (Intel's estimate): "
        f"{total:.0f} W, with a quarter of headroom {total * HEADROOM:.0f} W"
    ]
    if row.psu_w is not None:
        figures["recommended_w"] = row.psu_w + (count - 1) * row.power_w * HEADROOM
        more = f", and {row.power_w * HEADROOM:.0f} W for each further one" if count > 1 else ""
        said.append(f"a supply of {row.psu_w:g} W is recommended for one card (q){more}")
    if row.form == "card":
        figures["spike_w"] = EXCURSION * count * row.power_w + host.power_w + REST_W
        figures["for_spikes_w"] = figures["spike_w"] / OVERLOAD
        said.append(
            f"for 100 µs cards may take {EXCURSION:g} times their power: {figures['spike_w']:.0f} W at once, which an "
            f"ATX 3.0 supply of {figures['for_spikes_w']:.0f} W bears"
        )
    least = max(figures.get(k, 0.0) for k in ("with_headroom_w", "recommended_w", "for_spikes_w"))
    figures["supply_w"] = least = math.ceil(least / 50) * 50
    circuit = f". {CIRCUITS}: circuits of their own, or lower limits (`nvidia-smi -pl`)" if least > 1800 else ""
    return MachinePart(
        "power", f"at least {least:.0f} W: {'; '.join(said)}{circuit}", figures, least <= 1800, (SPIKES, ATX3)
    )


def space(row: Hardware, count: int) -> MachinePart:
    """Returns the slots and the length that the case must have."""
    if row.form != "card":
        return MachinePart("space", "a module: it comes in a machine or on a board of its maker, not in a slot")
    if row.slots is None:
        return MachinePart("space", f"no source states the slots of {row.name}")
    slots = math.ceil(count * row.slots)
    length = f", {row.length_mm:g} mm long (q)" if row.length_mm else ""
    fits = slots <= SLOTS
    end = "they fit an ATX case" if fits else "they need risers, thinner cards or a server's case"
    text = f"{count} × {row.slots:g} slots (q) = {slots} of the {SLOTS} of an ATX case{length}: {end}"
    return MachinePart("space", text, {"slots": slots, "length_mm": row.length_mm}, fits, (ATX_SLOTS,))


def link(row: Hardware, host: Hardware, count: int) -> tuple[MachinePart, int | None]:
    """Returns what lanes each of `count` cards gets, and their number; None if it is unknown or no card."""
    if row.form != "card":
        return MachinePart("lanes", "a module: its maker's board decides the links"), None
    if not row.lanes or not host.lanes:
        return MachinePart("lanes", f"no source states the lanes of {host.name if row.lanes else row.name}"), None
    free = max(host.lanes - DISK_LANES, 1)
    width = 1 << max(int(math.log2(max(free / count, 1))), 0)
    width = min(width, row.lanes, WIDEST)
    needed = count * row.lanes + DISK_LANES
    text = f"{host.name} has {host.lanes} (q), {DISK_LANES} of them for a disk: "
    if width == row.lanes:
        text += f"each card has its ×{width}, if the mainboard wires them"
    else:
        text += f"each card gets ×{width} instead of ×{row.lanes}; for all, a CPU with {needed} lanes"
    figures = {"cpu": host.lanes, "card": row.lanes, "width": width, "needed": needed}
    return MachinePart("lanes", text, figures, width == row.lanes, (LANES,)), width


def copy_times(
    row: Hardware, host: Hardware, width: int | None, predictions: Sequence[Prediction], inputs: Mapping[int, float]
) -> tuple[CopyTime, ...]:
    """Returns the time to copy inputs for each batch; () if the link is unknown."""
    generation = min((g for g in (row.pcie, host.pcie) if g), default=None)
    lane = LANE_GBS.get(generation or 0.0)
    if width is None or lane is None or not row.lanes:
        return ()
    return tuple(
        CopyTime(
            p.work.batch,
            inputs[p.work.batch],
            inputs[p.work.batch] / (row.lanes * lane * 1e9),
            inputs[p.work.batch] / (width * lane * 1e9),
            p.seconds,
        )
        for p in sorted(predictions, key=lambda p: p.work.batch)
        if p.work.batch in inputs
    )


def memory(row: Hardware, count: int, model: float, dataset: float) -> MachinePart:
    """Returns the main memory: as much as the devices have, or the model with the data."""
    if row.memory_gb is None:
        return MachinePart("memory", f"no source states the memory of {row.name}")
    devices = count * row.memory_gb
    least = max(devices, math.ceil(model / 2**30))
    text = f"at least {least:g} GB: {count} × {row.memory_gb:g} GB of the devices (q)"
    figures = {"devices_gb": devices, "least_gb": least}
    if dataset:
        figures["with_data_gb"] = math.ceil((model + dataset) / 2**30)
        text += f"; {figures['with_data_gb']:g} GB hold model and data set, and epochs after the first read no disk"
    return MachinePart("memory", text, figures, None, (RAM,))


def cooling(row: Hardware, count: int, host: Hardware) -> MachinePart:
    """Returns how the heat leaves."""
    heat = count * (row.power_w or 0.0) + (host.power_w or 0.0) + REST_W
    if row.form != "card":
        how = "a module has the cooling of its maker's machine"
    elif market(row) == "data center":
        how = "passive cards need the air flow of a server's case"
    elif count > 1:
        how = "cards side by side need blowers or water, or a free slot between them"
    else:
        how = "one card with fans of its own needs a case with an intake"
    text = f"{heat:.0f} W of heat; {how}. Power, heat and volume decide together"
    return MachinePart("cooling", text, {"heat_w": heat})


def licence(row: Hardware, machines: int) -> MachinePart:
    """Returns whether consumer or data-center devices fit the number of machines, and what the licence says."""
    kind = market(row)
    if machines < FEW:
        size = "up to ten machines in offices: consumer or workstation cards suffice"
    elif machines <= MANY:
        size = "ten to a hundred machines: servers of value, or complete systems (DGX) with support"
    else:
        size = "over a hundred machines: cards for data centers, with passive cooling, ECC and terms for servers"
    said = [f"{row.name} is sold for {kind} use; {size}"]
    consumer = kind == "consumer"
    restricted = consumer and row.vendor == "NVIDIA"
    if restricted:
        said.append(CLAUSE)
    ok = not (consumer and machines > MANY)
    figures: dict[str, float | str | None] = {"market": kind, "machines": float(machines)}
    return MachinePart("market", "; ".join(said), figures, ok, (LICENCE,) if restricted else ())


def rent_or_buy(row: Hardware, rental: RentalPrices, costs: RunningCosts) -> MachinePart:
    """Returns from how many hours a month on a device of one's own is cheaper than a rented one: its price over the
    years of its life, and its energy. The machine around it is not counted."""
    if row.price is None:
        return MachinePart("rent", f"no source states the price of {row.name}; add it by --catalog")
    hour = (row.power_w or 0.0) / 1e3 * costs.energy
    monthly = row.price.amount / (costs.years * MONTHS)
    figures: dict[str, float | str | None] = {
        "price": row.price.amount,
        "rent_hour": rental.price,
        "own_month": monthly,
        "energy_hour": hour,
    }
    text = f"{row.price.amount:g} {row.price.currency} (q, {row.price.kind}) over {costs.years:g} years are "
    text += f"{monthly:.2f} a month, and {hour:.3f} an hour for energy"
    if rental.price <= hour:
        return MachinePart("rent", f"{text}: renting at {rental.price:g} is cheaper than the energy", figures)
    figures["break_even_hours"] = hours = monthly / (rental.price - hour)
    text += f": buying is cheaper from {hours:.0f} hours a month on"
    if hours > HOURS:
        text += f", more than the {HOURS:.0f} that a month has"
    if rental.hours is not None:
        rented, own = rental.price * rental.hours, monthly + hour * rental.hours
        figures |= {"hours": rental.hours, "rent_month": rented, "buy_month": own}
        cheaper = "rent" if rented < own else "buy"
        text += f"; {rental.hours:g} hours cost {rented:.2f} rented, {own:.2f} owned: {cheaper}"
    return MachinePart("rent", f"{text}. The machine around it is not counted", figures)
