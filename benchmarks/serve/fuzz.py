"""Sends damaged requests to a served process, over HTTP, gRPC and bare TCP, and checks that it stays well.

    make fuzz-serve [ARGS='--runs 50000 --seed 7 --keep FOLDER']

Each request follows from the seed plus its number: `--seed N --runs 1` repeats one. An answer to any of them is a
result, a refusal of the client's (4xx, or such a status of gRPC), or one of 501, 503 and 504; never 500, a traceback,
or the content of a file. After each batch the server must answer good requests correctly. At the end, its memory,
threads and open files are about what they were after the first batches. The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import pelton
from pelton.serve import schema

from . import client_models
from .fuzz_requests import Damaged, damaged
from .fuzz_schema import check_schema
from .served import served

BATCH, SENDERS, SECONDS = 500, 4, 30.0
WARM = 4  # batches after which memory is first looked at
GROWTH, HANDLES = 96 << 20, 12  # bytes, and threads or files, that may come on top
SLOW, SLOW_SECONDS = 50, 14.0  # connections that never finish their headers; seconds until the server closes them
WELL = {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "ALREADY_EXISTS", "UNAVAILABLE"}
WELL |= {"OK", "DEADLINE_EXCEEDED"}
REFUSALS = (501, 503, 504)
MODELS = ("half", "texts", "sums", "three")
SECRETS = (b"Traceback (most recent", b"root:x:0", b'File "/')


class Failure(Exception):
    """The server did something that it must not do."""


def write_models(folder: Path) -> None:
    """Writes the models that requests are for."""
    net = pelton.Network("half")
    x = net.input("INPUT0", "f32[batch, 2]")
    net.output(net.add(net.mul(x, np.float32(0.5)), np.float32(2)), "OUTPUT0")
    client_models.save(net, folder / "half")
    client_models.identity(folder / "texts", "string")
    client_models.identity(folder / "three", "f32", tensors=3)
    client_models.sums(folder / "sums", "i32", (1, 2), "{ all { }}")


def good_messages() -> dict[str, list[bytes]]:
    """Returns good messages for each of gRPC's methods, by its full name."""
    make = schema.message
    request = make("ModelInferRequest")(model_name="half", id="1")
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[2, 2])
    tensor.contents.fp32_contents.extend([1, 2, 3, 4])
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 1
    request.parameters["priority"].uint64_param = 1
    raw = make("ModelInferRequest")(model_name="three", raw_input_contents=[bytes(16)] * 3)
    for i in range(3):
        raw.inputs.add(name=f"INPUT{i}", datatype="FP32", shape=[2, 2])
    memory = make("ModelInferRequest")(model_name="half")
    place = memory.inputs.add(name="INPUT0", datatype="FP32", shape=[2, 2]).parameters
    place["shared_memory_region"].string_param, place["shared_memory_byte_size"].int64_param = "fuzz", 16
    settings = make("LogSettingsRequest")()
    settings.settings["log_info"].bool_param = True
    known: dict[str, list[Any]] = {
        "ModelInfer": [request, raw, memory],
        "ModelStreamInfer": [request, raw, memory],
        "LogSettings": [settings],
        "SystemSharedMemoryRegister": [
            make("SystemSharedMemoryRegisterRequest")(name="fuzz", key="/fuzz", offset=0, byte_size=64)
        ],
        "RepositoryModelLoad": [make("RepositoryModelLoadRequest")(model_name="half")],
        "RepositoryModelUnload": [make("RepositoryModelUnloadRequest")(model_name="three")],
    }
    messages = {}
    for method in schema.methods():
        kind = make(method.input_type.name)
        fields = {f.name for f in kind.DESCRIPTOR.fields}
        plain = kind(**{n: "half" for n in ("name", "model_name") if n in fields})
        messages[f"/{schema.SERVICE}/{method.name}"] = [
            m.SerializeToString() for m in known.get(method.name, [plain, kind()])
        ]
    return messages


