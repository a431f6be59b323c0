"""uvicorn's HTTP protocol with limits on headers: their bytes, and the seconds until they are complete."""

from __future__ import annotations

from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .options import ServeOptions

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
INVALID = b"HTTP/1.1 400 Bad Request\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """A connection. `since`: when its unfinished headers, or the connection itself, began; None between these."""

    limit = 64 << 10  # bytes of headers
    since: float | None = None
    header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.since, self.header_bytes = self.loop.time(), 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.header_bytes += len(name) + len(value) + 4
        if self.header_bytes > self.limit:
            raise ValueError("headers are too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.since = None
        if self.header_bytes + len(self.url) > self.limit:
            raise ValueError("headers are too large")
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.since is not None and not self.transport.is_closing():  # the parser holds an unfinished line
            self.header_bytes += len(data)
            if self.header_bytes > self.limit:
                self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        large = self.header_bytes > self.limit
        text = f"the headers have more than {self.limit} bytes" if large else "the request is not HTTP/1.1"
        body = orjson.dumps({"error": text})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.since = None
        self.transport.write(b"".join((TOO_LARGE if large else INVALID, head, body)))
        self.transport.close()


def bounded(options: ServeOptions) -> type[BoundedProtocol]:
    """Returns the protocol with the limits of a server."""
    return type("Connection", (BoundedProtocol,), {"limit": options.header})


def close_late(connections: Any, now: float, seconds: float) -> None:
    """Closes connections whose headers are not complete after `seconds`."""
    for connection in list(connections):
        since = getattr(connection, "since", None)
        if since is not None and now - since > seconds:
            connection.transport.close()
