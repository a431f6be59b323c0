"""Profiles of devices: how much of its roof each kernel template reaches, and what starts cost; read from TOML files.

A measured profile also has the roof of its machine. `pelton advise --measure` writes one; `profiles/` has those that
come with Pelton, among them assumptions for kinds of devices that no profile was fitted on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pelton.errors import InputError
from pelton.system import files

from .catalog import KINDS, PRECISIONS, Hardware
from .tables import RowReader, read_toml

FOLDER = Path(__file__).parent / "profiles"
OTHERS = "*"  # the template whose figures hold for those without a row
LEVELS = ("l1", "l2", "l3", "memory")
FIELDS = {"name", "kind", "fitted", "note", "date", "pelton", "vendor", "architectures"}
TABLES = {"machine", "peaks", "bandwidth", "costs", "spread", "template", "network"}
COSTS = ("run_us", "step_us", "brief_us", "host_us")
SPREADS = ("run", "transfer")
RATIOS = ("compute", "bandwidth")
MOST = 20.0  # of an efficiency: small data come out of caches faster than out of the level that their size suggests


@dataclass(frozen=True)
class TemplateFit:
    """The share of the roof that steps of a template reach: of the peak if bound by compute, of the bandwidth if by
    memory. spread: standard deviation of the natural logarithm of measured over predicted time. layers: number of
    layers fitted on, 0 for an assumption."""

    template: str
    compute: float
    bandwidth: float
    spread: float
    layers: int = 0


@dataclass(frozen=True)
class BandwidthLevel:
    """Bandwidth in GB/s of all threads, of data that fit in `bytes`; None for memory."""

    level: str
    gbs: float
    bytes: int | None = None


@dataclass(frozen=True)
class FittedNetwork:
    """A network of the fit: its measured latency, and the latency that the profile predicts for it, in ms."""

    name: str
    measured_ms: float
    predicted_ms: float


@dataclass(frozen=True)
class LaunchCosts:
    """Microseconds of a run outside of its steps, of a step on all threads (a launch on GPUs), of a step on one thread
    (and of a run of such steps alone), and of a step in Python."""

    run_us: float
    step_us: float
    brief_us: float
    host_us: float


@dataclass(frozen=True)
class DeviceProfile:
    """Efficiencies and costs of a kind of device. fitted: True if measured, False for assumptions.

    peaks: tera-operations per second by precision, and levels: bandwidth, both of the measured machine; empty in
    profiles for devices of the catalog. run_spread: standard deviation of the natural logarithm of measured over
    predicted latency of whole networks. transfer_spread: the same for another device than the measured one, an
    assumption.
    """

    name: str
    kind: str
    fitted: bool
    note: str
    costs: LaunchCosts
    templates: Mapping[str, TemplateFit]
    run_spread: float
    transfer_spread: float
    peaks: Mapping[str, float] = field(default_factory=dict)
    levels: tuple[BandwidthLevel, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    networks: tuple[FittedNetwork, ...] = ()
    date: str = ""
    pelton: str = ""
    vendor: str = ""
    architectures: tuple[str, ...] = ()
    file: str = ""

    def fit(self, template: str, rival: str = "") -> TemplateFit:
        """Returns the figures of a template that a rival may replace, else of the template, else of all others."""
        either = self.templates.get(either_of(template, rival)) if rival else None
        return either or self.templates.get(template) or self.templates[OTHERS]

    def holds_for(self, row: Hardware) -> bool:
        """True if the profile is one for a device of the catalog."""
        same = row.kind == self.kind and self.vendor in ("", row.vendor)
        return same and (not self.architectures or row.architecture in self.architectures)

    @property
    def has_roof(self) -> bool:
        """True if the profile has the roof of a machine, and is a device itself."""
        return bool(self.peaks and self.levels)


def either_of(template: str, rival: str) -> str:
    """Returns the name of the figures of steps that the untimed plan runs by a template, and tuning by either."""
    return f"{template} or {rival}" if rival else template


def load_profile(path: str | os.PathLike[str]) -> DeviceProfile:
    """Reads a profile. Raises InputError with file, table and key for every figure that does not fit the schema."""
    content = read_toml(path)
    head = RowReader(content, path, "(top)")
    head.known(FIELDS | TABLES)
    if not isinstance(content.get("fitted"), bool):
        raise head.fail("fitted", f"expected true or false, got {content.get('fitted')!r}")
    costs = numbers(path, content, "costs", COSTS)
    spread = numbers(path, content, "spread", SPREADS)
    templates = {fit.template: fit for fit in _templates(path, content)}
    if OTHERS not in templates:
        raise InputError(f'{path}: no template = "{OTHERS}", whose figures hold for templates without a row')
    profile = DeviceProfile(
        _text(head, "name"),
        _text(head, "kind", KINDS),
        content["fitted"],
        _text(head, "note"),
        LaunchCosts(**costs),
        templates,
        spread["run"],
        spread["transfer"],
        head.numbers("peaks", PRECISIONS),
        tuple(_levels(path, content)),
        content.get("machine", {}),
        tuple(_networks(path, content)),
        head.text("date") or "",
        head.text("pelton") or "",
        head.text("vendor") or "",
        head.texts("architectures"),
        str(path),
    )
    machine(profile)
    return profile


def machine(profile: DeviceProfile) -> RowReader:
    """Returns the reader of a profile's machine, whose fields are checked."""
    if not isinstance(profile.machine, dict):
        raise InputError(f"{profile.file}: 'machine' is not a table")
    reader = RowReader(profile.machine, profile.file, "machine")
    reader.known({"cpu", "isa", "threads", "memory_gb", "power_w", "level"})
    for key in ("cpu", "isa"):
        reader.text(key)
    for key in ("memory_gb", "power_w"):
        reader.number(key)
    reader.whole("threads")
    reader.whole("level", 0, 5)
    return reader


