"""Weights of folders as transformers writes them: safetensors in one or several files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pelton.errors import ModelAbsent, ModelError

from .safetensors import StoredTensor, read, tensors_of
from .source import LanguageSettings, read_json

if TYPE_CHECKING:
    import numpy as np

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
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
