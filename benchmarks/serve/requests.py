#!/usr/bin/env python3
"""Measures what a request costs the server: CPU microseconds and latency, beside an echo server and other servers.

    python -m benchmarks.serve.requests [--rounds 3] [--seconds 5] [--kserve PYTHON] [--mlserver PYTHON]
                                       [--page benchmarks/serve/results.md]

An engine of about a microsecond is asked with tensors of 12 KB by 16 connections (wrk for HTTP, h2load for gRPC, of
Debian). Server and client have a CPU each. Servers take turns. CPU time is that of the server's processes, from
/proc, user and system. The latency over HTTP is the median of one connection, over gRPC the mean of 16 requests at
once. --kserve and
--mlserver name Pythons with these packages, whose servers run a numpy function of the same size; they do not install
together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import pelton
from pelton.serve import schema

from .page import replace_part

BEGIN, END = "<!-- requests: begin -->", "<!-- requests: end -->"
CONNECTIONS = 16
SHAPE = (1, 3, 32, 32)
FOLDER = Path(__file__).parent
TICK = 1e6 / os.sysconf("SC_CLK_TCK")  # microseconds
Result = dict[str, float]


def engine() -> pelton.Engine:
    """Builds an engine that reads 12 KB and takes about a microsecond."""
    network = pelton.Network("tiny")
    x = network.input("x", f"f32[{', '.join(map(str, SHAPE))}]")
    network.output(network.reduce_sum(x[:, :, 0, :4], axes=(1, 2), keepdims=False), "y")
    return pelton.build(network, level=0, threads=1)


def wrk_script(folder: Path, name: str, x: np.ndarray) -> Path:
    """Writes a script with which wrk sends a tensor as binary data."""
    tensor = {"name": name, "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    (folder / "body.bin").write_bytes(head + x.tobytes())
    script = folder / "post.lua"
    script.write_text(
        f'local f = io.open("{folder}/body.bin", "rb"); wrk.body = f:read("*a"); f:close(); wrk.method = "POST"\n'
        f'wrk.headers["Inference-Header-Content-Length"] = "{len(head)}"\n'
        'wrk.headers["Content-Type"] = "application/octet-stream"\n'
    )
    return script


def bodies(folder: Path) -> tuple[Path, Path]:
    """Writes the request: a script for wrk, and a message for h2load."""
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    request = schema.message("ModelInferRequest")(model_name="tiny", raw_input_contents=[x.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=SHAPE)
    message = request.SerializeToString()
    (folder / "grpc.bin").write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    return wrk_script(folder, "x", x), folder / "grpc.bin"


def wrk(script: Path, seconds: float, url: str, connections: int = CONNECTIONS, cpus: str = "1") -> Result:
    """Loads an HTTP server; returns answers, answers a second and the median latency in microseconds."""
    command = ["taskset", "-c", cpus, "wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--latency"]
    command += ["-s", str(script), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) requests in", text)
    median = re.search(r"50%\s+([\d.]+)(us|ms|s)", text)
    if not found or not median or "Non-2xx" in text:
        raise RuntimeError(f"{url} did not answer as it should:\n{text}")
    scale = {"us": 1.0, "ms": 1e3, "s": 1e6}[median[2]]
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    return {"answers": float(found[1]), "rate": float(rate[1]) if rate else 0.0, "p50": float(median[1]) * scale}


def h2load(message: Path, seconds: float, url: str) -> Result:
    """Loads a gRPC server by 4 connections with 4 streams each."""
    command = ["taskset", "-c", "1", "h2load", "-D", f"{seconds:g}", "-c", "4", "-m", "4", "-d", str(message)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"{url}/{schema.SERVICE}/ModelInfer"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    done = re.search(r"(\d+) succeeded, (\d+) failed", text)
    mean = re.search(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)", text)
    if not done or not mean or int(done[2]):
        raise RuntimeError(f"{url} did not answer as it should:\n{text}")
    scale = {"us": 1.0, "ms": 1e3, "s": 1e6}[mean[2]]
    return {"answers": float(done[1]), "rate": float(done[1]) / seconds, "p50": float(mean[1]) * scale}


def ticks(pid: int) -> int:
    """Returns the CPU ticks of a process and its children."""
    total, pending = 0, [pid]
    while pending:
        one = pending.pop()
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
            for task in Path(f"/proc/{one}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
    return total


@contextlib.contextmanager
def served(command: list[str], ready: str, cpus: str = "0") -> Iterator[int]:
    """Starts a server on these CPUs, and waits until an address answers; yields its process number."""
    messages = tempfile.TemporaryFile()  # a pipe would fill, and stop a server that logs each request
    process = subprocess.Popen(
        ["taskset", "-c", cpus, *command], stdout=subprocess.DEVNULL, stderr=messages, start_new_session=True
    )
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(ready, timeout=2).close()
                break
            if process.poll() is not None or time.monotonic() > end:
                messages.seek(0)
                raise RuntimeError(f"{command} does not start: {messages.read().decode()[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def cost(pid: int, load: Callable[[], Result], alone: Callable[[], Result] | None = None) -> Result:
    """Loads a server; adds the CPU microseconds of an answer. alone: loads it by one connection, whose median latency
    is then the result's."""
    before = ticks(pid)
    result = load()
    result["cpu"] = (ticks(pid) - before) * TICK / result["answers"]
    return result if alone is None else {**result, "p50": alone()["p50"]}