class Sender:
    """Sends damaged requests, and judges the answers."""

    def __init__(self, ports: tuple[int, int, int], messages: dict[str, list[bytes]]):
        self.http, self.messages = ports[0], messages
        self.channel = grpc.insecure_channel(f"127.0.0.1:{ports[1]}")
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def __call__(self, seed: int) -> tuple[int, str, str]:
        """Sends the request of a seed; returns the seed, its sort, and what is wrong, empty if nothing is."""
        sort, one = damaged(seed, self.messages)
        try:
            outcome = self._call(one) if one.method else self._post(one)
        except Failure as e:
            return seed, sort, str(e)
        with self._lock:
            self.outcomes[f"{sort} {outcome}"] += 1
        return seed, sort, ""

    def _call(self, one: Damaged) -> str:
        try:
            if one.method.endswith("StreamInfer"):
                list(self.channel.stream_stream(one.method)(iter([one.message]), timeout=SECONDS))
            else:
                self.channel.unary_unary(one.method)(one.message, timeout=SECONDS)
        except grpc.RpcError as e:
            if e.code().name not in WELL or any(s.decode() in (e.details() or "") for s in SECRETS):
                raise Failure(f"{one.method}: {e.code().name} {(e.details() or '')[:300]}") from None
            return str(e.code().name)
        return "OK"

    def _post(self, one: Damaged) -> str:
        answer = exchange(self.http, one)
        if any(s in answer for s in SECRETS):
            raise Failure(f"the answer gives things away: {answer[:400]!r}")
        status = answer[9:12].decode("latin-1")
        if not answer.startswith(b"HTTP/1.") or not status.isdigit():
            if one.open:
                return "closed"
            raise Failure(f"no answer: {answer[:100]!r}")
        if int(status) >= 500 and int(status) not in REFUSALS:
            raise Failure(f"answer {answer[:400]!r}")
        return status


def exchange(port: int, one: Damaged) -> bytes:
    """Sends bytes, and returns all that comes back until the connection closes. Raises Failure if it does not."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as handle:
        size = max(1, -(-len(one.raw) // one.pieces))
        answer = b""
        try:
            for at in range(0, len(one.raw), size):
                handle.sendall(one.raw[at : at + size])
                time.sleep(0.002 * (one.pieces > 1))
            if one.open:
                handle.shutdown(socket.SHUT_WR)
            while piece := handle.recv(1 << 16):
                answer += piece
        except TimeoutError:
            raise Failure(f"no end of the answer within {SECONDS:g} s: {answer[:100]!r}") from None
        except OSError:  # the server closes early: what it said before counts
            pass
        return answer or _rest(handle)


def _rest(handle: socket.socket) -> bytes:
    try:
        return handle.recv(1 << 16)
    except OSError:
        return b""


class Health:
    """The server's good answers, and what its process holds."""

    def __init__(self, ports: tuple[int, int, int], pid: int, messages: dict[str, list[bytes]]):
        self.url, self.pid, self.messages = f"http://127.0.0.1:{ports[0]}", pid, messages
        self.channel = grpc.insecure_channel(f"127.0.0.1:{ports[1]}")

    def check(self) -> None:
        """Loads the models, asks for good answers over both protocols. Raises Failure if one is wrong."""
        try:
            for model in MODELS:
                self._post(f"/v2/repository/models/{model}/load", {})
            draw = np.random.default_rng(0)
            x = draw.standard_normal((2, 2)).astype(np.float32)
            asked = [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 2], "data": x.tolist()}]
            answer = json.loads(self._post("/v2/models/half/infer", {"inputs": asked}))
            np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], (2, 2)), x / 2 + 2, rtol=1e-6)
            call = self.channel.unary_unary(f"/{schema.SERVICE}/ModelInfer")
            first = self.messages[f"/{schema.SERVICE}/ModelInfer"][1]
            response = schema.message("ModelInferResponse").FromString(call(first, timeout=SECONDS))
            assert len(response.raw_output_contents) == 3, response
        except (OSError, grpc.RpcError, AssertionError, ValueError, KeyError) as e:
            raise Failure(f"the server no longer answers a good request: {type(e).__name__}: {e}") from None

    def _post(self, path: str, content: Any) -> bytes:
        request = urllib.request.Request(self.url + path, json.dumps(content).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            data: bytes = answer.read()
            return data

    def holds(self) -> tuple[int, int, int]:
        """Returns the process's resident bytes, threads and open files."""
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":" in line
        )
        files = len(os.listdir(f"/proc/{self.pid}/fd"))
        return int(status["VmRSS"].split()[0]) << 10, int(status["Threads"]), files


