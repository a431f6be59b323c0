"""Writes docs/choosing.md from the catalog and the tables of this folder, to standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from ..catalog import Catalog, Hardware, load
from . import GROUPS, Framework, frameworks, routes
from .text import ADVICE, CREDITS, FRAMEWORKS, HEAD, MACHINE, ROUTES, SERIES, USERS

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


def users(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    """A row for each kind of user, with the cards of then and their figures."""
    for user, names in BY_USER:
        yield user, "; ".join(map(in_short, map(catalog.device, names)))


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
    parts = [
        HEAD.format(devices=len(catalog)),
        SERIES,
        *table(chart, series(catalog)),
        USERS,
        *table(("for", "cards of 2017 to 2021 at their launch prices"), users(catalog)),
        ADVICE,
        MACHINE,
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
