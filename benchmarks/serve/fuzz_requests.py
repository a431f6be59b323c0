"""Damaged requests: bodies, headers and paths of HTTP, bytes of TCP, and messages of gRPC, each from a seed."""

from __future__ import annotations

import copy
import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

INFER = "/v2/models/half/infer"
NUMBERS = [
    0,
    1,
    -1,
    2,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
    10**309,
    0.5,
    1e308,
    -0.0,
    1e-320,
]
TEXTS = [
    "",
    "x",
    "INPUT0",
    "\0",
    "ÿ",
    "四" * 50,
    "a" * 3000,
    "../../etc/passwd",
    "FP32",
    "true",
    "%2e%2e",
    "\r\nA: b",
    "\u202e",
]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [{}], {"": None}, [None] * 5]
NAMES = [
    "half",
    "texts",
    "sums",
    "absent",
    "..",
    ".",
    "..%2f..%2fetc",
    "%00",
    "half%00",
    "%2e%2e%2f",
    "x" * 5000,
    "%e2%98%83",
]
NAMES += [
    "half/versions/1",
    "half/versions/..",
    "half/versions/99999999999999999999",
    "%ff%fe",
    "half;a=b",
    "half?x",
    "%",
    "%zz",
]
PATHS = [
    "/v2/models/{}",
    "/v2/models/{}/config",
    "/v2/models/{}/stats",
    "/v2/models/{}/ready",
    "/v2/models/{}/infer",
    "/v2/models/{}/generate",
    "/v2/models/{}/generate_stream",
    "/v2/models/{}/trace/setting",
    "/v2/repository/models/{}/load",
    "/v2/repository/models/{}/unload",
    "/v2/repository/{}",
    "/v2/repository/index",
    "/v2/systemsharedmemory/region/{}/register",
    "/v2/systemsharedmemory/region/{}/status",
    "/v2/systemsharedmemory/region/{}/unregister",
    "/v2/cudasharedmemory/region/{}/register",
    "/v2/logging",
    "/v2/trace/setting",
    "/v1/models/{}",
    "/v1/models/{}/metadata",
    "/v1/models/{}:predict",
    "/v1/models/{}:classify",
    "/v1/models/{}:regress",
    "/v1/models/{}/versions/1:predict",
    "/{}",
    "/",
]
KEYS = [
    "/fuzz",
    "fuzz",
    "/../etc/passwd",
    "../../etc/passwd",
    "/dev/shm/fuzz",
    "/",
    "",
    ".",
    "..",
    "/fuzz\0",
    "a" * 300,
    5,
    None,
    [],
]


@dataclass(frozen=True)
class Damaged:
    """A request: bytes of TCP for HTTP's port (`raw`), or the full name of a method of gRPC and its bytes.

    halves: the bytes are sent in pieces, with pauses. open: the request is not complete, so that no answer is due.
    """

    raw: bytes = b""
    method: str = ""
    message: bytes = b""
    pieces: int = 1
    open: bool = False


def body(draw: random.Random) -> dict[str, Any]:
    """Returns a good request of one of the models."""
    if draw.random() < 0.3:
        return {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "bé"]}]}
    x = [draw.uniform(-9, 9) for _ in range(4)]
    return {
        "id": "1",
        "parameters": {"binary_data_output": draw.random() < 0.5, "priority": 1, "timeout": 5_000_000},
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 2], "data": x, "parameters": {}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
    }


def value(draw: random.Random, depth: int = 0) -> Any:
    """Returns any value of JSON."""
    kind = draw.randrange(6)
    if kind == 0:
        return draw.choice(NUMBERS)
    if kind == 1:
        return draw.choice(TEXTS)
    if kind == 2 and depth < 3:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 3 and depth < 3:
        return {draw.choice(TEXTS): value(draw, depth + 1) for _ in range(draw.randrange(3))}
    return copy.deepcopy(draw.choice(OTHERS))


