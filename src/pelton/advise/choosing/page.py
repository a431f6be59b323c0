"""Writes docs/choosing.md from the catalog and the tables of this folder, to standard output."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator

from ..catalog import Catalog, Hardware, load
from ..users import PROFILES
from . import GROUPS, Framework, frameworks, routes
from .text import ADVICE, CREDITS, FRAMEWORKS, HEAD, MACHINE, PROCESSORS, ROUTES, SERIES, SLIPS, USERS

# The advice of 2017 to 2021 by kind of user (facts 15 and 17 of those guides), as names of the catalog.
BY_USER = (
    ("best for its price, dear", ("RTX 2070", "GTX 1080 Ti")),
    ("good for its price, cheap", ("RTX 2060", "GTX 1060 6GB")),
    ("data over 250 GB", ("Titan X Maxwell", "Titan X Pascal", "Titan Xp")),
    ("little money", ("GTX 1060 6GB",)),
    ("almost no money, or to try", ("GTX 1050 Ti", "GTX 1050")),
    ("contests", ("RTX 2070", "GTX 1060 6GB", "GTX 1080 Ti", "RTX 2080 Ti")),
    ("research in vision", ("RTX 2080 Ti", "Titan RTX")),
    ("research in language", ("RTX 2080 Ti",)),
    ("to start research", ("RTX 2060", "GTX 1060 6GB")),
)
OLD = ("Xeon X5650", "Core i7-5960X", "Tesla M2070", "Tesla K20", "GTX 970", "GTX 980")
TODAY = 2020  # year of the oldest GPUs that are compared with CPUs
SERIES_OF_CHART = ("GTX 9", "GTX 10", "RTX 20", "RTX 30", "RTX 40", "RTX 50")


def number(value: float | None, form: str = ".4g") -> str:
    """A number for a cell; an empty cell where no source states it."""
    return "" if value is None else f"{value:{form}}"


def table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for line in lines:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in line)} |".replace("  ", " ")


def series(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    """A row for each GeForce card of the series with a launch price, series by series and by price."""
    for prefix in SERIES_OF_CHART:
        cards = [d for d in catalog if d.name.startswith(f"GeForce {prefix}") and d.price]
        for card in sorted(cards, key=lambda d: d.price.amount if d.price else 0):
            yield card_cells(card)


def card_cells(card: Hardware) -> tuple[str, ...]:
    """The cells of one card: year, price, memory, bandwidth, FP32, FP16, FP32 for the price."""
    fp32, price = card.peak("fp32"), card.price.amount if card.price else None
    ratio = number(1000 * fp32 / price, ".1f") if fp32 and price else ""
    half = card.peak("fp16") if "fp16" in card.dense else None
    cells = (price, card.memory_gb, card.bandwidth_gbs, fp32, half)
    return (card.name.removeprefix("GeForce "), str(card.year), *map(number, cells), ratio)


def for_price(device: Hardware) -> float | None:
    """GFLOPS of FP32 for a unit of the launch price."""
    fp32 = device.peak("fp32")
    return 1000 * fp32 / device.price.amount if fp32 and device.price else None


def medians(catalog: Catalog) -> str:
    """The median of GFLOPS for the price in each series, in words."""
    said = []
    for prefix in SERIES_OF_CHART:
        found = [x for d in catalog if d.name.startswith(f"GeForce {prefix}") and (x := for_price(d))]
        name = prefix + ("00" if prefix.startswith("GTX") else "")
        said.append(f"{name} {statistics.median(found):.1f}")
    return ", ".join(said)


def ratio(catalog: Catalog) -> str:
    """GFLOPS for the price of GPUs and of CPUs, in words."""
    gpus = [x for d in catalog if d.kind == "gpu" and d.year >= TODAY and (x := for_price(d))]
    cpus = [x for d in catalog if d.kind == "cpu" and (x := for_price(d))]
    gpu, cpu = statistics.median(gpus), statistics.median(cpus)
    return (
        f"medians of the catalog are {gpu:.0f} GFLOPS of FP32 for $1 on GPUs since {TODAY}, and {cpu:.2g} on CPUs of "
        "servers (the guides: ten times)"
    )


def processors(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    """A row for each of the processors that the guides compare."""
    for d in map(catalog.device, OLD):
        gflops = 1000 * (d.peak("fp32") or 0)
        clock = d.base_mhz or d.clock_mhz
        price = d.price.amount if d.price else None
        cells = (d.cores, clock, gflops, d.power_w, gflops / d.power_w if d.power_w else None)
        yield d.name, d.architecture, *map(number, cells), *map(number, (d.memory_gb, d.bandwidth_gbs, price))


def users(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    """A row for each kind of user, with the cards of then and their figures, and the profile of today."""
    profiles = {kind: p.name for p in PROFILES for kind in p.guides}
    for user, names in BY_USER:
        yield user, "; ".join(map(in_short, map(catalog.device, names))), f"`{profiles[user]}`"
    yield "a cluster", "another matter: see below", f"`{profiles['a cluster']}`"


def in_short(card: Hardware) -> str:
    """Name, memory and launch price of a card."""
    price = f", ${number(card.price.amount)}" if card.price else ""
    return f"{card.name} ({number(card.memory_gb)} GB{price})"


def framework_lines(rows: Iterable[Framework]) -> Iterator[tuple[str, ...]]:
    """A row for each framework, compiler and server."""
    ordered = sorted(rows, key=lambda r: (GROUPS.index(r.group), r.name.lower()))
    yield from ((r.name, r.group, r.what, f"[{r.state}]({r.url})", r.date) for r in ordered)


def page() -> str:
    """Returns docs/choosing.md."""
    catalog = load()
    chart = ("card", "year", "launch price, $", "GB", "GB/s", "FP32", "FP16, tensor", "GFLOPS of FP32 for $1")
    most = max((d for d in catalog if d.form == "card" and d.power_w), key=lambda d: d.power_w or 0)
    old = ("device", "architecture", "cores", "MHz", "GFLOPS of FP32", "W", "GFLOPS for 1 W", "GB", "GB/s", "price, $")
    parts = [
        HEAD.format(devices=len(catalog)),
        PROCESSORS,
        *table(old, processors(catalog)),
        SLIPS,
        SERIES.format(medians=medians(catalog)),
        *table(chart, series(catalog)),
        USERS,
        *table(("for", "cards of 2017 to 2021 at their launch prices", "profile"), users(catalog)),
        ADVICE.format(ratio=ratio(catalog)),
        MACHINE.format(most_w=number(most.power_w), most=most.name),
        FRAMEWORKS,
        *table(("name", "kind", "what", "state", "as of"), framework_lines(frameworks())),
        ROUTES,
        *table(
            ("where", "use", "instead of", "as of", "from Pelton"),
            ((r.target, f"[{r.use}]({r.url})", r.instead, r.date, r.pelton) for r in routes()),
        ),
        CREDITS,
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
