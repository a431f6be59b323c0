"""Writes the answers of a program, and how long they took, as JSON to the file that its first argument names."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

# later calls: at least this many, and for at least this many seconds
MIN_CALLS, MIN_SECONDS = 5, 3.0


def report(package: str, make: Callable[[], Any], ask: Callable[[Any], Any]) -> None:
    """Makes the library's object and asks it repeatedly. `first`: seconds until the first answer, construction
    included; `later`: the median of later answers."""
    began = time.perf_counter()
    client = make()
    answers = ask(client)
    first = time.perf_counter() - began
    later: list[float] = []
    while len(later) < MIN_CALLS or sum(later) < MIN_SECONDS:
        began = time.perf_counter()
        again = ask(client)
        later.append(time.perf_counter() - began)
    result = {
        "package": package,
        "version": metadata.version(package),
        "runtime": sys.modules["onnxruntime"].__name__,
        "answers": answers,
        "again": again,
        "first": first,
        "later": statistics.median(later),
    }
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(result, out, default=_plain)


def skip(reason: str) -> None:
    """Ends the program, because something that it needs is not on this machine."""
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"skipped": reason}, out)
    sys.exit(0)


def _plain(value: Any) -> Any:
    """Arrays, tensors and their scalars as lists and numbers; everything else as strings."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
