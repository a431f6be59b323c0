"""The page: one HTML file with data, script and style inside; it fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton import html
from pelton.errors import Error

from .align import align
from .data import Described

BUNDLE = Path(__file__).parent / "bundle"
PIECES = ("page.html", "explorer.js", "explorer.css")


def page(engines: Sequence[Described], facts: dict[str, Any], sample: Mapping[str, Any] | None = None) -> str:
    """Returns the HTML of one engine, or of two side by side. facts: of the measurement, such as the machine's peak.

    sample: the engine's results for some pictures, shown in a tab of their own: a "title", "lines" of text, and
    "pictures", each with "src" (a data: URL), "alt", "caption", and a bool "right".

    Raises Error if the installation lacks the files of `explorer/bundle`.
    """
    template, script, style = map(_read, PIECES)
    data = {**facts, "engines": [e.json() for e in engines], **({"sample": sample} if sample else {})}
    if len(engines) == 2:
        data["rows"] = align(*engines)
    parts = {
        "POLICY": f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "worker-src blob:; img-src data:; base-uri 'none'; form-action 'none'",
        "TITLE": html.text(" and ".join(os.path.basename(e.plan.label) for e in engines) + " · Pelton"),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": as_json(data),
        "TABLE": "".join(map(_static, engines)),
    }
    first, *rest = template.split("{{")
    return first + "".join(parts[piece.partition("}}")[0]] + piece.partition("}}")[2] for piece in rest)


def as_json(data: Any) -> str:
    """Encodes JSON that cannot end its script element: in ASCII, without "<", ">" and "&"."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    """Returns the hash of an inline script or style for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(name: str) -> str:
    try:
        return (BUNDLE / name).read_text(encoding="utf-8")
    except OSError as e:
        raise Error(
            f"{BUNDLE / name} cannot be read: {e.strerror or e}; install pelton again, or run `make explorer` in its"
            " sources"
        ) from None


def _static(engine: Described) -> str:
    """Returns the view for browsers without scripts."""
    rows = [
        (f"{i}", step.name, str(step.info.get("op", "")), f"{time.ns / 1e3:.1f}", time.source)
        for i, (step, time) in enumerate(zip(engine.steps, engine.times))
    ]
    return html.table(("step", "layers", "does", "µs", ""), rows, os.path.basename(engine.plan.label))
