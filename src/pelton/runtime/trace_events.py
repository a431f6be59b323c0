"""Events, one a line, in the trace event format of ui.perfetto.dev and chrome://tracing
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from pelton.engine.plan import Step


class TraceEvents:
    """Events of this process since the object's creation."""

    def __init__(self) -> None:
        self.start = time.monotonic_ns()
        self.events: list[dict[str, Any]] = []

    def add(
        self, name: str, category: str, begin: int, end: int, args: Mapping[str, Any], thread: int | None = None
    ) -> None:
        """Adds an event from one time to another, in nanoseconds of `time.monotonic_ns`. thread: the number of its
        track; default: the calling thread."""
        self.events.append(
            {
                "cat": category,
                "pid": os.getpid(),
                "tid": threading.get_native_id() if thread is None else thread,
                "dur": (end - begin) / 1000,
                "ts": (begin - self.start) / 1000,
                "ph": "X",
                "name": name,
                "args": {k: v for k, v in args.items() if v not in ("", None)},
            }
        )

    def add_name(self, what: str, name: str, thread: int | None = None, order: int = 0) -> None:
        """Names the process or a thread (`what`: "process" or "thread"); tracks are sorted by their `order`."""
        track = {"pid": os.getpid(), "tid": threading.get_native_id() if thread is None else thread, "ts": 0, "ph": "M"}
        self.events.append({"cat": "__metadata", **track, "name": f"{what}_name", "args": {"name": name}})
        self.events.append({"cat": "__metadata", **track, "name": f"{what}_sort_index", "args": {"sort_index": order}})

    def lines(self) -> str:
        """Returns the events as JSON, separated by commas, a line for each."""
        return ",\n".join(json.dumps(e) for e in self.events)

    def in_order(self) -> Iterable[dict[str, Any]]:
        """Returns the events by their begin, names first; of those that begin together, enclosing ones first."""
        return sorted(self.events, key=lambda e: (e["ph"] != "M", e["ts"], -e.get("dur", 0)))


def facts(step: Step) -> dict[str, Any]:
    """Returns the facts about a step in a trace, beside its time."""
    return {
        "tactic": "host" if step.host else step.info.get("tactic", ""),
        "layers": ", ".join(step.info.get("layers") or ()),
        "flops": number(step.info.get("flops")),
        "bytes": number(step.info.get("bytes")),
    }


def number(value: Any) -> int | float | None:
    """Returns a finite number; None for anything else, which JSON cannot hold."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
