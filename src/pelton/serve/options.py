"""Options of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONTROLS = ("none", "poll", "explicit")
MIB = 1 << 20


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server, as `pelton serve` parses them.

    models: engine files, model files, or repositories (folders of folders). name: the server's, as clients see it.
    control: "none", "poll" (the folders are watched) or "explicit" (clients load and unload). startup: models to load
    first in explicit mode, ("*",) for all. poll: seconds between two looks at the folders.
    batch: "auto" measures whether batching pays, "off", or the most rows of a batch. slo: seconds from a request's
    arrival to its answer. jobs, threads: as for AsyncQueue. bound: most waiting rows of a model.
    Of language models: sequences, answers at once; context, the most tokens of a prompt with its answer; kv_cache, the
    type of its caches; max_tokens, of an answer; waiting, requests that wait; answer_seconds, until an answer has to be
    over.
    Limits: body, tensor and header in bytes; requests under way. drain: seconds that a stopping server waits for them.
    cache: bytes of the response cache. traces: where to send traces by OpenTelemetry: a URL, "otlp" for that of the
    standard variables, None to send none. trace_rate: part of the requests to trace, 0 to 1; None for all, unless the
    standard variables say otherwise.
    """

    models: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    http: bool = True
    grpc: bool = True
    metrics: bool = True
    unix: str | None = None
    name: str = "pelton"
    control: str = "poll"
    startup: tuple[str, ...] = ()
    poll: float = 1.0
    batch: str | int = "auto"
    slo: float | None = None
    jobs: int | None = None
    threads: int | None = None
    bound: int = 4096
    sequences: int = 4
    context: int | None = None
    kv_cache: str | None = None
    max_tokens: int | None = None
    waiting: int = 64
    answer_seconds: float = 600.0
    body: int = 64 * MIB
    header: int = 64 << 10
    requests: int = 1024
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    drain: float = 30.0
    cache: int = 0
    token: str | None = None
    origins: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    workers: int = 1
    trust: tuple[str, ...] = ()
    traces: str | None = None
    trace_rate: float | None = None
