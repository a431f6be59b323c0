"""TensorFlow Serving's tests of its REST handler, and the calls of curl in its documents, against a server."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pelton

from .client_models import save
from .gtest import COMMON, Language, Place, Status
from .tfs_json import compare_json

DOCUMENTS = ("README.md", "tensorflow_serving/g3doc/*.md")
CODES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 501: "UNIMPLEMENTED"}
LOCAL = re.compile(r"http://localhost:8501(/\S*)")
CALL = re.compile(r"^[^\w\n]*curl (?:.*\\\n)*.*", re.MULTILINE)
ANSWER_WITHIN = 400  # characters behind a call in which a document says what comes back


def half_plus(folder: Path, more: float, versions: tuple[int, ...], config: str = "") -> None:
    """Writes the model x / 2 + more, for a batch of numbers."""
    net = pelton.Network(folder.name)
    x = net.input("x", "f32[batch]")
    net.output(net.add(net.mul(x, np.float32(0.5)), np.float32(more)), "y")
    save(net, folder, versions, config)


def models(folder: Path, constants: dict[str, Any]) -> None:
    """Writes the models that the documents and the tests call. constants: of the handler's tests."""
    half_plus(folder / "half_plus_two", 2, (1,))
    half_plus(folder / "saved_model_half_plus_three", 3, (123,))
    name, version = constants["kTestModelName"], constants["kTestModelVersion1"]
    label = (
        f'parameters {{ key: "labels" value {{ string_value: "{constants["kTestModelVersionLabel"]}={version}" }} }}'
    )
    half_plus(folder / name, 2, (version,), f'name: "{name}"\n{label}\n')


# tests of the handler


@dataclass
class RestHandler:
    """What the tests call handler_. address: of the server."""

    address: str
    kPathRegex: Any = None

    def call(self, method: str, path: str, body: str) -> tuple[int, str, str]:
        """Returns the status, the type and the text of the answer."""
        data = body.encode() if method == "POST" else None
        request = urllib.request.Request(self.address + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.headers["Content-Type"], e.read().decode()


def process_request(
    place: Place, method: str, path: str, body: str, headers: Place, model: Place, action: Place, output: Place
) -> Status:
    status, kind, text = place.get().call(method, path, body)
    headers.set([["Content-Type", kind]])
    output.set(text)
    return Status() if status == 200 else Status(CODES.get(status, str(status)), error_text(text))


def error_text(text: str) -> str:
    """Returns the error that an answer holds, or the answer."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError):
        return text


def language(address: str, checkout: Path, constants: dict[str, Any]) -> Language:
    """Returns what the tests of the handler call. address: of the server, as http://HOST:PORT."""
    handler = RestHandler(address)

    def read_file(environment: Any, name: str, contents: Place) -> Status:
        contents.set((checkout / name).read_text())
        return Status()

    def same_headers(expected: list[Any]) -> Callable[[Any], str]:
        return lambda found: "" if sorted(found) == sorted(expected) else f"{found} is not {expected}"

    functions: dict[str, Callable[..., Any]] = {
        **COMMON,
        "CompareJson": compare_json,
        "GetJsonErrorMsg": error_text,
        "ReadFileToString": read_file,
        "Default": lambda: None,
        "FullMatch": lambda path, _: handler.call("GET", path, "")[0] != 404,
        "UnorderedElementsAreArray": same_headers,
    }
    types: dict[str, Callable[[], Any]] = {"HeaderList": list, "string": str, "absl::Status": Status}
    return Language(functions, types, {"ProcessRequest": process_request}, {**constants, "handler_": handler})


# calls in documents


@dataclass(frozen=True)
class Call:
    """A call of curl in a document, and the answer that the document gives."""

    place: str
    arguments: tuple[str, ...]
    status: int
    answer: Any


def calls(checkout: Path) -> list[Call]:
    """Returns the calls of the documents that say what is returned."""
    paths = sorted({p for pattern in DOCUMENTS for p in checkout.glob(pattern)})
    return [c for p in paths for c in calls_in(p.read_text(), p.name)]


def calls_in(text: str, name: str) -> list[Call]:
    """Returns the calls of a document's text, of its own server and with an answer behind."""
    text = re.sub(r"<[^>\n]*>", lambda m: " " * len(m[0]), text)  # tags
    found = []
    for match in CALL.finditer(text):
        command = re.sub(r"^\W*", "", match[0])
        behind = CALL.split(text[match.end() : match.end() + ANSWER_WITHIN], 1)[0]
        start = behind.find("{")
        if start < 0 or not LOCAL.search(command):
            continue
        try:
            answer, _ = json.JSONDecoder().raw_decode(behind[start:])
        except ValueError:
            continue
        status = re.search(r"HTTP/1.1 (\d+)", behind)
        line = text.count("\n", 0, match.start()) + 1
        arguments = tuple(shlex.split(command.replace("\\\n", " "))[1:])
        found.append(Call(f"{name}:{line}", arguments, int(status[1]) if status else 200, answer))
    return found


def run_call(call: Call, address: str) -> list[str]:
    """Runs a call of curl; returns what differs from its document."""
    arguments = [LOCAL.sub(lambda m: address + m[1], a) for a in call.arguments if a not in ("-i", "-s")]
    command = ["curl", "--silent", "--max-time", "30", "--write-out", "\n%{http_code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    body, _, status = done.stdout.rpartition("\n")
    if done.returncode:
        return [f"curl ended with {done.returncode}"]
    try:
        answer = json.loads(body)
    except ValueError:
        answer = body
    failures = [f"the status is {status}, not {call.status}"] if int(status) != call.status else []
    return failures + ([f"{body[:200]} is not {json.dumps(call.answer)[:200]}"] if answer != call.answer else [])