def damage(draw: random.Random, content: Any) -> Any:
    """Returns a copy of a value of JSON with one to three places changed."""
    content = json.loads(json.dumps(content))
    for _ in range(draw.randrange(1, 4)):
        places = list(_places(content))
        if not places:
            return value(draw)
        holder, key = draw.choice(places)
        action = draw.randrange(4)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif action == 2 and isinstance(holder, dict):
            other = {"shared_memory_region": "fuzz", "shared_memory_byte_size": draw.choice(NUMBERS)}
            holder[key] = draw.choice([{"binary_data_size": draw.choice(NUMBERS)}, other, value(draw)])
        else:
            holder[key] = value(draw)
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each list or object within a value, with each of its keys."""
    keys: Iterable[Any] = content if isinstance(content, dict) else ()
    if isinstance(content, list):
        keys = range(len(content))
    for key in keys:
        yield content, key
        yield from _places(content[key])


def text(draw: random.Random, content: Any) -> bytes:
    """Returns JSON, perhaps damaged as bytes: nesting, duplicate keys, cut off, changed bytes, numbers out of range."""
    data = json.dumps(content).encode()
    kind = draw.randrange(10)
    if kind == 0:
        depth = draw.choice([50, 120, 900, 1000, 1020, 5000, 100_000])
        opened, closed = draw.choice([(b"[", b"]"), (b'{"a":', b"}")])
        nested = opened * depth + b"1" + closed * draw.choice([depth, depth - 1])
        return draw.choice([nested, b'{"inputs":' + nested + b"}", data.replace(b'"FP32"', nested), _data(nested)])
    if kind == 1:
        return data[:1] + data[1:-1] + b"," + data[1:]
    if kind == 2:
        return data[: draw.randrange(len(data))]
    if kind == 3 and data:
        changed = bytearray(data)
        for _ in range(draw.randrange(1, 6)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    if kind == 4:
        huge = draw.choice([b"1e999", b"-1e999", b"NaN", b"Infinity", b"1" * 5000, b"0x10", b'"\\ud800"', b"1.5e-400"])
        return data.replace(b"1", huge, 1)
    return data


def _data(nested: bytes) -> bytes:
    return b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":' + nested + b"}]}"


def http(draw: random.Random, method: str, path: str, content: bytes, headers: list[tuple[str, str]]) -> bytes:
    """Returns the bytes of a request, whose connection closes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *(f"{k}: {v}" for k, v in headers)]
    if not any(k.lower() in ("content-length", "transfer-encoding") for k, _ in headers):
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + content


def _json(draw: random.Random) -> Damaged:
    path = draw.choice(
        [INFER, INFER, "/v2/models/texts/infer", "/v2/models/sums/infer", "/v2/models/half/versions/1/infer"]
    )
    return Damaged(http(draw, "POST", path, text(draw, damage(draw, body(draw))), []))


def _binary(draw: random.Random) -> Damaged:
    content = body(draw)
    size = draw.choice([16, 16, *NUMBERS[:9], 15, 17])
    content["inputs"][0].pop("data")
    content["inputs"][0]["parameters"] = {"binary_data_size": size}
    if draw.random() < 0.3:
        content = damage(draw, content)
    head = json.dumps(content).encode()
    length = draw.choice(
        [len(head), len(head), 0, 1, len(head) - 1, len(head) + 17, 2**40, "-1", "abc", "1e3", "", "٣", " 5"]
    )
    raw = draw.randbytes(draw.choice([16, 16, 0, 1, 15, 17, 4000]))
    model = draw.choice(["half", "texts", "sums", "three"])
    return Damaged(
        http(draw, "POST", f"/v2/models/{model}/infer", head + raw, [("Inference-Header-Content-Length", str(length))])
    )


def _headers(draw: random.Random) -> Damaged:
    content = json.dumps(body(draw)).encode()
    kind = draw.randrange(9)
    headers: list[tuple[str, str]] = []
    if kind == 0:
        headers = [("X-" + "a" * draw.choice([10, 5000, 70_000]), "b" * draw.choice([10, 5000, 70_000]))]
    elif kind == 1:
        headers = [(f"X-{i}", "v") for i in range(draw.choice([50, 500, 5000]))]
    elif kind == 2:
        headers = [("Content-Length", str(draw.choice([-1, "abc", 10**20, "1, 2", "+5", "0x10", ""])))]
    elif kind == 3:
        headers = [("Content-Length", str(len(content))), ("Content-Length", str(draw.choice([0, 5, len(content)])))]
    elif kind == 4:
        headers = [
            ("Transfer-Encoding", draw.choice(["chunked", "gzip", "chunked, chunked", "identity", "\x0bchunked"]))
        ]
        size = draw.choice(
            [f"{len(content):x}", "-1", "zz", "f" * 20, f"{len(content) + 9:x}", f"{len(content):x};a=" + "b" * 9000]
        )
        content = size.encode() + b"\r\n" + content + b"\r\n0\r\n\r\n"
    elif kind == 5:
        encoding = draw.choice(["gzip", "deflate", "br", "identity", "gzip, gzip", "GZIP", ""])
        packed = draw.choice(
            [gzip.compress(content), zlib.compress(content), content, gzip.compress(content)[:-5], BOMB]
        )
        headers, content = [("Content-Encoding", encoding)], packed
    elif kind == 6:
        headers = [("Accept-Encoding", draw.choice(["gzip;q=x", "*", "," * 9000, "deflate", "gzip;q=0", "\xff"]))]
    elif kind == 7:
        headers = [
            (
                draw.choice(["Expect", "Upgrade", "Range", "If-None-Match", "Cookie", "Content-Type"]),
                draw.choice(TEXTS[:9]),
            )
        ]
    else:
        headers = [
            ("Authorization", draw.choice(["Bearer x", "Basic eA==", "\xff"])),
            ("Origin", "http://evil.example"),
        ]
    # lengths may promise more bytes than come
    return Damaged(http(draw, "POST", INFER, content, headers), open=kind in (2, 3, 4))


