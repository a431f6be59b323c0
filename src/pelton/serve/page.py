"""The page for people: models, queues, latencies and refusals at /, and the explorer's page of each engine."""

from __future__ import annotations

import base64
import hashlib
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from pelton.explorer.data import Described
from pelton.explorer.page import page as explorer_page
from pelton.runtime.script_engine import steps_between
from pelton.version import VERSION

from .model import ServedModel
from .requests import RequestError
from .server import Server
from .statistics import BUCKETS

FILES = Path(__file__).parent
COMMON = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


class Page:
    """The page of a server, and the routes to it."""

    def __init__(self, server: Server):
        self.server = server
        self._html, self._policy = html()
        self._explored: weakref.WeakKeyDictionary[ServedModel, str] = weakref.WeakKeyDictionary()

    def routes(self) -> list[StarletteRoute]:
        """Returns the routes of the page, of its data, and of the engines' pages."""
        return [
            StarletteRoute("/", self.index, methods=["GET"]),
            StarletteRoute("/page.json", self.data, methods=["GET"]),
            StarletteRoute("/explorer/{model}/{version}", self.explorer, methods=["GET"]),
        ]

    async def index(self, request: Request) -> Response:
        headers = {**COMMON, "content-security-policy": self._policy}
        return Response(self._html, media_type="text/html", headers=headers)

    async def data(self, request: Request) -> Response:
        others = request.scope["pelton.application"].under_way - 1
        content = orjson.dumps(figures(self.server, others))
        return Response(content, media_type="application/json", headers=COMMON)

    async def explorer(self, request: Request) -> Response:
        model = self.server.model(request.path_params["model"], request.path_params["version"])
        text = self._explored.get(model)
        if text is None:
            text = self._explored[model] = await run_in_threadpool(explored, model)
        # the policy of its script and style is in the page itself
        headers = {**COMMON, "content-security-policy": "frame-ancestors 'none'"}
        return Response(text, media_type="text/html", headers=headers)


def html() -> tuple[str, str]:
    """Returns the page and its content security policy: its own style and script, and requests to this server."""
    template, style, script = ((FILES / f"page.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return template.replace("{{STYLE}}", style).replace("{{SCRIPT}}", script), policy


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def explored(model: ServedModel) -> str:
    """Returns the explorer's page of a model's engine. Raises RequestError for a model without one."""
    engine = getattr(model, "engine", None)
    if engine is None:
        raise RequestError(f"model {model.name!r} is a {model.kind}, which has no page of its engine", "absent")
    described = Described(engine.plain, steps_between(engine))
    return explorer_page([described], {"version": VERSION, "peak": None})


def figures(server: Server, under_way: int) -> dict[str, Any]:
    """Returns what the page shows."""
    return {
        "name": server.options.name,
        "version": VERSION,
        "ready": server.ready(),
        "seconds": time.time() - server.started,
        "under_way": under_way,
        "models": [_model(server, row) for row in server.index()],
    }


def _model(server: Server, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a row of the index."""
    name, version = row["name"], row.get("version", "")
    model = server.table.get((name, version))
    facts: dict[str, Any] = {
        "name": name,
        "version": version,
        "state": row.get("state", "UNAVAILABLE"),
        "reason": row.get("reason", "") or "not loaded",
    }
    if model is None:  # not loaded, or unloaded meanwhile
        return {**facts, "how": "", "explorer": False, "latest": True, **_NONE}
    statistics = model.statistics
    report, buckets = statistics.report(name, version), list(statistics.buckets)
    p50, p50_open = quantile(buckets, 0.5)
    p99, p99_open = quantile(buckets, 0.99)
    return {
        **facts,
        "how": how(model),
        "explorer": getattr(model, "engine", None) is not None,
        "latest": server.table.get((name, "")) is model,
        "requests": report["inference_stats"]["success"]["count"],
        "rows": report["inference_count"],
        "waiting": model.waiting(),
        "batches": [
            {"rows": batch["batch_size"], "runs": batch["compute_infer"]["count"]} for batch in report["batch_stats"]
        ],
        "faults": dict(statistics.faults),
        "p50": p50,
        "p50_open": p50_open,
        "p99": p99,
        "p99_open": p99_open,
    }


_NONE = {
    "requests": 0,
    "rows": 0,
    "waiting": 0,
    "batches": [],
    "faults": {},
    "p50": None,
    "p50_open": False,
    "p99": None,
    "p99_open": False,
}


def how(model: ServedModel) -> str:
    """Returns the way in which a model runs, in a few words."""
    if getattr(model, "engine", None) is None:
        return str(getattr(model, "how", model.kind))
    if model.sequences is not None:
        return f"{len(model.sequences)} sequences{model.where}"
    if model.queue is None:
        return "runs in line" + model.where
    return (f"queue of {model.queue.jobs} jobs" if model.queue.jobs > 1 else "queue of one job") + model.where


def quantile(buckets: Sequence[int], part: float) -> tuple[float | None, bool]:
    """Returns the latency in seconds below which `part` of the requests are, linear within a bucket, and whether it is
    a lower bound, in the open bucket; None without requests. buckets: counts up to each of BUCKETS, and above."""
    total = sum(buckets)
    if not total:
        return None, False
    rank, below, count = part * total, 0.0, 0
    for bound, inside in zip(BUCKETS, buckets):
        if inside and count + inside >= rank:
            return below + (bound - below) * (rank - count) / inside, False
        count, below = count + inside, bound
    return BUCKETS[-1], True
