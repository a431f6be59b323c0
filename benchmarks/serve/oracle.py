"""Compares answers of `pelton serve` with those of a Triton server, and writes where they differ.

    make test-clients TRITON=PYTHON

PYTHON is one in whose environment nvidia-pytriton is, whose package holds a Triton server; no GPU is needed. Both
servers have the same models: engines here, programs in Python there. Each request goes to both. Compared are the
status, the headers that the protocol knows, names and order of the fields, values and bytes; of errors, only that they
are ones. The exit status is 1 if an answer differs that is not in `KNOWN`, or if one is the same that is.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

import pelton
from pelton.serve import schema

from . import oracle_calls, oracle_models, oracle_requests
from .oracle_known import FREE, KNOWN, REASONS
from .oracle_requests import JSON_LENGTH, GrpcRequest, HttpRequest
from .page import replace_part
from .served import served
from .triton_server import triton

BEGIN, END = "<!-- oracle: begin -->", "<!-- oracle: end -->"
PORTS, OTHER_PORTS = (8000, 8001, 8002), (8010, 8011, 8012)
SAID = 150  # characters of differences, at most, that a line of the page names
HEADERS = ("Content-Type", JSON_LENGTH)


@dataclass(frozen=True)
class Answer:
    """What a server answered. status: of HTTP, or the name of gRPC's. content: of JSON, with the order of its keys.
    data: the bytes behind it. text: of an error."""

    status: str
    headers: dict[str, str]
    content: Any = None
    data: bytes = b""
    text: str = ""


@dataclass(frozen=True)
class Comparison:
    """The differences between two answers to a request."""

    group: str
    name: str
    differences: list[str]
    ours: Answer
    theirs: Answer

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"

    @property
    def rejected(self) -> bool:
        """True if both servers reject the request."""
        return all(a.status not in ("200", "OK", "no answer") for a in (self.ours, self.theirs))


def send_http(request: HttpRequest, port: int) -> Answer:
    """Sends a request by a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(request.verb, request.path, request.body, request.headers)
        answer = connection.getresponse()
        body = answer.read()
        headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    except (OSError, http.client.HTTPException) as e:
        return Answer("no answer", {}, text=type(e).__name__)
    finally:
        connection.close()
    return read_answer(str(answer.status), headers, body)


def read_answer(status: str, headers: dict[str, str], body: bytes) -> Answer:
    """Splits a body into JSON and what is behind it; a body that is none is an answer's data."""
    length = int(headers.pop(JSON_LENGTH, len(body)))
    headers = dict(headers)
    try:
        content = json.loads(body[:length]) if body else None
    except ValueError:
        return Answer(status, headers, None, body)
    text = content["error"] if isinstance(content, dict) and isinstance(content.get("error"), str) else ""
    return Answer(status, headers, content, body[length:], text)


def send_grpc(request: GrpcRequest, channel: grpc.Channel) -> Answer:
    """Sends a call. The answer's raw tensors are its data."""
    method = next(m for m in schema.methods() if m.name == request.method)
    message = json_format.ParseDict(request.content, schema.message(method.input_type.name)())
    send = channel.unary_unary(
        f"/{schema.SERVICE}/{request.method}",
        type(message).SerializeToString,
        schema.message(method.output_type.name).FromString,
    )
    try:
        answer = send(message, timeout=60)
    except grpc.RpcError as e:
        return Answer(e.code().name, {}, text=e.details() or "")
    content = json_format.MessageToDict(answer, preserving_proto_field_name=True)
    content.pop("raw_output_contents", None)
    content = json.loads(json.dumps(content, sort_keys=True))  # fields have no order in messages
    data = getattr(answer, "raw_output_contents", ())
    return Answer("OK", {}, content, b"|".join(data))


# comparing


