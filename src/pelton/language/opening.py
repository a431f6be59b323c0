"""Opens a language model: finds its kind, builds its engine or takes that of an earlier start."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pelton.errors import InputError, ModelAbsent, ModelError, Needs
from pelton.logs import Logger
from pelton.options import Options
from pelton.runtime import Engine
from pelton.system.collector import paused
from pelton.system.memory import populate

from .decoder import Decoder
from .description import DecoderPorts, described
from .few import FEW, few_tokens
from .genai import genai_model
from .gguf import gguf_model, kept_gguf_model
from .huggingface import huggingface_model
from .kept import keep_head, kept_engine, kept_head
from .source import DecoderSizes, EncoderPart, LanguageSource
from .source_encoder import SourceEncoder

log = Logger("pelton.language")

CONTEXT = 4096  # tokens of a sequence, unless the caller or the model says less
PROMPT = 128  # tokens that engines are tuned for
PRECISIONS = ("fp32", "fp16", "int8")
CACHES = {None: None, "fp32": None, "fp16": "fp16", "int8": "int8"}


def open(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    cache: str | None = None,
    context: int | None = None,
    level: int = 0,
    precision: str = "fp32",
    cache_folder: str | Path | None = None,
) -> Decoder:
    """Opens a language model.

    path: a GGUF file, or a folder of onnxruntime-genai (with genai_config.json) or of transformers (with config.json
    and safetensors); models of the latter may have an encoder, such as T5 and Whisper. threads: default, one for each
    CPU. cache: type of the caches of keys and values, "fp32" (default), "fp16" or "int8". context: the most tokens of a
    sequence, and of what an encoder reads; default: those of the model, at most 4,096. level, precision: as for
    `pelton.build`; precision "fp16" rounds rows in front of weights of few bits to 16 bits, "int8" to 8 bits, each 32
    terms by a scale of their own, as llama.cpp does (GGUF files alone). cache_folder: of engines,
    default: that of `pelton.build` (PELTON_CACHE_DIR).

    The first start builds an engine and keeps it in the cache folder, under the hash of the model's files and all
    options. Raises ModelError for a model that is damaged or not supported, naming the part, InputError for options
    that it cannot have, and BuildError if a package is missing.
    """
    if cache not in CACHES:
        raise InputError(f"cache is 'fp32', 'fp16' or 'int8', got {cache!r}")
    with paused():
        head = kept_head(Path(path), Options(cache_dir=cache_folder)) if Path(path).is_file() else None
        source = source_of(Path(path)) if head is None else kept_gguf_model(Path(path), head)
    most = source.description.context
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or not 2 <= context <= most):
        raise InputError(f"context is a number of tokens from 2 to {most}, the model's own, got {context!r}")
    if precision not in PRECISIONS:
        raise InputError(f"precision is {', '.join(map(repr, PRECISIONS))}, got {precision!r}")
    if precision == "int8" and source.kind != "gguf":
        raise InputError(f"precision 'int8' rounds rows in front of weights of few bits in GGUF files; {path} is none")
    part = source.encoder
    context = context or (min(most, CONTEXT) if part is None else part.usual)
    sources = 0 if part is None else part.rows or context
    sizes = DecoderSizes(context, min(PROMPT, context), sources, precision == "int8")
    kept = "fp32" if precision == "int8" else precision
    options = Options(level=level, precision=kept, threads=threads, cache_dir=cache_folder, kv_cache=CACHES[cache])
    engine, record = kept_engine(source, asdict(sizes), options, lambda: _built(source, sizes, options))
    description = described({**record["description"], "digest": record["digest"]})
    if description.notes:
        log.info("%s: %s", path, "; ".join(description.notes))
    ports = _ports(record["ports"])
    encoder = None if part is None else _encoder(source, part, ports, sizes, options)
    populate(engine.constants)  # by a thread, while this one reads the tokens
    with paused():
        tokens = source.tokens()
    if source.head is not None:  # behind the tokens: those of a damaged file are not recorded
        keep_head(Path(path), options, source.head())
    return Decoder(engine, tokens, description, ports, threads, encoder)


def source_of(path: Path) -> LanguageSource:
    """Returns the model at a path. Raises ModelError if it is none that a door knows."""
    if not path.exists():
        raise ModelAbsent(f"there is no language model {path}", path)
    if path.is_dir() and (path / "genai_config.json").is_file():
        return genai_model(path)
    if path.is_dir() and (path / "config.json").is_file():
        return huggingface_model(path)
    if path.is_file():
        return gguf_model(path)
    raise ModelError(
        f"{path} is no language model: expected a GGUF file, or a folder with genai_config.json or config.json"
    )


def _encoder(
    source: LanguageSource, part: EncoderPart, ports: DecoderPorts, sizes: DecoderSizes, options: Options
) -> SourceEncoder:
    """Returns the encoder beside a decoder, whose engine is another one."""
    plain = options.but(kv_cache=None)  # an encoder extends no caches

    def built() -> tuple[Engine, dict[str, Any]]:
        with Needs("building the engine of a language model"):
            from pelton.builder.build import build

        return build(part.network(sizes), options=plain), {}

    own = replace(source, kind=f"{source.kind}, encoder")
    engine, _ = kept_engine(own, asdict(sizes), plain, built)
    vocabulary = source.description.vocabulary
    return SourceEncoder(engine, ports, sizes.sources, vocabulary, part.start, part.end, part.speech, options.threads)


def _built(source: LanguageSource, sizes: DecoderSizes, options: Options) -> tuple[Engine, dict[str, Any]]:
    with Needs("building the engine of a language model"):
        from pelton.builder.build import build  # the compiler, which later starts do not import

    net, ports, notes = source.network(sizes)
    token = {name: 1 for name in (ports.tokens, ports.kept) if name}
    prompt = {ports.tokens: f"1..{sizes.prompt}..{sizes.context}"}
    few = {name: f"2..4..{FEW}" for name in (ports.tokens, ports.kept) if name}
    profiles = {"token": token, "few": few, "prompt": prompt}
    if source.encoder is not None:
        del profiles["few"]
    engine = build(net, options=options.but(profiles=profiles))
    description = replace(
        source.description,
        context=sizes.context,
        weight_bytes=sum(int(b.size) for b in engine.parts[0].plain.buffers if b.kind == "constant"),
        token_bytes=_token_bytes(engine, ports),
        notes=tuple(notes),
    )
    if source.encoder is None:
        description = replace(description, few=few_tokens(Decoder(engine, source.tokens(), description, ports)))
    return engine, {"description": asdict(description), "ports": asdict(ports)}


def _token_bytes(engine: Engine, ports: DecoderPorts) -> int:
    """Returns the bytes of caches that a token takes: the difference that one more position makes."""
    if not ports.capacity:
        return 0
    batch = {ports.batch: 1} if ports.batch else {}
    one, two = (engine.state(None, **batch, **{ports.capacity: n}) for n in (1, 2))
    return sum(a.nbytes for a in two.arrays.values()) - sum(a.nbytes for a in one.arrays.values())


def _ports(record: dict[str, Any]) -> DecoderPorts:
    return DecoderPorts(**{**record, **{name: tuple(record[name]) for name in ("caches", "crosses")}})
