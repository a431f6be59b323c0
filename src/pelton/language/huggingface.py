"""Folders as transformers writes them: config.json, safetensors in one or several files, the tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pelton.errors import ModelAbsent, ModelError

from .architecture import DecoderFamily
from .description import DecoderPorts, Description
from .families import family_of
from .folder_tokens import folder_tokens, ids_of
from .safetensors import StoredTensor, read, tensors_of
from .source import DecoderSizes, LanguageSettings, LanguageSource, read_json

if TYPE_CHECKING:
    import numpy as np

    from pelton.network import Network

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # what old files have beside weights


class FolderTensors:
    """The tensors of a folder, by the names of transformers. used: those that were read.

    embedding: the name of the table of tokens. Files of a model without a head, and old ones, leave the first part of
    all names out, such as "transformer." of "transformer.wte".
    """

    def __init__(self, folder: Path, files: tuple[Path, ...], embedding: str):
        self.name = str(folder)
        stored: dict[str, StoredTensor] = {}
        for path in files:
            stored |= tensors_of(path)
        prefix, _, table = embedding.partition(".")
        bare = f"{table}.weight" in stored
        self.stored = {
            f"{prefix}.{name}" if bare and name != "lm_head.weight" else name: t for name, t in stored.items()
        }
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored[name].shape

    def read(self, name: str) -> np.ndarray:
        self.used.add(name)
        return read(self.stored[name])

    def unused(self) -> list[str]:
        """Returns the tensors that the network has no use for."""
        return [n for n in self.stored if n not in self.used and not n.endswith(BUFFERS)]


def huggingface_model(folder: Path) -> LanguageSource:
    """Returns the model of a folder. Raises ModelError for files that are missing or damaged, and for architectures
    and settings that are not known."""
    settings = LanguageSettings(read_json(folder / CONFIG), folder / CONFIG)
    family, files = family_of(settings), weight_files(folder)
    tied = settings.flag("tie_word_embeddings", settings.text("model_type").startswith(("gemma", "gpt2")))
    a = family.architecture
    description = Description(
        family=a.family,
        layers=len(a.layers),
        kv_heads=a.kv_heads,
        head_size=a.head_size,
        context=a.context,
        vocabulary=a.vocabulary,
        long_from=max((r.long_from for r in a.rotations), default=0),
    )
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    bos, eos = (
        ids_of(generation.get(name)) or ids_of(settings.values.get(name)) for name in ("bos_token_id", "eos_token_id")
    )
    return LanguageSource(
        "transformers",
        (*files, folder / CONFIG),
        description,
        lambda: folder_tokens(folder, bos[0] if bos else None, eos),
        lambda sizes: _network(folder, files, family, tied, sizes),
    )


def _network(
    folder: Path, files: tuple[Path, ...], family: DecoderFamily, tied: bool, sizes: DecoderSizes
) -> tuple[Network, DecoderPorts, list[str]]:
    from .decoder_network import decoder_network  # the compiler's, which later starts do not import
    from .weights import DecoderWeights

    tensors = FolderTensors(folder, files, family.places["embedding"].name)
    places = {part: place for part, place in family.places.items() if part != "head" or not tied}
    if not tied and f"{places['head'].name}.weight" not in tensors:
        raise ModelError(f"{folder} has no tensor '{places['head'].name}.weight', and tie_word_embeddings is false")
    net, ports = decoder_network(family.architecture, DecoderWeights(tensors, places), sizes)
    head = family.places["head"].name
    unused = [name for name in tensors.unused() if not name.startswith(f"{head}.")]
    if unused:
        raise ModelError(
            f"{folder}: tensor {unused[0]!r} has no place in a model of type {family.architecture.family!r}"
        )
    return net, ports, []


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Returns the files of a folder's weights. Raises ModelError if one is missing."""
    if (folder / INDEX).is_file():
        index = LanguageSettings(read_json(folder / INDEX), folder / INDEX)
        names = sorted({str(name) for name in index.part("weight_map").values.values()})
    else:
        names = [SINGLE]
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{folder / INDEX} names {name!r}, which is no file of the folder")
        if not (folder / name).is_file():
            raise ModelAbsent(f"{folder} has no {name}; weights are read from safetensors files alone", folder / name)
    return tuple(folder / name for name in names)