def measure(folder: Path, seconds: float, kserve: str | None, mlserver: str | None) -> dict[str, Result]:
    """Measures all servers once, one after the other."""
    script, message = bodies(folder)
    models, results = folder / "models", {}

    def http(pid: int, url: str) -> Result:
        return cost(pid, lambda: wrk(script, seconds, url), lambda: wrk(script, seconds, url, 1))

    echo = [sys.executable, str(FOLDER / "echo.py"), "8030"]
    with served(echo, "http://127.0.0.1:8030/") as pid:
        results["echo, HTTP"] = http(pid, "http://127.0.0.1:8030/")
    command = [
        sys.executable,
        "-m",
        "pelton",
        "serve",
        str(models),
        "--http-port",
        "8050",
        "--grpc-port",
        "8051",
        "--metrics-port",
        "8052",
    ]
    with served(command, "http://127.0.0.1:8050/v2/health/ready") as pid:
        url = "http://127.0.0.1:8050/v2/models/tiny/infer"
        results["pelton, HTTP"] = http(pid, url)
        results["pelton, gRPC"] = cost(pid, lambda: h2load(message, seconds, "http://127.0.0.1:8051"))
    if kserve:
        with served([kserve, str(FOLDER / "peers" / "kserve_tiny.py")], "http://127.0.0.1:8010/v2/health/live") as pid:
            url = "http://127.0.0.1:8010/v2/models/tiny/infer"
            results["kserve, HTTP"] = http(pid, url)
            results["kserve, gRPC"] = cost(pid, lambda: h2load(message, seconds, "http://127.0.0.1:8011"))
    if mlserver:
        command = [mlserver, "-m", "mlserver.cli.main", "start", str(FOLDER / "peers" / "mlserver_tiny")]
        with served(command, "http://127.0.0.1:8020/v2/models/tiny/ready") as pid:
            results["mlserver, gRPC"] = cost(pid, lambda: h2load(message, seconds, "http://127.0.0.1:8021"))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kserve", metavar="PYTHON")
    parser.add_argument("--mlserver", metavar="PYTHON")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    rows: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models" / "tiny" / "1").mkdir(parents=True)
        engine().save(folder / "models" / "tiny" / "1" / "model.pelton")
        for _ in range(args.rounds):
            for server, result in measure(folder, int(args.seconds), args.kserve, args.mlserver).items():
                rows.setdefault(server, []).append(result)
                print(server, {k: round(v, 1) for k, v in result.items()}, flush=True)
    medians = {s: {k: float(np.median([r[k] for r in rs])) for k in rs[0]} for s, rs in rows.items()}
    lines = [
        "| server | CPU µs a request | latency µs | requests a second | CPU against Pelton's |",
        "|---|--:|--:|--:|--:|",
    ]
    for server, r in medians.items():
        own = medians["pelton, " + server.rsplit(", ")[1]]["cpu"]
        lines.append(f"| {server} | {r['cpu']:.0f} | {r['p50']:.0f} | {r['rate']:.0f} | {r['cpu'] / own:.2f} |")
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    main()
