"""Tokens of a folder as transformers writes it: tokenizer.json or a SentencePiece model,
tokenizer_config.json, chat_template.jinja."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pelton.errors import ModelAbsent, ModelError, Needs

from .sentencepiece_tokens import FILES, sentencepiece_coder, sentencepiece_file
from .source import read_json
from .tokens import Coder, LibraryCoder, Tokens

DEFAULTS = {"bos_token": "<s>", "eos_token": "</s>"}  # of SentencePiece models
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def folder_tokens(folder: Path, bos: int | None, eos: Iterable[int]) -> Tokens:
    """Reads the tokens of a folder. bos, eos: ids of other files; without them, those of the tokenizer count.

    Raises ModelError for files that are missing or damaged.
    """
    settings_path = folder / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.is_file() else {}
    pieces = sentencepiece_file(folder)
    coder: Coder
    if not (folder / "tokenizer.json").is_file() and pieces is not None:
        coder = sentencepiece_coder(pieces, settings)
        settings = {name: text for name, text in DEFAULTS.items() if coder.id(text) is not None} | settings
        special = frozenset(i for i, token in coder.extra.items() if token.special)
    else:
        coder, special = _library(folder / "tokenizer.json")
    names = {name: text for name in NAMED if (text := _token_text(settings.get(name))) is not None}
    begin, end = (coder.id(names[n]) if n in names else None for n in ("bos_token", "eos_token"))
    ends = tuple(dict.fromkeys(eos)) or (() if end is None else (end,))
    return Tokens(coder, begin if bos is None else bos, ends, special, chat_template(folder, settings), names)


def _library(path: Path) -> tuple[Coder, frozenset[int]]:
    """Reads a tokenizer.json; returns its tokenizer, and its special tokens."""
    with Needs("language models", ModelError, "language"):
        import tokenizers

    if not path.is_file():
        raise ModelAbsent(f"{path.parent} has no tokenizer.json, and none of {', '.join(FILES)}", path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as e:  # the library raises plain ones
        raise ModelError(f"{path} cannot be read as a tokenizer: {e}") from None
    special = frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return LibraryCoder(tokenizer), special


def chat_template(folder: Path, settings: dict[str, Any]) -> str:
    """Returns the chat template of a folder, the one named "default" of several; "" without one."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text()
        except (OSError, ValueError) as e:
            raise ModelError(f"{path} cannot be read: {e}") from None
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""


def _token_text(value: Any) -> str | None:
    """Returns the text of a token that a file gives as a text or an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def ids_of(value: Any) -> tuple[int, ...]:
    """Returns ids that a file gives as one number, a list or nothing."""
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))
