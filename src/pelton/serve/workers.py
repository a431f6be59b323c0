"""Several processes behind one port: the kernel divides connections among them, and each maps the same engines."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from pelton.errors import Error, InputError

from .options import ServeOptions
from .run import listen, serve

log = logging.getLogger("pelton.serve")
PAUSE = 1.0  # seconds before a worker that died is started again


def serve_all(options: ServeOptions, ready: Callable[[str], object] = lambda line: None) -> None:
    """Serves in `options.workers` processes until SIGTERM or SIGINT; workers that die are started again.

    Worker i has its metrics on port metrics_port + i. Raises InputError for what processes cannot share: explicit
    control of models, and socket files; Error if the first start of a worker fails.
    """
    if options.workers == 1:
        serve(options, ready)
        return
    if options.control == "explicit":
        raise InputError("--model-control explicit needs one process: a client's request reaches one of the workers")
    if options.unix is not None:
        raise InputError("--unix needs one process; start several servers with a socket each")
    # reserves the ports, without listening
    kept = [listen(options.host, port, shared=True) for port in _ports(options)]
    if options.http:
        options = replace(options, http_port=kept[0].getsockname()[1])
    if options.grpc:
        options = replace(options, grpc_port=kept[-1].getsockname()[1])
    try:
        _Group(options, ready).run()
    finally:
        for handle in kept:
            handle.close()


def _ports(options: ServeOptions) -> list[int]:
    return [p for p, used in ((options.http_port, options.http), (options.grpc_port, options.grpc)) if used]


class _Group:
    """The processes of a server, and the signals that end them."""

    def __init__(self, options: ServeOptions, ready: Callable[[str], object]):
        self.options, self.ready = options, ready
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[tuple[Any, Connection]] = []
        self.stopping = False

    def run(self) -> None:
        """Starts the workers and waits for the end of all of them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            self.workers = [self._start(index) for index in range(self.options.workers)]
            lines = [self._first_line(index) for index in range(len(self.workers))]
            if not self.stopping:
                self.ready(f"{lines[0]} in {len(lines)} processes")
            while not self.stopping:
                self._watch()
        finally:
            self._stop()
            for process, _ in self.workers:
                process.join(self.options.drain + 10)
                if process.is_alive():
                    process.kill()

    def _start(self, index: int) -> tuple[Any, Connection]:
        own, others = self.context.Pipe(duplex=False)
        metrics = self.options.metrics_port + index if self.options.metrics_port else 0
        options = replace(self.options, metrics_port=metrics)
        process = self.context.Process(target=_work, args=(options, others), name=f"pelton-serve-{index}")
        process.start()
        others.close()
        return process, own

    def _first_line(self, index: int) -> str:
        """Waits until a worker is ready; returns its addresses. Raises Error with its reason if it fails."""
        process, own = self.workers[index]
        try:
            kind, text = own.recv()
        except EOFError:
            if self.stopping:
                return ""
            process.join()
            raise Error(f"worker {index} ended with status {process.exitcode}; its messages are above") from None
        if kind != "ready":
            raise Error(text)
        return str(text)

    def _watch(self) -> None:
        """Waits for the end of a worker, and starts it again."""
        wait([process.sentinel for process, _ in self.workers], timeout=0.5)
        for index, (process, _) in enumerate(self.workers):
            if not process.is_alive() and not self.stopping:
                log.error("worker %d ended with status %s and is started again", index, process.exitcode)
                time.sleep(PAUSE)
                self.workers[index] = self._start(index)

    def _stop(self, *_: Any) -> None:
        self.stopping = True
        for process, _connection in self.workers:
            with contextlib.suppress(ProcessLookupError):
                if process.pid is not None and process.is_alive():
                    os.kill(process.pid, signal.SIGTERM)


def _work(options: ServeOptions, parent: Connection) -> None:
    """Serves in a worker; reports to its parent when it is ready, or why it is not. It ends if the parent dies."""
    threading.Thread(target=_end_with_parent, name="pelton-parent", daemon=True).start()
    try:
        serve(options, ready=lambda line: parent.send(("ready", line)))
    except Error as e:
        with contextlib.suppress(OSError):
            parent.send(("failed", str(e)))
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    process = multiprocessing.parent_process()
    if process is not None:
        process.join()
        os.kill(os.getpid(), signal.SIGTERM)
