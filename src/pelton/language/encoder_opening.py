"""Opens a sentence encoder: reads its folder, builds its engine or takes that of an earlier start."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pelton.errors import InputError, ModelError, Needs
from pelton.logs import Logger
from pelton.options import Options
from pelton.runtime import Engine

from .description import Description, described
from .encoder_architecture import EncoderArchitecture, EncoderFamily
from .families import ENCODERS, encoder_of, family_of
from .folder_tensors import FolderTensors, weight_files
from .folder_tokens import folder_tokens
from .huggingface import CONFIG
from .kept import kept_engine
from .pooling import MODULES, Pooling, pooling_of
from .sentence import TEXTS, SentenceEncoder, TextRules
from .source import LanguageSettings, read_json

log = Logger("pelton.language")

CONTEXT = 8192  # tokens of a text, unless the caller or the model says less
USUAL = 64  # tokens that engines are tuned for
UNBOUND = 1 << 30  # tokenizers have larger numbers where nothing bounds texts


@dataclass(frozen=True)
class EncoderSource:
    """A sentence encoder behind a door. kind: of the door. files: all that the network depends on."""

    kind: str
    files: tuple[Path, ...]
    folder: Path
    family: EncoderFamily
    pooling: Pooling


def is_encoder(path: Path) -> bool:
    """True for a folder of a sentence encoder: one with modules, or of a family that makes no text."""
    if (path / MODULES).is_file():
        return True
    config = path / CONFIG
    return (
        config.is_file()
        and not (path / "genai_config.json").exists()
        and read_json(config).get("model_type") in ENCODERS
    )


def open_encoder(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    context: int | None = None,
    level: int = 0,
    precision: str = "fp32",
    cache_folder: str | Path | None = None,
) -> SentenceEncoder:
    """Opens a sentence encoder.

    path: a folder as sentence-transformers writes it, with modules.json, or of transformers with an encoder, whose
    embeddings are then the mean of its rows. context: the most tokens of a text, default: those of the model, at most
    8,192. Others: as for `pelton.language.open`.

    Raises ModelError for a model that is damaged or not supported, naming the part, InputError for options that it
    cannot have, and BuildError if a package is missing.
    """
    source = encoder_source(Path(path))
    rules, most = _rules(Path(path), source)
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or not 1 <= context <= most):
        raise InputError(f"context is a number of tokens from 1 to {most}, the model's own, got {context!r}")
    context = context or min(most, CONTEXT)
    if precision not in ("fp32", "fp16"):
        raise InputError(f"precision is 'fp32' or 'fp16' for sentence encoders, got {precision!r}")
    options = Options(level=level, precision=precision, threads=threads, cache_dir=cache_folder)
    sizes = {"context": context, "usual": min(USUAL, context)}
    engine, record = kept_engine(source, sizes, options, lambda: _built(source, sizes, options))
    description = described({**record["description"], "digest": record["digest"]})
    tokens = folder_tokens(source.folder, None, ())
    return SentenceEncoder(engine, tokens, description, rules, threads)


def encoder_source(path: Path) -> EncoderSource:
    """Returns the encoder of a folder. Raises ModelError."""
    pooling = pooling_of(path)
    if pooling is None:
        log.info("%s has no %s: embeddings are the mean of its rows", path, MODULES)
        pooling = Pooling(("mean",), (), False, path, ())
    folder = pooling.folder
    settings = LanguageSettings(read_json(folder / CONFIG), folder / CONFIG)
    if settings.text("model_type") in ENCODERS:
        family = encoder_of(settings)
    else:
        decoder = family_of(settings)
        a = EncoderArchitecture(**vars(decoder.architecture), causal=True)
        family = EncoderFamily(a, decoder.places, ("lm_head.",))
    files = (*weight_files(folder), folder / CONFIG, *pooling.files)
    return EncoderSource("sentence encoder", files, folder, family, pooling)


def _rules(path: Path, source: EncoderSource) -> tuple[TextRules, int]:
    """Returns what happens to texts, and the most tokens that the model takes."""
    most = source.family.architecture.context
    lower, config = False, source.folder / "sentence_bert_config.json"
    if config.is_file():
        settings = LanguageSettings(read_json(config), config)
        lower = settings.flag("do_lower_case")
        limit = settings.value("max_seq_length")
        most = most if limit is None else min(most, settings.whole("max_seq_length"))
    config = source.folder / "tokenizer_config.json"
    if config.is_file():
        limit = read_json(config).get("model_max_length")
        most = min(most, limit) if isinstance(limit, int) and 1 <= limit < UNBOUND else most
    prompts, prompt, config = dict[str, str](), "", path / "config_sentence_transformers.json"
    if config.is_file():
        values = read_json(config)
        found = values.get("prompts") or {}
        prompts = {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
        prompt = values.get("default_prompt_name") or ""
        if prompt not in ("", *prompts):
            raise ModelError(f"{config}: default_prompt_name {prompt!r} is none of its prompts")
    return TextRules(lower, source.pooling.normalize, prompts, prompt), most


def _built(source: EncoderSource, sizes: dict[str, int], options: Options) -> tuple[Engine, dict[str, Any]]:
    with Needs("building the engine of a language model"):
        from pelton.builder.build import build  # the compiler, which later starts do not import

    from .encoder_network import EncoderSizes, encoder_network
    from .weights import DecoderWeights

    family = source.family
    tensors = FolderTensors(source.folder, weight_files(source.folder), family.places["embedding"].name)
    net = encoder_network(
        family.architecture, DecoderWeights(tensors, family.places), source.pooling, EncoderSizes(**sizes)
    )
    unused = [name for name in tensors.unused() if not name.startswith(family.harmless)]
    if unused:
        raise ModelError(f"{source.folder}: tensor {unused[0]!r} has no place in a model of type {net.name!r}")
    tokens = f"1..{sizes['usual']}..{sizes['context']}"
    profiles = {"one": {"batch": 1, "tokens": tokens}, "many": {"batch": f"2..32..{TEXTS}", "tokens": tokens}}
    engine = build(net, options=options.but(profiles=profiles if sizes["context"] > 1 else None))
    a = family.architecture
    description = Description(
        family=a.family,
        layers=len(a.layers),
        kv_heads=a.kv_heads,
        head_size=a.head_size,
        context=sizes["context"],
        vocabulary=a.vocabulary,
        weight_bytes=sum(int(b.size) for b in engine.parts[0].plain.buffers if b.kind == "constant"),
    )
    return engine, {"description": asdict(description)}