BOMB = gzip.compress(bytes(200 << 20), 9)  # 200 MB of zeros in 200 KB


def _path(draw: random.Random) -> Damaged:
    path = draw.choice(PATHS).format(draw.choice(NAMES))
    method = draw.choice(["GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FOO"])
    content = b"" if method in ("GET", "HEAD") else text(draw, draw.choice([{}, body(draw), value(draw)]))
    return Damaged(http(draw, method, path, content, []))


def _memory(draw: random.Random) -> Damaged:
    verb = draw.choice(["register", "register", "unregister"])
    path = f"/v2/systemsharedmemory/region/{draw.choice(['fuzz', *NAMES])}/{verb}"
    content = {"key": draw.choice(KEYS), "offset": draw.choice(NUMBERS), "byte_size": draw.choice([64, 4096, *NUMBERS])}
    return Damaged(http(draw, "POST", path, text(draw, content), []))


def _tensorflow(draw: random.Random) -> Damaged:
    content = draw.choice(
        [
            {"instances": [[1.0, 2.0], [3.0, 4.0]]},
            {"inputs": {"INPUT0": [[1.0, 2.0]]}, "signature_name": "serving_default"},
            {"instances": [{"INPUT0": [1.0, 2.0]}]},
            {"examples": [{"INPUT0": [1.0, 2.0]}], "context": {"a": 1}},
            {"instances": [{"b64": "AAAA"}]},
        ]
    )
    verb = draw.choice(["predict", "predict", "classify", "regress"])
    return Damaged(http(draw, "POST", f"/v1/models/half:{verb}", text(draw, damage(draw, content)), []))


def _generate(draw: random.Random) -> Damaged:
    content = {"INPUT0": draw.choice(["text", [1.0, 2.0]]), "parameters": {"a": 1}, "id": "4"}
    path = f"/v2/models/{draw.choice(['half', 'texts', 'sums'])}/{draw.choice(['generate', 'generate_stream'])}"
    return Damaged(http(draw, "POST", path, text(draw, damage(draw, content)), []))


def _tcp(draw: random.Random) -> Damaged:
    good = http(draw, "POST", INFER, json.dumps(body(draw)).encode(), [])
    kind = draw.randrange(6)
    if kind == 0:
        return Damaged(draw.randbytes(draw.randrange(1, 2000)), open=True)
    if kind == 1:
        return Damaged(good[: draw.randrange(1, len(good))], open=True)
    if kind == 2:
        return Damaged(good, pieces=draw.randrange(2, 6))
    if kind == 3:
        changed = bytearray(good)
        for _ in range(draw.randrange(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return Damaged(bytes(changed), open=True)
    if kind == 4:
        return Damaged(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(50), open=True)
    return Damaged(b"GET " + b"/" * draw.choice([100, 9000, 200_000]) + b" HTTP/1.1\r\n\r\n", open=True)


SORTS: list[tuple[Callable[[random.Random], Damaged], int]] = [
    (_json, 8),
    (_binary, 5),
    (_headers, 3),
    (_path, 5),
    (_memory, 3),
    (_tensorflow, 3),
    (_generate, 3),
    (_tcp, 2),
]


def damaged(seed: int, messages: dict[str, list[bytes]]) -> tuple[str, Damaged]:
    """Returns the sort and the request of a seed. messages: full name of gRPC's methods → good messages."""
    draw = random.Random(seed)
    if draw.random() < 0.35:
        return "grpc", _message(draw, messages)
    (sort,) = draw.choices([s for s, _ in SORTS], [w for _, w in SORTS])
    return sort.__name__.strip("_"), sort(draw)


def _message(draw: random.Random, messages: dict[str, list[bytes]]) -> Damaged:
    method = draw.choice(sorted(messages))
    data = bytearray(draw.choice(messages[method if draw.random() < 0.9 else draw.choice(sorted(messages))]))
    for _ in range(draw.randrange(5)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(5)
        if kind == 0 and data:
            data[at % len(data)] = draw.randrange(256)
        elif kind == 1:
            del data[at : at + draw.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 3:
            data[at:at] = data[at // 2 : at]
        else:
            data[at:at] = draw.choice([b"\xff" * 9 + b"\x01", b"\x80" * 5, draw.choice(TEXTS[1:]).encode()])
    return Damaged(method=method, message=bytes(data))
