"""Folders of encoder–decoders as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pelton.errors import ModelError

from .architecture import TensorPlace
from .description import DecoderPorts
from .encoder_architecture import EncoderDecoderFamily
from .families import pair_of
from .folder_speech import speech_rules
from .folder_tensors import FolderTensors, weight_files
from .folder_tokens import folder_tokens, ids_of
from .source import DecoderSizes, EncoderPart, LanguageSettings, LanguageSource, read_json

if TYPE_CHECKING:
    from pelton.network import Network


def encoder_decoder_model(folder: Path, settings: LanguageSettings) -> LanguageSource:
    """Returns the model of a folder. Raises ModelError for files that are missing or damaged, and for settings that are
    not known."""
    family, files = pair_of(settings), weight_files(folder)
    a, encoder = family.decoder.architecture, family.encoder.architecture
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}

    def ids(name: str) -> tuple[int, ...]:
        return ids_of(generation.get(name)) or ids_of(settings.values.get(name))

    start, eos, bos = (ids(name) for name in ("decoder_start_token_id", "eos_token_id", "bos_token_id"))
    if len(start) != 1 or not 0 <= start[0] < a.vocabulary:
        raise ModelError(
            f"{settings.path}: decoder_start_token_id must be a token from 0 to {a.vocabulary - 1}, got"
            f" {start[0] if start else None!r}"
        )
    description = a.description()
    part = EncoderPart(
        network=lambda sizes: _encoder(folder, files, family, sizes),
        start=start[0],
        usual=family.usual,
        end=eos[0] if eos and not encoder.mels else None,
        speech=speech_rules(folder, settings, a.vocabulary) if encoder.mels else None,
        rows=a.sources if a.padded else 0,
    )
    return LanguageSource(
        "transformers",
        (*files, settings.path),
        description,
        lambda: folder_tokens(folder, bos[0] if bos else None, eos),
        lambda sizes: _decoder(folder, files, family, sizes),
        encoder=part,
    )


def _decoder(
    folder: Path, files: tuple[Path, ...], family: EncoderDecoderFamily, sizes: DecoderSizes
) -> tuple[Network, DecoderPorts, list[str]]:
    from .decoder_network import decoder_network  # the compiler's, which later starts do not import
    from .weights import DecoderWeights

    tensors, decoder = FolderTensors(folder, files, family.tables[0]), family.decoder
    places = _tables(tensors, family, dict(decoder.places))
    head = places["head"].name
    if family.tied:
        del places["head"]
    net, ports = decoder_network(decoder.architecture, DecoderWeights(tensors, places), sizes)
    crosses = tuple(places[part].name.partition("{}")[2] for part in ("cross_k", "cross_v"))
    others = (_side(family, "encoder"), f"{head}.", *family.harmless)
    unused = [n for n in tensors.unused() if not n.startswith(others) and not n.rpartition(".")[0].endswith(crosses)]
    _check(folder, unused, family)
    return net, ports, []


def _encoder(folder: Path, files: tuple[Path, ...], family: EncoderDecoderFamily, sizes: DecoderSizes) -> Network:
    from .source_network import source_network

    tensors = FolderTensors(folder, files, family.tables[0])
    places = _tables(tensors, family, dict(family.encoder.places))
    net = source_network(family, tensors, places, sizes)
    own = _side(family, "encoder")
    unused = [n for n in tensors.unused() if n.startswith(own) and not n.startswith(family.harmless)]
    _check(folder, unused, family)
    return net


def _tables(
    tensors: FolderTensors, family: EncoderDecoderFamily, places: dict[str, TensorPlace]
) -> dict[str, TensorPlace]:
    """Returns places with that name of the table of tokens which the file has."""
    name = next((t for t in family.tables if f"{t}.weight" in tensors), family.tables[0])
    return {**places, "embedding": TensorPlace(name)} if "embedding" in places else places


def _side(family: EncoderDecoderFamily, side: str) -> str:
    """Returns the begin of names of tensors of the encoder or the decoder."""
    name = getattr(family, side).places["norm"].name
    return name.rpartition(".")[0] + "."


def _check(folder: Path, unused: list[str], family: EncoderDecoderFamily) -> None:
    if unused:
        kind = family.decoder.architecture.family
        raise ModelError(f"{folder}: tensor {unused[0]!r} has no place in a model of type {kind!r}")
