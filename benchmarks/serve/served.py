"""Starts `pelton serve` in a process of its own, and stops it."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


class NotServing(Exception):
    """The server did not start. The text has the end of its log."""


@contextlib.contextmanager
def served(
    models: Sequence[Path],
    *options: str,
    ports: tuple[int, int, int] = (8000, 8001, 8002),
    log: Path,
    wait: float = 120,
) -> Iterator[subprocess.Popen[bytes]]:
    """Yields the process of a server on 127.0.0.1, once it answers. ports: of HTTP, gRPC and metrics. log: the file of
    what it prints. Raises NotServing if a port is in use, or if no answer comes within `wait` seconds."""
    for port in ports:
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise NotServing(f"another program listens on port {port}: stop it first")
    named = [p for pair in zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, ports)) for p in pair]
    with log.open("ab") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "pelton", "serve", *map(str, models), *named, *options],
            stdout=subprocess.PIPE,
            stderr=err,
        )
    try:
        _await_ready(process, log, wait)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _await_ready(process: subprocess.Popen[bytes], log: Path, wait: float) -> None:
    """Waits for the line that says that the server is ready."""
    assert process.stdout is not None
    end = time.monotonic() + wait
    while time.monotonic() < end and process.poll() is None:
        if select.select([process.stdout], [], [], 0.2)[0]:
            line = process.stdout.readline()
            if line.startswith(b"serving on"):
                return
    raise NotServing(f"pelton serve did not start:\n{log.read_text(errors='replace')[-2000:]}")
