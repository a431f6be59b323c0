#!/usr/bin/env python3
"""Soaks a server: load for a long time, with reloads, killed clients and malformed requests in between.

    python -m benchmarks.serve.soak [--minutes 60] [--load 0.7] [--page benchmarks/serve/results.md]

First finds how many requests a second the server is able to answer, then asks for a share of it, over HTTP and gRPC.
Every minute the model is replaced by a new version, every ten seconds a client is killed in the middle of a request,
and malformed requests are mixed in. At the end: no good request was lost or answered wrongly, and memory, threads, open
files and the 99th percentile of the latency are what they were after the first tenth of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import pelton

from .page import replace_part
from .requests import engine

BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"
CLIENTS = 8
PORT = 8060
MALFORMED = (b"", b"{", b'{"inputs": 5}', b'{"inputs": [{"name": "x"}]}', b"[" * 5000, b"\xff" * 100)
PORTS = ("--http-port", f"{PORT}", "--grpc-port", f"{PORT + 1}", "--metrics-port", f"{PORT + 2}")
PATH = "/v2/models/tiny/infer"


@dataclass
class Tally:
    """Counts of one client; latencies: seconds, with the time of each."""

    good: int = 0
    lost: list[str] = field(default_factory=list)
    malformed: int = 0
    latencies: list[tuple[float, float]] = field(default_factory=list)


def body(seed: int) -> tuple[bytes, np.ndarray]:
    """Returns a request as JSON, and its right answer."""
    x = np.random.default_rng(seed).standard_normal((1, 3, 32, 32)).astype(np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.reshape(-1).tolist()}
    return json.dumps({"inputs": [tensor]}).encode(), x[:, :, 0, :4].sum((1, 2))


def client(tally: Tally, end: float, pause: float, seed: int) -> None:
    """Asks until the end, with pauses; a refused connection or a wrong answer is a lost request."""
    rng = random.Random(seed)
    content, right = body(seed)
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
    due = time.monotonic()
    while (now := time.monotonic()) < end:
        due += pause
        time.sleep(max(0.0, due - now))
        start = time.monotonic()
        try:
            if rng.random() < 0.01:
                connection.request("POST", PATH, rng.choice(MALFORMED))
                response = connection.getresponse()
                response.read()
                tally.malformed += 1
                if not 400 <= response.status < 500:
                    tally.lost.append(f"a malformed request got status {response.status}")
                continue
            connection.request("POST", PATH, content)
            response = connection.getresponse()
            answer = json.loads(response.read())
            y = np.array(answer["outputs"][0]["data"])
            if response.status != 200 or not np.allclose(y.reshape(-1), right.reshape(-1), atol=1e-4):
                raise ValueError(f"status {response.status}, {str(answer)[:200]}")
            tally.good += 1
            if tally.good % 8 == 0:
                tally.latencies.append((start, time.monotonic() - start))
        except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
            tally.lost.append(f"{type(e).__name__}: {e}")
            connection.close()


def killed() -> None:
    """A client that is killed: it sends half a request, and waits."""
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n{" % PATH.encode())
        time.sleep(600)


def state(pid: int) -> dict[str, int]:
    """Returns memory in kB, threads and open files of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"memory kB": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]), "files": files}


def replace_version(root: Path, source: Path, version: int) -> None:
    """Adds a version, and removes the one before the last."""
    folder = root / "tiny" / f"{version}"
    part = root / f".part-{version}"
    part.mkdir()
    shutil.copy(source, part / "model.pelton")
    part.rename(folder)
    old = root / "tiny" / f"{version - 2}"
    if old.exists():
        shutil.rmtree(old)


def load(seconds: float, pause: float) -> list[Tally]:
    """Runs the clients for a time."""
    tallies = [Tally() for _ in range(CLIENTS)]
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(t, end, pause, i)) for i, t in enumerate(tallies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tallies


def soak(minutes: float, share: float) -> list[str]:
    """Soaks a server; returns the lines of a table."""
    with tempfile.TemporaryDirectory() as name:
        root, source = Path(name) / "models", Path(name) / "model.pelton"
        engine().save(source)
        (root / "tiny").mkdir(parents=True)
        replace_version(root, source, 1)
        server = subprocess.Popen(
            [sys.executable, "-m", "pelton", "serve", str(root), *PORTS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            print(server.stdout.readline().strip(), flush=True)
            best = sum(t.good for t in load(5, 0.0)) / 5
            rate = best * share
            print(f"{best:.0f} requests a second at most; {rate:.0f} asked for", flush=True)
            return _soaked(server, root, source, minutes * 60, rate)
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.communicate(timeout=60)
            server.kill()


def _soaked(server: subprocess.Popen, root: Path, source: Path, seconds: float, rate: float) -> list[str]:
    tallies: list[Tally] = []
    loading = threading.Thread(target=lambda: tallies.extend(load(seconds, CLIENTS / rate)))
    begin = time.monotonic()
    loading.start()
    early: dict[str, int] = {}
    version, victims, reloads = 1, 0, 0
    spawn = multiprocessing.get_context("spawn")
    while loading.is_alive():
        victim = spawn.Process(target=killed, daemon=True)
        victim.start()
        loading.join(10)
        victim.kill()
        victims += 1
        elapsed = time.monotonic() - begin
        if not early and elapsed > seconds / 10:
            early = state(server.pid)
        if elapsed // 60 > reloads and elapsed < seconds - 10:
            reloads += 1
            version += 1
            replace_version(root, source, version)
        print(f"{elapsed:.0f} s", state(server.pid), flush=True)
    late = state(server.pid)
    for text in [text for t in tallies for text in t.lost][:10]:
        print("lost:", text)
    counts = {"clients killed": victims, "versions replaced": reloads}
    return table(tallies, begin, seconds, rate, counts, (early, late))


def table(
    tallies: list[Tally],
    begin: float,
    seconds: float,
    rate: float,
    counts: dict[str, int],
    states: tuple[dict[str, int], dict[str, int]],
) -> list[str]:
    """Returns the lines of the page. begin: the time of the first request. rate: requests a second that were asked for.
    counts: of other events. states: of the server's process after a tenth of the time, and at the end."""
    early, late = states
    first = [s for t in tallies for at, s in t.latencies if at - begin < seconds / 10]
    last = [s for t in tallies for at, s in t.latencies if at - begin > seconds * 0.9]
    p99 = [float(np.percentile(s, 99)) * 1e3 if s else float("nan") for s in (first, last)]
    rows = {
        "minutes": f"{seconds / 60:.0f}",
        "requests a second": f"{rate:.0f}",
        "good requests": str(sum(t.good for t in tallies)),
        "lost": str(sum(len(t.lost) for t in tallies)),
        "malformed requests, all refused": str(sum(t.malformed for t in tallies)),
        **{name: str(count) for name, count in counts.items()},
        "p99, first and last tenth, ms": f"{p99[0]:.1f}, {p99[1]:.1f}",
        **{f"{name}, after a tenth and at the end": f"{early.get(name)}, {late[name]}" for name in late},
    }
    return [f"| Pelton {pelton.__version__} | |", "|---|--:|", *(f"| {k} | {v} |" for k, v in rows.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    lines = soak(args.minutes, args.load)
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    main()
