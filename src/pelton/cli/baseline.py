"""Compares an earlier measurement of `pelton bench --json` with a new one, and the change with the noise."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pelton.errors import InputError

ALIKE = ("machine", "streams", "threads", "batch", "shapes")  # must be equal for comparable times


def read(path: str, hint: str) -> dict[str, Any]:
    """Reads an earlier measurement. Raises InputError for files of other content, and of another hint."""
    try:
        with open(path, encoding="utf-8") as f:
            measurement = json.load(f)
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "it is no JSON"
        raise InputError(f"{path} cannot be read: {reason}; expected the output of pelton bench --json") from None
    latency = measurement.get("latency_ms") if isinstance(measurement, dict) else None
    if not isinstance(latency, dict) or not all(
        isinstance(n, (int, float)) and n > 0
        for n in (latency.get("median"), measurement.get("throughput"), measurement.get("spread"))
    ):
        raise InputError(f"{path} is not the output of pelton bench --json for one set of inputs")
    if (before := measurement.get("hint", "latency")) != hint:
        raise InputError(f"{path} was measured with --hint {before}, this would be with {hint}; compare equal ones")
    return measurement


def compare(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the new time divided by the old one (`ratio`), the larger spread of both (`noise`), True if the ratio
    exceeds the noise (`differs`), and the differences in the measured things (`unlike`)."""
    unlike = [
        f"{name} {_words(old[name])}, now {_words(now)}"
        for name in ALIKE
        if name in old and old[name] != (now := plain(new.get(name)))
    ]
    ratio, noise = cost(new) / cost(old), max(old["spread"], new["spread"])
    return {
        "file": path,
        "date": old.get("date", ""),
        "version": old.get("pelton", ""),
        "ratio": ratio,
        "noise": noise,
        "differs": not 1 / noise <= ratio <= noise,
        "unlike": unlike,
    }


def is_slower(found: Mapping[str, Any], factor: float) -> bool:
    """Returns True if the time grew by more than this factor and by more than the noise."""
    return found["differs"] and found["ratio"] > factor


def cost(result: Mapping[str, Any]) -> float:
    """Returns the compared figure: the median time of a run, or for overlapping runs, the time per run."""
    return result["latency_ms"]["median"] if result.get("hint", "latency") == "latency" else 1 / result["throughput"]


def _words(value: Any) -> str:
    """Formats a value as users type it: shapes as NAME=2x3."""
    if isinstance(value, dict):
        return ",".join(f"{name}={'x'.join(map(str, sizes))}" for name, sizes in value.items())
    return str(value)


def plain(value: Any) -> Any:
    """Returns a value after a round trip through JSON."""
    return json.loads(json.dumps(value))


def line(found: Mapping[str, Any]) -> str:
    """Describes the comparison in words."""
    ratio = found["ratio"]
    faster = f"{1 / ratio:.2f} times as fast" if ratio <= 1 else f"{ratio:.2f} times slower"
    of = f"{os.path.basename(found['file'])}{' of ' + found['date'] if found['date'] else ''}"
    meaning = "more than" if found["differs"] else "within"
    words = f"compared with {of}: {faster}, {meaning} the noise (a factor of {found['noise']:.2f})"
    return words + "".join(f"\nnot alike: {what}" for what in found["unlike"])
