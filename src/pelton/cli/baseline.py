"""An earlier measurement of `pelton bench --json` beside a new one: what changed, and whether noise explains it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pelton.errors import InputError

ALIKE = ("machine", "hint", "streams", "threads", "batch", "shapes")  # what has to be equal for times to compare


def read(path: str) -> dict[str, Any]:
    """What an earlier call measured. Raises InputError for files of other content."""
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "it is no JSON"
        raise InputError(f"{path} cannot be read: {reason}; expected the output of pelton bench --json") from None
    latency = found.get("latency_ms") if isinstance(found, dict) else None
    if not isinstance(latency, dict) or not all(
        isinstance(n, (int, float)) and n > 0
        for n in (latency.get("median"), found.get("throughput"), found.get("spread"))
    ):
        raise InputError(f"{path} is not the output of pelton bench --json for one set of inputs")
    return found


def compare(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The new time by the old one (`ratio`), the larger spread of both (`noise`), whether the one exceeds the other,
    and what makes them measurements of different things."""
    unlike = [
        f"{name} {old[name]}, now {new[name]}" for name in ALIKE if name in old and old[name] != plain(new.get(name))
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


def cost(result: Mapping[str, Any]) -> float:
    """What is compared: the median time of a run, or where runs overlap, the time by their number."""
    return result["latency_ms"]["median"] if result.get("hint", "latency") == "latency" else 1 / result["throughput"]


def plain(value: Any) -> Any:
    """A value as it comes back from JSON."""
    return json.loads(json.dumps(value))


def line(found: Mapping[str, Any]) -> str:
    """The comparison in words."""
    ratio = found["ratio"]
    faster = f"{1 / ratio:.2f} times as fast" if ratio <= 1 else f"{ratio:.2f} times slower"
    of = f"{os.path.basename(found['file'])}{' of ' + found['date'] if found['date'] else ''}"
    meaning = "more than" if found["differs"] else "within"
    words = f"beside {of}: {faster}, {meaning} the noise (a factor of {found['noise']:.2f})"
    return words + "".join(f"\nnot alike: {what}" for what in found["unlike"])
