"""The routes of the OpenAI protocol: requests in, JSON or a stream of events out.

Source: OpenAI's API reference; streams as its Python client reads them. Templates, tokens and grammars are made in a
thread; the model's own thread makes answers; this loop hears of each piece.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool

from pelton.errors import InputError
from pelton.language import Answer, AnswerPiece, Decoder

from ..model import fault_of
from ..requests import Disconnect, RequestError
from ..server import Server
from ..text_model import TextModel
from .calls import TextCall, read_chat, read_completion
from .embeddings import embeddings
from .faults import CHAT, COMPLETIONS, EMBEDDINGS, OpenAiError, body_of
from .fields import Fields, parsed
from .writing import AnswerWriter, ChatWriter

JSON = (b"content-type", b"application/json")
EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies pass events on at once
]
KINDS: dict[str, tuple[Callable[[Fields, TextModel], TextCall], type[AnswerWriter]]] = {
    CHAT: (read_chat, ChatWriter),
    COMPLETIONS: (read_completion, AnswerWriter),
}
Pieces = AsyncIterator[tuple[int, AnswerPiece | None]]


class OpenAiApi:
    """The protocol as an ASGI application, for the paths of `faults.PATHS`."""

    def __init__(self, server: Server):
        self.server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        arrived, path = time.monotonic_ns(), scope["path"]
        if scope["method"] != "POST":
            raise OpenAiError(f"{path} takes POST, not {scope['method'][:20]}", fault="method")
        fields = Fields(parsed(scope["pelton.body"]))
        model = self.model(fields.text("model"))
        application, headers = scope["pelton.application"], scope["pelton.headers"]
        try:
            if path == EMBEDDINGS:
                answer = await run_in_threadpool(embeddings, fields, model)
                await application.answer(send, 200, orjson.dumps(answer), [JSON], headers)
            else:
                await self._text(path, fields, model, application, headers, receive, send)
        except RequestError as e:
            model.statistics.failed(e.fault, time.monotonic_ns() - arrived)
            raise
        ns = time.monotonic_ns() - arrived
        model.statistics.succeeded(1, ns, 0, 0, ns, 0)

    def model(self, name: str) -> TextModel:
        """Returns a language model. Raises OpenAiError for any other name."""
        model = self.server.table.get((name, ""))
        if isinstance(model, TextModel):
            return model
        if model is not None:
            raise OpenAiError(
                f"The model '{name}' is no language model: use /v2/models/{name}/infer", "model", "model_not_supported"
            )
        raise OpenAiError(f"The model '{name[:200]}' does not exist", "model", "model_not_found", "absent")

    async def _text(
        self, path: str, fields: Fields, model: TextModel, application: Any, headers: Any, receive: Any, send: Any
    ) -> None:
        read, writer = KINDS[path]
        if not isinstance(model.text.model, Decoder):
            message = f"model {model.name!r} makes embeddings and no text: POST to {EMBEDDINGS}"
            raise OpenAiError(message, "model", "unsupported_model")

        def begin() -> tuple[TextCall, AnswerWriter, list[Answer]]:
            try:
                call = read(fields, model)
            except InputError as e:
                raise OpenAiError(str(e)) from None
            return call, writer(call), model.submit(call.requests)

        begun = asyncio.ensure_future(run_in_threadpool(begin))
        try:
            call, write, answers = await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(_cancel_begun)
            raise
        async with Listening(answers, receive, model.seconds) as listening:
            if call.stream:
                await self._stream(write, answers, listening, send)
            else:
                await listening.over()
                body = orjson.dumps(await run_in_threadpool(write.whole, answers))
                await application.answer(send, 200, body, [JSON], headers)

    async def _stream(self, write: AnswerWriter, answers: list[Answer], listening: Listening, send: Any) -> None:
        """Sends events as pieces arrive. An error behind the first event is an event, too."""
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await _events(send, write.start())
        try:
            async for index, piece in listening.pieces():
                chunks = write.end(index, answers[index]) if piece is None else write.piece(index, piece)
                await _events(send, chunks)
        except RequestError as e:
            await _events(send, [body_of(e)])
            await send({"type": "http.response.body", "body": b""})
            return
        usage = write.last(answers)
        await _events(send, [] if usage is None else [usage])
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _cancel_begun(begun: asyncio.Future[Any]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        for answer in begun.result()[2]:
            answer.cancel()


async def _events(send: Any, chunks: Iterable[dict[str, Any]]) -> None:
    body = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks)
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})


class Listening:
    """Answers of a request as they arrive, until they are over, the client goes, or the time is up.

    A context: behind it, all answers are over or cancelled. Raises `Disconnect` if the client goes, RequestError for an
    answer that fails or is late.
    """

    def __init__(self, answers: list[Answer], receive: Any, seconds: float):
        self.answers, self.receive, self.seconds = answers, receive, seconds
        self._queue: asyncio.Queue[tuple[int, AnswerPiece | BaseException | None]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Listening:
        self._tasks = [asyncio.create_task(self._listen(i, a)) for i, a in enumerate(self.answers)]
        self._tasks.append(asyncio.create_task(self._watch()))
        late = OpenAiError(f"the answer took more than {self.seconds:g} s", fault="late")
        self._timer = asyncio.get_running_loop().call_later(self.seconds, self._queue.put_nowait, (0, late))
        return self

    async def __aexit__(self, *error: Any) -> None:
        for answer in self.answers:
            answer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    async def pieces(self) -> Pieces:
        """Yields the number of an answer with each of its pieces, and with None at its end."""
        left = len(self.answers)
        while left:
            index, piece = await self._queue.get()
            if isinstance(piece, BaseException):
                raise piece
            left -= piece is None
            yield index, piece

    async def over(self) -> None:
        """Waits until all answers are over."""
        async for _ in self.pieces():
            pass

    async def _listen(self, index: int, answer: Answer) -> None:
        try:
            async for piece in answer:
                self._queue.put_nowait((index, piece))
        except Exception as e:
            self._queue.put_nowait((index, fault_of(e)))
            return
        if answer.finish_reason == "cancelled":  # the model was closed
            gone = RequestError("the server stops, or the model was unloaded", "unavailable")
            self._queue.put_nowait((index, gone))
        self._queue.put_nowait((index, None))

    async def _watch(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        for answer in self.answers:
            answer.cancel()
        self._queue.put_nowait((0, Disconnect()))
