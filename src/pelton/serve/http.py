"""The server over HTTP, an ASGI application: inference on a path of its own, all else by Starlette's routes."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

import orjson

from . import open_inference
from .openai.faults import PATHS as OPENAI_PATHS
from .openai.faults import OpenAiError, body_of, status_of
from .requests import Disconnect, InferRequest, RequestError
from .routes import Route, other_routes
from .server import Running, Server

log = logging.getLogger("pelton.serve")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = (b"content-type", b"application/json")
OCTETS = (b"content-type", b"application/octet-stream")
HEADER_LENGTH = b"inference-header-content-length"
PATIENCE = 0.05  # seconds after which a waiting client is watched
COMPRESSED = 1024  # bytes of an answer from which on compression is worth its time


class Mailbox:
    """Finished runs, for the coroutines that wait for them: threads wake the loop once for all of a batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._letters: deque[asyncio.Future[None]] = deque()
        self._called = False

    def future(self, run: Any) -> asyncio.Future[None]:
        """Returns a future that is done once the run is over, whatever its outcome."""
        future = self.loop.create_future()
        run.add_done_callback(lambda run: self._put(future))
        return future

    def _put(self, future: asyncio.Future[None]) -> None:
        self._letters.append(future)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._called = False  # first: what is put from here on calls again
        while self._letters:
            future = self._letters.popleft()
            if not future.done():
                future.set_result(None)


class Watch:
    """Watches a client that waits for long, and cancels its run if it goes."""

    def __init__(self, run: Any, done: asyncio.Future[None], receive: Receive):
        self.run, self.done, self.receive = run, done, receive
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch."""
        self.task = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.run.cancel()
        if not self.done.done():
            self.done.set_exception(Disconnect())

    def stop(self) -> None:
        """Ends watching."""
        if self.task is not None:
            self.task.cancel()


class Application:
    """The ASGI application of a server. `await application(scope, receive, send)` answers one request."""

    def __init__(self, server: Server):
        self.server, self.options = server, server.options
        self.under_way = 0
        self._mailbox: Mailbox | None = None
        self._other: Route = other_routes(server)
        self._paths: dict[str, tuple[str, str] | None] = {}  # of inference → model and version
        token = self.options.token
        self._bearer = None if token is None else b"Bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        if self.under_way >= self.options.requests:
            error = RequestError(f"{self.under_way} requests are under way", "full", 1.0)
            await self._fail(scope, send, error)
            return
        self.under_way += 1
        try:
            headers = self._headers(scope)
            if scope["method"] == "POST" and (target := self._target(scope["path"])) is not None:
                await self._infer(*target, headers, receive, send)
            else:
                await self._rest(scope, headers, receive, send)
        except RequestError as e:
            await self._fail(scope, send, e)
        except Disconnect:
            pass
        except Exception:
            log.exception("a request failed in the server")
            error = RequestError("the request failed; the server's log says why", "internal")
            await self._fail(scope, send, error)
        finally:
            self.under_way -= 1

    def with_cross_origin(self) -> Any:
        """Returns the application, behind Starlette's CORS if the options name origins."""
        if not self.options.origins:
            return self
        from starlette.middleware.cors import CORSMiddleware

        return CORSMiddleware(
            self,
            allow_origins=self.options.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Inference-Header-Content-Length"],
        )

    def _headers(self, scope: Scope) -> dict[bytes, bytes]:
        """Returns the headers by name. Raises RequestError without the server's token, if it has one."""
        headers = dict(scope["headers"])
        if self._bearer is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            if not scope["path"].startswith("/v2/health/"):
                raise RequestError("this server needs the header 'Authorization: Bearer TOKEN'", "unauthenticated")
        return headers

    def _target(self, path: str) -> tuple[str, str] | None:
        """Returns the model and version that a path of inference names; None for other paths."""
        if path in self._paths:
            return self._paths[path]
        parts = path.split("/")
        target = None
        if parts[:3] == ["", "v2", "models"] and parts[-1] == "infer":
            if len(parts) == 5:
                target = unquote(parts[3]), ""
            elif len(parts) == 7 and parts[4] == "versions":
                target = unquote(parts[3]), unquote(parts[5])
        if len(self._paths) < 4096:  # a client may ask for any path
            self._paths[path] = target
        return target

    async def _infer(self, name: str, version: str, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        body = await self.body(headers, receive)
        arrived = time.monotonic_ns()
        length = headers.get(HEADER_LENGTH)
        request = self._request(body, length, name, version)
        parts, json_bytes = await self.infer(
            request, arrived, receive, lambda v, answers: open_inference.write(request, v, answers)
        )
        if json_bytes is None:
            answer = [JSON]
        else:
            answer = [OCTETS, (HEADER_LENGTH, b"%d" % json_bytes)]
        await self.answer(send, 200, b"".join(parts) if len(parts) > 1 else parts[0], answer, headers)

    def _request(self, body: bytes, length: bytes | None, name: str, version: str) -> InferRequest:
        if length is None:
            return open_inference.read(body, None, name, version, self.server.regions.view)
        if not length.isdigit() or len(length) > 18:
            raise RequestError("Inference-Header-Content-Length is a number of bytes, got " + repr(length[:40]))
        if int(length) == 0:
            inputs = self.server.model(name, version).metadata()["inputs"]
            return open_inference.raw_request(body, name, version, inputs)
        return open_inference.read(body, int(length), name, version, self.server.regions.view)

    async def infer(self, request: InferRequest, arrived: int, receive: Receive, write: Callable[..., Any]) -> Any:
        """Runs a request; returns `write(version, answers)`. Raises RequestError, Disconnect if the client goes."""
        running = await self.begin(request, arrived)
        if running.future is not None:
            await self._wait(running.future, receive)
        return running.finish(write)

    async def begin(self, request: InferRequest, arrived: int) -> Running:
        """Starts a request; one that takes its thread for long runs in another."""
        if self.server.model(request.model, request.version).blocking:
            return await asyncio.get_running_loop().run_in_executor(None, self.server.begin, request, arrived)
        return self.server.begin(request, arrived)

    async def _wait(self, run: Any, receive: Receive) -> None:
        """Waits for a run; cancels it if the client goes. Raises Disconnect then."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        done = self._mailbox.future(run)
        watch = Watch(run, done, receive)
        timer = loop.call_later(PATIENCE, watch.start)
        try:
            await done
        finally:
            timer.cancel()
            watch.stop()

    async def body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Reads and decompresses a body. Raises RequestError for one that is too large, late, or of another encoding,
        Disconnect if the client goes."""
        limit = self.options.body
        length = headers.get(b"content-length")
        if length is not None and not (length.isdigit() and len(length) < 19 and int(length) <= limit):
            raise too_large(limit, length.decode("latin-1"))
        try:
            message = await receive()
            if not message.get("more_body") and message["type"] == "http.request":
                body: bytes = message.get("body", b"")
            else:
                body = await asyncio.wait_for(_rest_of(message, receive, limit), self.options.body_seconds)
        except asyncio.TimeoutError:
            raise RequestError(f"the body did not arrive within {self.options.body_seconds:g} s", "late") from None
        if len(body) > limit:
            raise too_large(limit, str(len(body)))
        encoding = headers.get(b"content-encoding")
        return body if encoding is None else inflate(body, encoding, limit)

    async def _rest(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        """Answers by a route: the body is read first, within its limits."""
        body = await self.body(headers, receive) if scope["method"] in ("POST", "PUT", "DELETE") else b""
        scope["pelton.body"], scope["pelton.application"], scope["pelton.headers"] = body, self, headers
        await self._other(scope, receive, send)

    async def answer(
        self,
        send: Send,
        status: int,
        body: Any,
        headers: list[tuple[bytes, bytes]],
        asked: dict[bytes, bytes] | None = None,
    ) -> None:
        """Sends an answer, compressed if the client accepts it. asked: the headers of the request."""
        accepted = asked.get(b"accept-encoding") if asked else None
        if accepted is not None and len(body) >= COMPRESSED:
            encoding = _chosen(accepted, headers[0] == JSON)
            if encoding is not None:
                body = deflate(body, encoding)
                headers = [*headers, (b"content-encoding", encoding.encode())]
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, (b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async def _fail(self, scope: Scope, send: Send, error: RequestError) -> None:
        headers = [JSON]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after))))
        if error.fault in ("large", "late", "unauthenticated"):
            headers.append((b"connection", b"close"))  # what is left of the body is not read
        status, content = error.status, {"error": str(error)}
        listing = scope["path"] == "/v1/models" and error.fault == "unauthenticated"
        if isinstance(error, OpenAiError) or listing or scope["path"] in OPENAI_PATHS:
            status, content = status_of(error), body_of(error)
        await self.answer(send, status, orjson.dumps(content), headers)