def compare(ours: Answer, theirs: Answer) -> list[str]:
    """Returns how an answer differs from that of Triton."""
    if ours.status != theirs.status:
        return [f"the status is {ours.status}, Triton's is {theirs.status}"]
    if ours.text and theirs.text:
        return []
    found = [
        f"{name} is {ours.headers.get(name)}, Triton's is {theirs.headers.get(name)}"
        for name in sorted({*ours.headers, *theirs.headers})
        if ours.headers.get(name) != theirs.headers.get(name)
    ]
    found += differences(ours.content, theirs.content)
    if ours.data != theirs.data:
        found.append(f"{len(ours.data)} bytes {ours.data[:16]!r}, Triton's are {len(theirs.data)} {theirs.data[:16]!r}")
    return found


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Returns how a value of JSON differs from that of Triton. path: of the value. Values that may differ, such as
    times, are in `FREE`."""
    if FREE.search(path):
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found: list[str] = []
        if list(ours) != list(theirs):
            missing, more = [k for k in theirs if k not in ours], [k for k in ours if k not in theirs]
            if missing:
                found.append(f"{path or 'the answer'} lacks {', '.join(missing)}")
            if more:
                found.append(f"{path or 'the answer'} has {', '.join(more)}, too")
            if not missing and not more:
                found.append(f"{path or 'the answer'} has another order: {', '.join(ours)}")
        return found + [d for k in theirs if k in ours for d in differences(ours[k], theirs[k], f"{path}.{k}")]
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return [f"{path} has {len(ours)} values, Triton's has {len(theirs)}"]
        return [d for i, (a, b) in enumerate(zip(ours, theirs)) for d in differences(a, b, f"{path}[{i}]")]
    if type(ours) is type(theirs) and ours == theirs:
        return []
    return [f"{path or 'the answer'} is {json.dumps(ours)[:80]}, Triton's is {json.dumps(theirs)[:80]}"]


def run(python: str, folder: Path) -> Iterator[Comparison]:
    """Sends all requests to both servers. folder: for models and logs."""
    oracle_models.write(folder / "engines", folder / "programs")
    with (
        triton(python, folder / "programs", folder, OTHER_PORTS),
        served([folder / "engines"], "--name", "triton", "--model-control", "none", ports=PORTS, log=folder / "log"),
    ):
        for request in oracle_requests.http():
            ours, theirs = (send_http(request, ports[0]) for ports in (PORTS, OTHER_PORTS))
            yield Comparison(request.group, request.name, compare(ours, theirs), ours, theirs)
        channels = [grpc.insecure_channel(f"127.0.0.1:{ports[1]}") for ports in (PORTS, OTHER_PORTS)]
        for call in oracle_calls.grpc():
            ours, theirs = (send_grpc(call, channel) for channel in channels)
            yield Comparison(call.group, call.name, compare(ours, theirs), ours, theirs)
        for channel in channels:
            channel.close()


def table(results: list[Comparison], version: str) -> list[str]:
    """Returns the lines of the page."""
    lines = [
        "",
        f"Pelton {pelton.__version__}; Triton {version}.",
        "",
        "| requests | same | both reject | of |",
        "| --- | ---: | ---: | ---: |",
    ]
    for group in dict.fromkeys(r.group for r in results):
        rows = [r for r in results if r.group == group]
        rejected = sum(r.rejected for r in rows if r.differences)
        lines.append(f"| {group} | {sum(not r.differences for r in rows)} | {rejected} | {len(rows)} |")
    lines += ["", "What differs:", ""]
    differing = {r.key: r for r in results if r.differences}
    for reason, keys in REASONS.items():
        rows = [differing[key] for key in keys if key in differing]
        said = "; ".join(dict.fromkeys(d for r in rows for d in r.differences))
        said = f" ({said})" if len(said) < SAID else ""
        groups = {r.group: [f"“{other.name}”" for other in rows if other.group == r.group] for r in rows}
        names = "; ".join(f"{group}: {', '.join(of)}" for group, of in groups.items())
        lines += [f"- {reason}{said}. {names}"] if rows else []
    lines += [f"- “{key}”: {'; '.join(r.differences)}" for key, r in differing.items() if key not in KNOWN]
    return [*lines, ""]


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("python", help="the Python in whose environment nvidia-pytriton is")
    ask.add_argument("--page", type=Path, help="write the tables between this page's marks")
    ask.add_argument("--verbose", action="store_true", help="print both answers where they differ")
    a = ask.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="pelton-oracle-") as folder:
        for result in run(a.python, Path(folder)):
            results.append(result)
            print(f"{result.key}: {'; '.join(result.differences) or 'same'}", flush=True)
            if a.verbose and result.differences:
                print(f"    ours   {result.ours}\n    theirs {result.theirs}")
    server = next(r.theirs.content["version"] for r in results if r.name == "server")
    unexpected = [r.key for r in results if bool(r.differences) != (r.key in KNOWN)]
    unexpected += [key for key in KNOWN if key not in {r.key for r in results}]
    for key in unexpected:
        print(f"unexpected: {key}", file=sys.stderr)
    print(f"{sum(not r.differences for r in results)} of {len(results)} answers are the same")
    if a.page is not None:
        replace_part(a.page, BEGIN, END, table(results, server))
    return int(bool(unexpected))


if __name__ == "__main__":
    sys.exit(main())
