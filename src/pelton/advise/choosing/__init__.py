"""The tables of docs/choosing.md: frameworks and routes of deployment, each row with its date and source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..catalog.reader import DATE
from ..tables import RowReader, rows

FOLDER = Path(__file__).parent
GROUPS = ("framework", "compiler", "server", "launcher")


@dataclass(frozen=True)
class Framework:
    """A framework, compiler, server or launcher: what it is, and its state at a date. url: the source of the state."""

    group: str
    name: str
    what: str
    state: str
    date: str
    url: str


@dataclass(frozen=True)
class Route:
    """A target of deployment, what to use there at a date and instead of what; pelton: the page that leads there."""

    target: str
    use: str
    instead: str
    date: str
    url: str
    pelton: str


def frameworks(path: Path = FOLDER / "frameworks.toml") -> tuple[Framework, ...]:
    """Returns the rows of frameworks.toml. Raises InputError with file, row and key for one that does not fit."""
    return tuple(Framework(**fields(row, path, Framework, "name")) for row in rows(path, "row"))


def routes(path: Path = FOLDER / "routes.toml") -> tuple[Route, ...]:
    """Returns the rows of routes.toml. Raises InputError with file, row and key for one that does not fit."""
    return tuple(Route(**fields(row, path, Route, "target")) for row in rows(path, "row"))


def fields(row: dict[str, object], path: Path, kind: type, title: str) -> dict[str, str]:
    """The fields of a row, all of them texts; only `instead` and `pelton` may be empty."""
    reader = RowReader(row, path, str(row.get(title, "without a name")))
    keys = list(kind.__annotations__)
    reader.known(set(keys))
    for key in keys:
        empty = key in ("instead", "pelton") and row.get(key) == ""
        if not empty and reader.text(key, GROUPS if key == "group" else ()) is None:
            raise reader.fail(key, "absent")
    date, url = str(row["date"]), str(row["url"])
    if not DATE.fullmatch(date):
        raise reader.fail("date", f"expected a date such as 2026-05, got {date!r}")
    if not url.startswith("https://"):
        raise reader.fail("url", f"expected an address with https://, got {url!r}")
    return {key: str(row[key]) for key in keys}
