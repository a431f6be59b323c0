"""Folders as transformers writes them: config.json, safetensors in one or several files, the tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pelton.errors import ModelError

from .architecture import DecoderFamily
from .description import DecoderPorts
from .encoder_decoder import encoder_decoder_model
from .families import PAIRS, family_of
from .folder_tensors import FolderTensors, weight_files
from .folder_tokens import folder_tokens, ids_of
from .source import DecoderSizes, LanguageSettings, LanguageSource, read_json

if TYPE_CHECKING:
    from pelton.network import Network

CONFIG = "config.json"


def huggingface_model(folder: Path) -> LanguageSource:
    """Returns the model of a folder. Raises ModelError for files that are missing or damaged, and for architectures
    and settings that are not known."""
    settings = LanguageSettings(read_json(folder / CONFIG), folder / CONFIG)
    if settings.text("model_type") in PAIRS:
        return encoder_decoder_model(folder, settings)
    family, files = family_of(settings), weight_files(folder)
    tied = settings.flag("tie_word_embeddings", settings.text("model_type").startswith(("gemma", "gpt2")))
    description = family.architecture.description()
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
