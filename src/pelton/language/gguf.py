"""GGUF files: one file with the network's numbers, its tensors and its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.errors import ModelError

from .architecture import DecoderFamily
from .description import DecoderPorts, Description, described
from .gguf_family import gguf_family
from .gguf_file import GgufFile
from .gguf_tokens import KeptMetadata, gguf_tokens
from .source import DecoderSizes, LanguageSource
from .tokens import Tokens

if TYPE_CHECKING:
    from pelton.network import Network

    from .weights import Matrix

BUFFERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class GgufTensors:
    """The tensors of a file. used: those that were read."""

    def __init__(self, file: GgufFile):
        self.file, self.name, self.used = file, str(file.path), set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.tensors[name].shape

    def read(self, name: str) -> Matrix:
        from .gguf_blocks import matrix_of  # which imports the operators

        self.used.add(name)
        tensor = self.file.tensors[name]
        return matrix_of(tensor, self.file.bytes_of(tensor))


class _Model:
    """A file, read when it is needed. tokenizer: the metadata of its tokens, if an earlier start recorded it."""

    def __init__(self, path: Path, tokenizer: Mapping[str, Any] | None = None):
        self.path, self.tokenizer = path, tokenizer

    @cached_property
    def file(self) -> GgufFile:
        return GgufFile(self.path)

    @cached_property
    def family(self) -> DecoderFamily:
        return gguf_family(self.file)

    def tokens(self) -> Tokens:
        return gguf_tokens(self.file if self.tokenizer is None else KeptMetadata(self.path, self.tokenizer))

    def description(self) -> Description:
        return self.family.architecture.description()

    def head(self) -> dict[str, Any]:
        """Returns what `kept_gguf_model` takes."""
        tokenizer = {key: value for key, value in self.file.metadata.items() if key.startswith("tokenizer.")}
        return {"description": asdict(self.description()), "tokenizer": tokenizer}

    def network(self, sizes: DecoderSizes) -> tuple[Network, DecoderPorts, list[str]]:
        from .decoder_network import decoder_network  # the compiler's, which later starts do not import
        from .gguf_blocks import WIDENED
        from .weights import DecoderWeights

        tensors = GgufTensors(self.file)
        weights = DecoderWeights(tensors, self.family.places, sizes.round_rows)
        net, ports = decoder_network(self.family.architecture, weights, sizes)
        unused = [name for name in self.file.tensors if name not in tensors.used and name not in BUFFERS]
        if unused:
            raise ModelError(
                f"{self.path}: tensor {unused[0]!r} has no place in a model of type {self.family.architecture.family!r}"
            )
        kinds = Counter(t.kind.name for t in self.file.tensors.values() if t.kind.name in WIDENED)
        return net, ports, [f"{count} tensors of {kind} have codes of 8 bits" for kind, count in sorted(kinds.items())]


def gguf_model(path: Path) -> LanguageSource:
    """Returns the model of a file. Raises FormatError for a damaged file, and ModelError for architectures, tokenizers
    and metadata that are not known."""
    model = _Model(path)
    return LanguageSource("gguf", (path,), model.description(), model.tokens, model.network, model.head)


def kept_gguf_model(path: Path, head: Mapping[str, Any]) -> LanguageSource:
    """Returns the model of a file whose `LanguageSource.head` an earlier start recorded; the file is not read.

    Reading the texts of a large vocabulary takes longer than loading an engine.
    """
    model = _Model(path, head["tokenizer"])
    return LanguageSource("gguf", (path,), described(head["description"]), model.tokens, model.network)
