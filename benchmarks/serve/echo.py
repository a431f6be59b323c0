"""The floor: a protocol of uvloop that answers every HTTP request with its body's size. echo.py PORT"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop


class Echo(asyncio.Protocol):
    """Reads a request by its content-length, and answers."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) >= length:
            self.data = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n%6d" % length)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
