"""What a program tells of itself: its answers and how long they took, as JSON in the file that its first argument
names."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

# later calls: so many, or as many as take so many seconds if that is more
LEAST, LONGEST = 5, 3.0


def tell(package: str, make: Callable[[], Any], ask: Callable[[Any], Any]) -> None:
    """Makes the library's object, asks it once, and then again and again. First is the time of making and of the first
    answer."""
    began = time.perf_counter()
    made = make()
    answers = ask(made)
    first = time.perf_counter() - began
    later: list[float] = []
    while len(later) < LEAST or sum(later) < LONGEST:
        began = time.perf_counter()
        again = ask(made)
        later.append(time.perf_counter() - began)
    told = {
        "package": package,
        "version": metadata.version(package),
        "runtime": sys.modules["onnxruntime"].__name__,
        "answers": answers,
        "again": again,
        "first": first,
        "later": statistics.median(later),
    }
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(told, out, default=_plain)


def skip(reason: str) -> None:
    """Ends the program: what it needs is not on this machine."""
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"skipped": reason}, out)
    sys.exit(0)


def _plain(value: Any) -> Any:
    """Arrays, tensors and their numbers as lists and numbers; paths as texts."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
