"""Runs a server: sockets, both protocols, metrics, signals, and the drain at its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from pelton.errors import InputError, Needs

from . import grpc, metrics
from .http import Application
from .options import ServeOptions
from .protocol import bounded, close_late
from .server import Server

log = logging.getLogger("pelton.serve")
BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers: the caller stops it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """Binds a port. shared: other processes bind it, too. Raises InputError if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    handle = socket.socket(family, socket.SOCK_STREAM)
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if shared:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        handle.bind((host, port))
    except (OSError, OverflowError) as e:
        handle.close()
        raise InputError(f"port {port} of {host} cannot be opened: {e}; choose another one") from None
    return handle


def unix_socket(path: str) -> socket.socket:
    """Binds a socket file, in place of one that nothing listens on. Raises InputError if that fails."""
    handle = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(OSError), contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            probe.connect(path)
            raise InputError(f"another server listens on {path}; stop it, or choose another path")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        handle.bind(path)
    except OSError as e:
        handle.close()
        raise InputError(f"the socket {path} cannot be opened: {e}") from None
    return handle


def tls(options: ServeOptions) -> dict[str, Any]:
    """Returns uvicorn's options for the server's certificate; clients need one, too, with `client_ca`."""
    if options.certificate is None:
        return {}
    return {
        "ssl_certfile": options.certificate,
        "ssl_keyfile": options.key,
        "ssl_ca_certs": None if options.client_ca is None else str(options.client_ca),
        "ssl_cert_reqs": ssl.CERT_NONE if options.client_ca is None else ssl.CERT_REQUIRED,
    }


def serve(options: ServeOptions, ready: Callable[[str], object] = lambda line: None) -> None:
    """Serves until SIGTERM or SIGINT. ready: called with a line about the addresses once all models are loaded.

    Raises Error for ports in use, and for a model that the caller named and that cannot be loaded.
    """
    sockets = [listen(options.host, options.http_port, options.workers > 1)] if options.http else []
    if options.unix is not None:
        sockets.append(unix_socket(options.unix))
    server = Server(options)
    server.traces = traces(options)
    try:
        with asyncio.Runner(loop_factory=_loop) if hasattr(asyncio, "Runner") else _OldRunner() as runner:
            runner.run(_serve(server, sockets, ready))
    finally:
        if options.unix is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(options.unix)


def traces(options: ServeOptions) -> Any:
    """Returns the sender of traces that the options ask for; None, without an import, if they ask for none."""
    if options.traces is None:
        return None
    with Needs("sending traces", InputError, "telemetry"):
        from .telemetry import Traces
    return Traces(options)


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


class _OldRunner(contextlib.AbstractContextManager["_OldRunner"]):
    """asyncio.Runner for Python 3.10."""

    def __exit__(self, *error: Any) -> None:
        self.loop.close()

    def run(self, coroutine: Any) -> None:
        self.loop = _loop()
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(coroutine)


async def _serve(server: Server, sockets: list[socket.socket], ready: Callable[[str], object]) -> None:
    options = server.options
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    application = Application(server).with_cross_origin()
    config = uvicorn.Config(
        application if server.traces is None else server.traces.over(application),
        http=bounded(options),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        interface="asgi3",
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(options.drain)),
        **tls(options),
    )
    http = HttpServer(config)
    serving = asyncio.create_task(http.serve(sockets=sockets))
    remote, counters = None, None
    try:
        loading = loop.run_in_executor(None, server.start)
        await _first(loading, stop)
        if not stop.is_set():
            remote = grpc.start(server) if options.grpc else None
            counters = metrics.start(server) if options.metrics else None
            ready(addresses(options, sockets, remote, counters))
        while not stop.is_set():
            close_late(http.server_state.connections, loop.time(), options.header_seconds)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
            if serving.done():
                break
    finally:
        server.draining = True
        http.should_exit = True
        if remote is not None:
            await loop.run_in_executor(None, remote.stop, options.drain)
        await serving
        if counters is not None:
            counters[1]()
        await loop.run_in_executor(None, server.close)
        if server.traces is not None:
            await loop.run_in_executor(None, server.traces.close)


async def _first(loading: Any, stop: asyncio.Event) -> None:
    """Waits until the models are loaded, or a signal arrives. Raises the error of loading."""
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if loading.done():
        loading.result()


def addresses(options: ServeOptions, sockets: list[socket.socket], remote: Any, counters: Any) -> str:
    """Returns the addresses that a server listens on."""
    scheme = "https" if options.certificate is not None else "http"
    texts = []
    for handle in sockets:
        name = handle.getsockname()
        texts.append(f"{scheme}://{options.host}:{name[1]}" if isinstance(name, tuple) else f"unix:{name}")
    if remote is not None:
        texts.append(f"grpc://{options.host}:{remote.port}")
    if counters is not None:
        texts.append(f"metrics http://{options.host}:{counters[0]}/metrics")
    return ", ".join(texts)
