"""A language model: an engine, its tokens, and sequences of both."""

from __future__ import annotations

from pelton.errors import InputError
from pelton.runtime import Engine

from .batch import TokenBatch
from .description import Description, DecoderPorts
from .runner import DecoderRunner
from .sequence import TokenSequence
from .source_encoder import SourceEncoder
from .tokens import Tokens


class Decoder:
    """A language model, ready to run; `open` creates it.

        decoder = pelton.language.open("model.gguf")
        sequence = decoder.state()
        logits = sequence.extend(decoder.tokens.encode("The capital of France is"))
        print(decoder.tokens.decode([logits.argmax()]))

    Runs of all sequences share one context, one run at a time, from any thread. encoder: of a model whose answers begin
    anew behind a text or a sound; its `read` writes what a sequence attends to.
    """

    def __init__(
        self,
        engine: Engine,
        tokens: Tokens,
        description: Description,
        ports: DecoderPorts,
        threads: int | None = None,
        encoder: SourceEncoder | None = None,
    ):
        self.engine, self.tokens, self.description, self.ports = engine, tokens, description, ports
        self.encoder = encoder
        self.runner = DecoderRunner(engine, ports, description, threads)

    # --- sequences

    def state(self, capacity: int | None = None) -> TokenSequence:
        """Creates an empty sequence. capacity: the most tokens it takes, default and maximum: the model's context."""
        capacity = self._capacity(capacity)
        return TokenSequence(self.runner, self.runner.empty(1, capacity), capacity)

    def batch(self, count: int, capacity: int | None = None) -> TokenBatch:
        """Creates `count` empty sequences in one memory, which `TokenBatch.step` runs together."""
        if not self.ports.batch and count != 1:
            raise InputError(f"this model takes one sequence at a time, not {count}")
        if count < 1:
            raise InputError(f"a batch has one sequence or more, got {count}")
        capacity = self._capacity(capacity)
        return TokenBatch(self.runner, self.runner.empty(count, capacity), count, capacity)

    def _capacity(self, wanted: int | None) -> int:
        most = self.description.context
        if wanted is not None and not 1 <= wanted <= most:
            raise InputError(f"a sequence of this model has room for 1 to {most} tokens, got {wanted}")
        return wanted or most

    def __repr__(self) -> str:
        d = self.description
        return f"<pelton.language.Decoder {d.family}, {d.layers} layers, {d.vocabulary} tokens, context {d.context}>"