def slow_connections(port: int) -> list[socket.socket]:
    """Opens connections that send a part of their headers."""
    handles = []
    for i in range(SLOW):
        handle = socket.create_connection(("127.0.0.1", port), SECONDS)
        handle.sendall(b"POST /v2/models/half/infer HTTP/1.1\r\nHost: x\r\nX-Slow: "[: 5 + i])
        handles.append(handle)
    return handles


def check_closed(handles: list[socket.socket], begun: float) -> None:
    """Waits until the server must have closed slow connections. Raises Failure if one is open."""
    time.sleep(max(0.0, begun + SLOW_SECONDS - time.monotonic()))
    for handle in handles:
        handle.settimeout(1.0)
        try:
            while handle.recv(1 << 12):
                pass
        except TimeoutError:
            raise Failure("a connection that sends no whole header stays open") from None
        except OSError:
            pass
        finally:
            handle.close()


def run(a: argparse.Namespace, root: Path) -> list[str]:
    """Fuzzes a server; returns what is wrong."""
    ports, messages, log = (a.port, a.port + 1, a.port + 2), good_messages(), root / "server.log"
    write_models(root / "models")
    memory = Path("/dev/shm/fuzz")
    memory.write_bytes(bytes(4096))
    problems: list[str] = []
    options = ("--model-control", "explicit", "--load-model", "*", "--max-requests", "64")
    try:
        with served([root / "models"], *options, ports=ports, log=log) as process:
            sender, health = Sender(ports, messages), Health(ports, process.pid, messages)
            problems += batches(a, sender, health)
            if a.schema is not None:
                problems += check_schema(a.schema, a.schemathesis, health.url, a.examples, a.seed)
                health.check()
            for name, count in sorted(sender.outcomes.items()):
                print(f"{count:7} {name}")
    except Failure as e:
        problems.append(str(e))
    finally:
        memory.unlink(missing_ok=True)
    written = log.read_text(errors="replace")
    if "Traceback" in written:
        problems.append("the server's log has a traceback:\n" + written[written.index("Traceback") :][:3000])
    if problems and a.keep is not None:
        a.keep.mkdir(parents=True, exist_ok=True)
        (a.keep / "problems.txt").write_text("\n".join(problems) + "\n")
        (a.keep / "server.log").write_text(written)
    return problems


def batches(a: argparse.Namespace, sender: Sender, health: Health) -> list[str]:
    """Sends all requests, and returns what is wrong; ends after 20 problems."""
    problems: list[str] = []
    handles, begun = slow_connections(sender.http), time.monotonic()
    held, end = health.holds(), begun + a.seconds
    with ThreadPoolExecutor(SENDERS) as pool:
        for number, first in enumerate(range(a.seed, a.seed + a.runs, BATCH)):
            seeds = range(first, min(first + BATCH, a.seed + a.runs))
            for seed, sort, problem in pool.map(sender, seeds):
                if problem:
                    problems.append(f"seed {seed} ({sort}): {problem}")
                    print(problems[-1][:600], flush=True)
            health.check()
            if number == WARM:
                held = health.holds()
            if len(problems) >= 20 or time.monotonic() > end:
                print(f"ends after {seeds.stop - a.seed} requests")
                break
    check_closed(handles, begun)
    after = health.holds()
    print("bytes, threads and files: {}, {}, {} after the first batches; {}, {}, {} at the end".format(*held, *after))
    if a.runs > (WARM + 1) * BATCH:
        limits = GROWTH, HANDLES, HANDLES
        names = "bytes", "threads", "files"
        problems += [
            f"{name} of the process grew from {x} to {y}"
            for x, y, limit, name in zip(held, after, limits, names)
            if y > x + limit
        ]
    return problems


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--runs", type=int, default=20_000, help="number of requests")
    ask.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="of the first request")
    ask.add_argument("--keep", type=Path, help="write problems and the server's log into this folder")
    ask.add_argument("--port", type=int, default=18400, help="the first of three ports")
    ask.add_argument("--seconds", type=float, default=1800, help="end after so long")
    ask.add_argument("--schema", type=Path, help="the protocol's OpenAPI, for Schemathesis")
    ask.add_argument("--schemathesis", default="schemathesis", help="the program")
    ask.add_argument("--examples", type=int, default=100, help="of Schemathesis, for each operation")
    a = ask.parse_args()
    print(f"seed {a.seed}, {a.runs} requests")
    with tempfile.TemporaryDirectory(prefix="pelton-fuzz-serve-") as name:
        problems = run(a, Path(name))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(problems)} problems; the seed was {a.seed}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