def _text(reader: RowReader, key: str, choices: tuple[str, ...] = ()) -> str:
    text = reader.text(key, choices)
    if text is None:
        raise reader.fail(key, "absent")
    return text


def numbers(path: Any, content: Mapping[str, Any], key: str, keys: tuple[str, ...]) -> dict[str, float]:
    """Returns a table of finite numbers above 0 with exactly these keys."""
    reader = RowReader(content, path, "(top)")
    table = reader.numbers(key, keys)
    for inner in keys:
        if inner not in table:
            raise reader.fail(f"{key}.{inner}", "absent")
    return table


def _rows(path: Any, content: Mapping[str, Any], key: str, name: str, keys: set[str]) -> Iterator[RowReader]:
    """Yields the readers of an array of tables, whose names differ."""
    array = content.get(key, [])
    if not isinstance(array, list) or not all(isinstance(row, dict) for row in array):
        raise InputError(f"{path}: {key!r} is not an array of tables; write [[{key}]] above each row")
    names: set[str] = set()
    for i, row in enumerate(array, 1):
        label = RowReader(row, path, f"{key} number {i}").text(name)
        if label is None or label in names:
            raise InputError(f"{path}: {key} number {i}: {name!r} is absent, or that of another row")
        names.add(label)
        reader = RowReader(row, path, f"{key} {label}")
        reader.known(keys | {name})
        yield reader


def _number(reader: RowReader, key: str, most: float = math.inf) -> float:
    number = reader.number(key)
    if number is None or number > most:
        raise reader.fail(key, "absent" if number is None else f"expected at most {most:g}, got {number:g}")
    return number


def _templates(path: Any, content: Mapping[str, Any]) -> Iterator[TemplateFit]:
    for row in _rows(path, content, "template", "template", {*RATIOS, "spread", "layers"}):
        compute, bandwidth = (_number(row, key, MOST) for key in RATIOS)
        layers = row.whole("layers", 0) or 0
        yield TemplateFit(row.row["template"], compute, bandwidth, _number(row, "spread", 10), layers)


def _levels(path: Any, content: Mapping[str, Any]) -> Iterator[BandwidthLevel]:
    last = 0
    for row in _rows(path, content, "bandwidth", "level", {"gbs", "bytes"}):
        level, size = _text(row, "level", LEVELS), row.whole("bytes", 1, 1 << 50)
        if (size is None) != (level == "memory"):
            raise row.fail("bytes", "expected for every level but memory")
        if size is not None and size <= last:
            raise row.fail("bytes", f"expected more than the {last} of the level before")
        last = size or last
        yield BandwidthLevel(level, _number(row, "gbs"), size)


def _networks(path: Any, content: Mapping[str, Any]) -> Iterator[FittedNetwork]:
    for row in _rows(path, content, "network", "name", {"measured_ms", "predicted_ms"}):
        yield FittedNetwork(row.row["name"], _number(row, "measured_ms"), _number(row, "predicted_ms"))


def assumed(kind: str) -> DeviceProfile:
    """Returns the assumptions that come with Pelton for a kind of device, of the catalog's KINDS."""
    return load_profile(FOLDER / f"assumed_{'cpu' if kind == 'cpu' else 'accelerator'}.toml")


def measured_cpu() -> DeviceProfile:
    """Returns the profile of a CPU that comes with Pelton, whose efficiencies are the best guess for others."""
    return load_profile(FOLDER / "measured_cpu.toml")


def published(row: Hardware) -> DeviceProfile:
    """Returns the profile that comes with Pelton for a device of the catalog: a CPU's, the one fitted on published
    figures of devices of its vendor and architecture, else the assumptions."""
    if row.kind == "cpu":
        return measured_cpu()
    fitted = load_profile(FOLDER / "fitted_nvidia.toml")
    return fitted if fitted.holds_for(row) else assumed(row.kind)


def save_profile(profile: DeviceProfile, path: str | os.PathLike[str]) -> None:
    """Writes a profile atomically. Raises InputError if the file cannot be written."""
    try:
        files.write(path, [to_toml(profile).encode()])
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from None


def to_toml(profile: DeviceProfile) -> str:
    """Returns the text of a profile's file."""
    names = ("name", "kind", "fitted", "note", "date", "pelton", "vendor", "architectures")
    head = {name: getattr(profile, name) for name in names}
    parts = [_lines({k: v for k, v in head.items() if v not in ("", ())})]
    spread = {"run": profile.run_spread, "transfer": profile.transfer_spread}
    costs = {key: getattr(profile.costs, key) for key in COSTS}
    tables = {"machine": profile.machine, "peaks": profile.peaks, "costs": costs, "spread": spread}
    parts += [f"[{name}]\n{_lines(table)}" for name, table in tables.items() if table]
    for name, rows in (
        ("bandwidth", profile.levels),
        ("template", profile.templates.values()),
        ("network", profile.networks),
    ):
        parts += [f"[[{name}]]\n{_lines({k: v for k, v in vars(row).items() if v is not None})}" for row in rows]
    return "\n".join(parts)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        text = "".join(c if c.isprintable() else " " for c in value)
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value) if isinstance(value, int) else f"{value:.6g}"
