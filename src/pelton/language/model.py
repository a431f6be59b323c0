"""Language models for programs: text in, text out."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from pelton.errors import InputError

from .chat import ChatTemplate
from .decoder import Decoder
from .encoder_opening import is_encoder, open_encoder
from .generation import Answer, GenerationRequest
from .literal import SpecialTexts
from .opening import open
from .sampling import Sampling
from .scheduler import Scheduler
from .sentence import SentenceEncoder
from .transcription import language_of, listener, transcribed

if TYPE_CHECKING:
    from typing_extensions import Unpack

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]
MOST_TOKENS = 512


class SamplingOptions(TypedDict, total=False):
    """Keywords of both below: the most tokens of a text, and how they are drawn."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    temperature_last: bool
    seed: int | None


class GenerateOptions(SamplingOptions, total=False):
    """Keywords of `LanguageModel.generate`, which describes them."""

    stop: str | Sequence[str]
    schema: Mapping[str, Any] | str | None
    tools: Sequence[Mapping[str, Any]] | None
    template: Mapping[str, Any]
    logprobs: int | None
    ignore_eos: bool


class TranscribeOptions(SamplingOptions, total=False):
    """Keywords of `LanguageModel.transcribe`; max_tokens: of the text of each part."""


class LanguageModel:
    """A language model: text in, text out; or embeddings, if it is a sentence encoder; or a model of speech: sound in,
    text out.

        model = pelton.LanguageModel("model.gguf")
        print(model.generate("The capital of France is", max_tokens=20))
        for text in model.generate([{"role": "user", "content": "Hello!"}], temperature=0.7, stream=True):
            print(text, end="", flush=True)

        vectors = pelton.LanguageModel("all-MiniLM-L6-v2").embed(["a cat", "a dog"])
        text = pelton.LanguageModel("whisper-tiny").transcribe("talk.wav")

    path: see `pelton.language.open`, as are threads, cache, context, level, precision and cache_folder; or a folder for
    `pelton.language.open_encoder`; or a Decoder or a SentenceEncoder. cache, sequences and speculate concern decoders.
    sequences: answers at once, 1 to 64; further ones wait. Memory for their caches is touched only as they grow.
    speculate: propose tokens that followed the same ones earlier in the text, and check several in one run, where that
    leaves every bit of an answer as it is.
    Any thread may call all methods, several at once.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Decoder | SentenceEncoder,
        *,
        threads: int | None = None,
        cache: str | None = None,
        context: int | None = None,
        sequences: int = 4,
        speculate: bool = True,
        level: int = 0,
        precision: str = "fp32",
        cache_folder: str | Path | None = None,
    ):
        options = dict[str, Any](
            threads=threads, context=context, level=level, precision=precision, cache_folder=cache_folder
        )
        model: Decoder | SentenceEncoder
        if isinstance(path, (Decoder, SentenceEncoder)):
            model = path
        elif is_encoder(Path(path)):
            model = open_encoder(path, **options)
        else:
            model = open(path, cache=cache, **options)
        self.model, self.tokens, self.description = model, model.tokens, model.description
        self._scheduler = Scheduler(model, sequences, speculate=speculate) if isinstance(model, Decoder) else None
        self._lock = threading.Lock()
        self._template: ChatTemplate | None = None
        self._special = SpecialTexts(self.tokens)

    @property
    def decoder(self) -> Decoder:
        """The decoder. Raises InputError for a model that makes embeddings and no text."""
        return self.scheduler.decoder

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of answers. Raises InputError for a model that makes embeddings and no text."""
        if self._scheduler is None:
            raise InputError(f"this model, {self.description.family!r}, makes embeddings and no text: call embed")
        return self._scheduler

    # --- embeddings

    def embed(
        self, texts: str | Sequence[str], *, normalize: bool | None = None, batch: int = 32, prompt: str | None = None
    ) -> np.ndarray:
        """Returns the embeddings of texts, f32 [texts, width]; a single text has one row, too.

        normalize: true gives each a length of 1, so that products of them are cosines; false leaves them as the model
        computes them; default: what the model's modules say. batch: texts of one run, 1 to 256, at most; those of
        similar length run together. prompt: the name of a text that the model puts in front of all, such as "query";
        "" for none; default: that of the model. Longer texts than the model takes (`description.context` tokens) are
        cut, with a warning in the log.

        Raises InputError for a model without pooling, such as a decoder that makes text, and for wrong arguments,
        ModelError for embeddings that are not finite.
        """
        if not isinstance(self.model, SentenceEncoder):
            raise InputError(
                f"this model, {self.description.family!r}, makes text and no embeddings: embed needs a sentence"
                " encoder, whose folder has modules.json or is of an encoder such as BERT"
            )
        return self.model.embed(texts, normalize=normalize, batch=batch, prompt=prompt)

    # --- speech

    @overload
    def transcribe(
        self,
        audio: str | os.PathLike[str] | np.ndarray,
        *,
        rate: int | None = ...,
        language: str | None = ...,
        task: str | None = ...,
        stream: Literal[False] = ...,
        **options: Unpack[TranscribeOptions],
    ) -> str: ...
    @overload
    def transcribe(
        self,
        audio: str | os.PathLike[str] | np.ndarray,
        *,
        rate: int | None = ...,
        language: str | None = ...,
        task: str | None = ...,
        stream: Literal[True],
        **options: Unpack[TranscribeOptions],
    ) -> Iterator[str]: ...

    def transcribe(
        self,
        audio: str | os.PathLike[str] | np.ndarray,
        *,
        rate: int | None = None,
        language: str | None = None,
        task: str | None = None,
        stream: bool = False,
        **options: Unpack[TranscribeOptions],
    ) -> str | Iterator[str]:
        """Returns the text of a sound, by a model of speech such as Whisper.

        audio: the path of a WAV file with samples of 16 bits, or an array [samples] or [samples, channels] of floats
        from −1 to 1, or of int16. rate: of an array, samples a second, default 16,000; others are resampled.
        language: such as "en"; default: the most likely one of the first part. task: "transcribe" (default), or
        "translate", into English. stream: as for `generate`. options: as for `generate`; max_tokens: of each part,
        default: as many as fit.

        A long sound is cut into parts of 30 seconds at most, at their quietest places near the end; up to `sequences`
        of them run at once.

        Raises InputError for a model that hears nothing, and for wrong arguments and files.
        """
        texts = transcribed(listener(self.scheduler, **options), audio, rate, language, task)
        next(texts)  # checks the arguments
        return texts if stream else "".join(texts).rstrip()

    def detect_language(self, audio: str | os.PathLike[str] | np.ndarray, *, rate: int | None = None) -> str:
        """Returns the language of the first part of a sound, such as "en". Raises as `transcribe`, and InputError for a
        model of one language."""
        return language_of(listener(self.scheduler), audio, rate)

    # --- answers

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = ..., **options: Unpack[GenerateOptions]) -> str: ...
    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> Iterator[str]: ...

    def generate(
        self, prompt: Prompt, *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> str | Iterator[str]:
        """Generates the text that follows a prompt.

        prompt: a text, which is completed as it is, or messages such as {"role": "user", "content": "Hello"}, which the
        model's chat template makes a prompt. stream: returns an iterator of texts, one for each token where whole
        characters allow it; an iterator that is closed early cancels the answer.
        max_tokens: default 512; None: as many as fit. temperature: 0 (default) chooses the most likely token; top_k,
        top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, temperature_last, seed: see
        `pelton.language.Sampling`, which has their order.
        stop: a text, or several, that end the answer and are not part of it; special tokens such as "<|im_end|>" are
        found, too. ignore_eos: the model's own end does not.
        schema: what the answer must match: a JSON schema as a dictionary, or a text: "regex:" with a regular
        expression, "lark:" with a grammar. tools: descriptions of functions, for templates that have a place for them.
        template: further names for the template, such as {"enable_thinking": False}. logprobs: see `submit`.

        Raises InputError for wrong arguments and for a prompt that is longer than the cache, ModelError for logits that
        are NaN.
        """
        answer = self.submit(prompt, **options)
        if not stream:
            return answer.text
        texts = _texts(answer)
        next(texts)  # closing a generator that has not begun would not cancel
        return texts

    def agenerate(self, prompt: Prompt, *, stream: bool = False, **options: Unpack[GenerateOptions]) -> Any:
        """`generate` in a coroutine: `await` it, or iterate with `async for` if `stream` is true.

        The chat template and the tokenizer run in a thread. A coroutine that is cancelled cancels its answer.
        """
        return self._texts_async(prompt, options) if stream else self._text_async(prompt, options)

    async def _text_async(self, prompt: Prompt, options: GenerateOptions) -> str:
        return "".join([text async for text in self._texts_async(prompt, options)])

    async def _texts_async(self, prompt: Prompt, options: GenerateOptions) -> AsyncIterator[str]:
        answer = await self._submitted(prompt, options)
        try:
            async for piece in answer:
                if piece.text:
                    yield piece.text
        finally:
            answer.cancel()

    async def _submitted(self, prompt: Prompt, options: GenerateOptions) -> Answer:
        """Submits a prompt in a thread. Without a coroutine that could read the answer, the thread cancels it."""
        import asyncio  # takes as long to import as all of this room

        answers, gone = list[Answer](), threading.Event()

        def begin() -> None:
            answers.append(self.submit(prompt, **options))
            if gone.is_set():
                answers[0].cancel()

        try:
            await asyncio.to_thread(begin)
        except BaseException:
            gone.set()
            for answer in answers:
                answer.cancel()
            raise
        return answers[0]

    def submit(self, prompt: Prompt | GenerationRequest, **options: Unpack[GenerateOptions]) -> Answer:
        """Begins an answer and returns it at once: pieces with their tokens, usage, and the reason of its end.

        options: as for `generate`. logprobs: the log probability of each token, under the logits as the model made
        them, with those of so many of the most likely ones in its place.
        """
        if isinstance(prompt, GenerationRequest):
            if options:
                raise InputError("options of a GenerationRequest are its fields")
            return self.scheduler.submit(prompt)
        return self.scheduler.submit(self.request(prompt, **options))

    def request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = MOST_TOKENS,
        stop: str | Sequence[str] = (),
        schema: Mapping[str, Any] | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        logprobs: int | None = None,
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> GenerationRequest:
        """Returns the request that `submit` makes of its arguments."""
        stops: Any = (stop,) if isinstance(stop, str) else stop
        stops = tuple(stops) if isinstance(stops, list) else stops
        unknown = [name for name in sampling if name not in Sampling.__dataclass_fields__]
        if unknown:
            raise TypeError(f"generate has no argument {unknown[0]!r}")
        given = prompt if isinstance(prompt, str) else self.chat_tokens(prompt, tools, **(template or {}))
        return GenerationRequest(
            prompt=given,
            max_tokens=max_tokens,
            sampling=Sampling(**sampling),
            stop=stops,
            ignore_eos=ignore_eos,
            schema=schema,
            logprobs=logprobs,
            special=isinstance(prompt, str),
        )

    def chat_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **values: Any
    ) -> str:
        """Returns the text that the chat template makes of messages. values: further names for the template.

        Raises InputError for a model without a template, messages that are none, and those that the template rejects.
        """
        return self._chat_template().render(messages, tools, **values)

    def chat_tokens(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **values: Any
    ) -> tuple[int, ...]:
        """Returns the tokens of `chat_prompt`. Special tokens that stand in messages are characters, and end nothing.

        Raises as `chat_prompt`, and InputError for half a character.
        """
        parts = self._chat_template().parts(self._special, messages, tools, **values)
        return tuple(self.scheduler.encode_parts(parts))

    def _chat_template(self) -> ChatTemplate:
        with self._lock:
            if self._template is None:
                text = self.tokens.template or self.description.template
                if not text:
                    raise InputError("this model has no chat template: pass the prompt as a text")
                self._template = ChatTemplate(text, self.tokens.names)
            return self._template

    # --- sessions

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the caches of earlier prompts and answers to a file, atomically. Raises OSError."""
        self.scheduler.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Reads what `save` wrote: prompts that begin like those go on from their caches.

        Raises InputError for a file that is damaged, or of another model or another build of it.
        """
        self.scheduler.restore(path)

    def close(self) -> None:
        """Cancels all answers and ends the thread of the model."""
        if self._scheduler is not None:
            self._scheduler.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pelton.LanguageModel of {self.model!r}>"


def _texts(answer: Answer) -> Iterator[str]:
    """Yields "" first, then the texts of an answer."""
    try:
        yield ""
        for piece in answer:
            if piece.text:
                yield piece.text
    finally:
        answer.cancel()