def too_large(limit: int, size: str) -> RequestError:
    return RequestError(
        f"request JSON size of {size[:20]} bytes exceeds the maximum allowed input size of {limit} bytes. Use"
        " --http-max-input-size to increase the limit.",
        "large",
    )


async def _rest_of(message: Message, receive: Receive, limit: int) -> bytes:
    pieces, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise Disconnect
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise too_large(limit, f"at least {size}")
        if not message.get("more_body"):
            return b"".join(pieces)
        message = await receive()


def inflate(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Decompresses a body of at most `limit` bytes. Raises RequestError for other encodings, damage, and more bytes."""
    kind = encoding.strip().lower()
    if kind in (b"identity", b""):
        return body
    if kind not in (b"gzip", b"deflate"):
        raise RequestError(f"Content-Encoding is gzip or deflate, got {encoding[:40]!r}", "encoding")
    stream = zlib.decompressobj(31 if kind == b"gzip" else 15)
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as e:
        raise RequestError(f"the body is no {kind.decode()}: {e}") from None
    if len(content) > limit:
        raise too_large(limit, f"at least {len(content)}")
    if not stream.eof or stream.unused_data:
        raise RequestError(f"the body is not one whole stream of {kind.decode()}")
    return content


def deflate(body: Any, encoding: str) -> bytes:
    """Compresses an answer by "gzip" or "deflate"."""
    stream = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    return stream.compress(body) + stream.flush()


def _chosen(accepted: bytes, text: bool) -> str | None:
    """Returns the encoding for an answer. Arrays hardly shrink: they are compressed for clients that accept that one
    encoding alone, as those do which ask for it."""
    names = [part.partition(b";") for part in accepted.lower().split(b",")]
    known = [n.strip().decode("latin-1") for n, _, q in names if q.strip() != b"q=0"]
    known = [n for n in known if n in ("gzip", "deflate")]
    if not known or not (text or len(names) == 1):
        return None
    return "gzip" if "gzip" in known else "deflate"
