"""Reads rows of devices from TOML files; a row of a later file overrides the fields of an earlier one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..tables import RowReader, rows
from .hardware import FORMS, KINDS, PRECISIONS, Citation, Hardware, Price

FOLDER = Path(__file__).parent
KEY = "device"
DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")
PRICE_KINDS = ("launch", "list", "street")
REQUIRED = ("name", "vendor", "kind", "form", "architecture", "year")
TEXTS = ("vendor", "architecture", "memory_type", "remarks")
NUMBERS = (
    *("memory_gb", "memory_gtps", "bandwidth_gbs", "power_w", "pcie", "slots", "length_mm", "psu_w"),
    *("base_mhz", "clock_mhz", "cache_mb", "memory_mtps"),
)
WHOLE = ("memory_bits", "lanes", "cores", "performance_cores", "threads", "channels", "vector_bits", "fma_units")
LISTS = ("aliases", "isa", "derived")
PRICE = ("price", "currency", "price_date", "price_kind")
KEYS = {*REQUIRED, *TEXTS, *NUMBERS, *WHOLE, *LISTS, *PRICE, "dense", "sparse", "sources"}
YEARS = (1990, 2100)


def catalog_files() -> list[Path]:
    """The files of the catalog, in order of names."""
    return sorted(FOLDER.glob("*.toml"))


def read(paths: Iterable[str | os.PathLike[str]], extra: str | os.PathLike[str] | None = None) -> list[Hardware]:
    """Returns the devices of the files in order, and then those of the user's own file, `extra`.

    Raises InputError with file, row and key for anything that does not fit the schema, and for a device whose name or
    alias another device has. A row of `extra` with the name or alias of a device overrides its fields.
    """
    merged: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}  # name or alias, in lower case → name
    origins: dict[str, list[str]] = {}
    for path in (*paths, *([extra] if extra is not None else [])):
        for i, row in enumerate(rows(path, KEY), 1):
            name = checked_name(row, path, i)
            check_fields(RowReader(row, path, name))
            known = names.get(name.lower())
            if known and (path != extra or str(path) in origins[known]):
                raise InputError(f"{path}: row {name!r}: {known!r} of {origins[known][-1]} has this name already")
            known = known or name
            merged[known] = override(merged[known], row) if known in merged else dict(row)
            merged[known]["name"] = known
            origins.setdefault(known, []).append(str(path))
            for word in (known, *row.get("aliases", ())):
                if names.setdefault(word.lower(), known) != known:
                    raise InputError(f"{path}: row {name!r}: {names[word.lower()]!r} has the name {word!r} already")
    return [build(row, tuple(origins[name])) for name, row in merged.items()]


def checked_name(row: Mapping[str, Any], path: str | os.PathLike[str], index: int) -> str:
    """The name of a row. Raises InputError if it is absent or no text."""
    name = RowReader(row, path, f"number {index}").text("name")
    if name is None:
        raise InputError(f'{path}: row number {index} has no name; write name = "…"')
    return name


def override(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of two rows of one device: those of the new row, and the others of the old; peaks one by one."""
    both = {**old, **new}
    for key in ("dense", "sparse"):
        if key in old and key in new:
            both[key] = {**old[key], **new[key]}
    if "derived" not in new:  # a figure of the user's is not derived
        given = {*new.get("dense", ()), *(f"sparse.{k}" for k in new.get("sparse", ()))}
        both["derived"] = [k for k in old.get("derived", ()) if k not in given]
    for key in ("aliases", "sources"):
        both[key] = [*old.get(key, ()), *(v for v in new.get(key, ()) if v not in old.get(key, ()))]
    return both


def check_fields(reader: RowReader) -> None:
    """Raises InputError for a field of a row that does not fit the schema; absent fields are not looked for."""
    reader.known(KEYS)
    for key in TEXTS:
        reader.text(key)
    reader.text("kind", KINDS)
    reader.text("form", FORMS)
    reader.whole("year", *YEARS)
    for key in NUMBERS:
        reader.number(key)
    for key in WHOLE:
        reader.whole(key)
    for key in LISTS:
        reader.texts(key)
    reader.numbers("dense", PRECISIONS)
    reader.numbers("sparse", PRECISIONS)
    price(reader)
    citations(reader)


def build(row: Mapping[str, Any], files: tuple[str, ...]) -> Hardware:
    """The device of a row whose fields are checked. Raises InputError if a required field is absent."""
    reader = RowReader(row, files[0], row["name"])
    for key in REQUIRED:
        if key not in row:
            raise reader.fail(key, f"absent; a new device needs {', '.join(REQUIRED)}")
    dense, sparse = reader.numbers("dense", PRECISIONS), reader.numbers("sparse", PRECISIONS)
    for key in reader.texts("derived"):
        if key not in dense and key.removeprefix("sparse.") not in (sparse if key.startswith("sparse.") else dense):
            raise reader.fail("derived", f"{key!r} is none of the peaks")
    values: dict[str, Any] = {key: row[key] for key in ("name", "kind", "form", "year", *TEXTS) if key in row}
    values |= {key: reader.number(key) for key in NUMBERS}
    values |= {key: reader.whole(key) for key in WHOLE}
    values |= {key: reader.texts(key) for key in LISTS}
    return Hardware(**values, dense=dense, sparse=sparse, price=price(reader), sources=citations(reader), files=files)


def price(reader: RowReader) -> Price | None:
    """The price of a row, which needs a currency and a date."""
    amount = reader.number("price")
    currency, date = reader.text("currency"), reader.text("price_date")
    kind = reader.text("price_kind", PRICE_KINDS)
    if currency is not None and not re.fullmatch("[A-Z]{3}", currency):
        raise reader.fail("currency", f"expected three capitals such as USD, got {currency!r}")
    if date is not None and not DATE.fullmatch(date):
        raise reader.fail("price_date", f"expected a date such as 2026-05-31 or 2026, got {date!r}")
    if amount is None:
        if currency or date or kind:
            raise reader.fail("price", "absent, yet its currency, date or kind is there")
        return None
    if currency is None or date is None:
        raise reader.fail("price", "a price needs currency and price_date")
    return Price(amount, currency, date, kind or "launch")


def citations(reader: RowReader) -> tuple[Citation, ...]:
    """The sources of a row: tables with the keys url and supports."""
    value = reader.row.get("sources", [])
    if not isinstance(value, list):
        raise reader.fail("sources", f"expected a list of tables, got {value!r}")
    for source in value:
        if not isinstance(source, dict) or source.keys() != {"url", "supports"}:
            raise reader.fail("sources", f"expected tables with url and supports, got {source!r}")
        for key, text in source.items():
            if not isinstance(text, str) or not text.strip():
                raise reader.fail(f"sources.{key}", f"expected a text, got {text!r}")
        if not source["url"].startswith(("https://", "http://")):
            raise reader.fail("sources.url", f"expected an address with https://, got {source['url']!r}")
    return tuple(Citation(source["url"], source["supports"]) for source in value)
