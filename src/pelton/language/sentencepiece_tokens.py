"""Tokens of SentencePiece models, by the package sentencepiece: folders that have no tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from pelton.errors import ModelError, Needs

from .source import LanguageSettings, read_json

FILES = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model")
# appended to a ModelProto, whose fields they override: normalizer_spec.add_dummy_prefix = false
NO_PREFIX = b"\x1a\x02\x18\x00"
EXACT = NO_PREFIX + b"\x1a\x02\x20\x00"  # and remove_extra_whitespaces = false
SPACE = "\u2581"
# classes of transformers → whether texts begin with <s>, and end with </s>, unless the settings say otherwise
FRAMES = {
    "LlamaTokenizer": (True, False),
    "CodeLlamaTokenizer": (True, False),
    "GemmaTokenizer": (True, False),
    "T5Tokenizer": (False, True),
    "XLMRobertaTokenizer": (True, True),
}
FAIRSEQ = "XLMRobertaTokenizer"  # ids are those of fairseq
FAIRSEQ_FIRST = ("<s>", "<pad>", "</s>", "<unk>")


@dataclass(frozen=True)
class ExtraToken:
    """A token beside the model's pieces, found in texts as it is. special: no text. left, right: takes spaces there."""

    id: int
    text: str
    special: bool = True
    left: bool = False
    right: bool = False


class SentencePieceCoder:
    """A SentencePiece model.

    data: the file. extra: tokens that texts are cut at first. begin, end: ids around a text. spaces: also parts behind
    such a token begin with a space. fairseq: ids of pieces are one higher, behind <s>, <pad>, </s>, <unk>.
    """

    def __init__(
        self,
        data: bytes,
        extra: Sequence[ExtraToken],
        begin: Sequence[int] = (),
        end: Sequence[int] = (),
        spaces: bool = True,
        fairseq: bool = False,
    ):
        from sentencepiece import SentencePieceProcessor

        self.first = SentencePieceProcessor(model_proto=data)
        self.later = self.first if spaces else SentencePieceProcessor(model_proto=data + NO_PREFIX)
        self.exact = SentencePieceProcessor(model_proto=data + EXACT)  # decodes texts with all of their spaces
        pieces = self.first.encode("a", out_type=str)
        self.prefix = bool(pieces) and pieces[0].startswith(SPACE)
        self.spaces = spaces
        self.fairseq, self.begin, self.end = fairseq, list(begin), list(end)
        self.extra = {e.id: e for e in extra}
        self.ids = {e.text: e.id for e in extra}
        self.count = self.first.get_piece_size() + int(fairseq)
        self._all, self._plain = _cuts(extra), _cuts([e for e in extra if not e.special])

    def encode(self, text: str, special: bool, literal: bool) -> list[int]:
        ids = self.encode_parts([(text, literal)])
        return [*self.begin, *ids, *self.end] if special else ids

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        cut = [piece for text, literal in parts for piece in self._cut(text, literal)]
        ids, first = list[int](), True
        for kind, run in groupby(cut, type):
            if kind is int:
                ids += map(int, run)
            else:  # texts of several parts are one, as only its begin has a space of the model's own
                ids += [self._id(p) for p in (self.first if first else self.later).encode("".join(map(str, run)))]
            first = False
        return ids

    def _cut(self, text: str, literal: bool) -> list[str | int]:
        """Returns the texts and the ids of tokens between them."""
        cuts = self._plain if literal else self._all
        pieces = cuts.split(text) if cuts else [text]
        ids = [self.ids[p] if p in self.ids else self.ids[p.strip()] for p in pieces[1::2]]
        return [piece for pair in zip_longest(pieces[::2], ids) for piece in pair if piece not in ("", None)]

    def decode(self, ids: Sequence[int], special: bool) -> str:
        kept = [i for i in ids if special or not self._special(i)]
        out, first = list[str](), True
        for extra, run in groupby(kept, lambda i: i in self.extra or not 0 <= i < self.count):
            if extra:
                out += [self.extra[i].text for i in run if i in self.extra]
            else:
                text = self.exact.decode([self._piece(i) for i in run])
                out.append(text[1:] if self.prefix and (first or self.spaces) and text.startswith(" ") else text)
                first = False
        return "".join(out)

    def id(self, token: str) -> int | None:
        if token in self.ids:
            return self.ids[token]
        piece = self.first.piece_to_id(token)
        return self._id(piece) if self.first.id_to_piece(piece) == token else None

    def token(self, id: int) -> str | None:
        if id in self.extra:
            return self.extra[id].text
        return self.first.id_to_piece(self._piece(id)) if 0 <= id < self.count else None

    def __len__(self) -> int:
        return max(self.count, *(i + 1 for i in self.extra), 0)

    def _special(self, id: int) -> bool:
        return id in self.extra and self.extra[id].special

    def _id(self, piece: int) -> int:
        """Returns the id of a piece."""
        if not self.fairseq:
            return piece
        return piece + 1 if piece != self.first.unk_id() else FAIRSEQ_FIRST.index("<unk>")

    def _piece(self, id: int) -> int:
        return id - 1 if self.fairseq else id


def _cuts(extra: Sequence[ExtraToken]) -> re.Pattern[str] | None:
    """Returns a pattern that finds tokens in a text, the longest at each place."""
    texts = sorted((e for e in extra if e.text), key=lambda e: -len(e.text))
    around = {True: r"\s*", False: ""}
    parts = [around[e.left] + re.escape(e.text) + around[e.right] for e in texts]
    return re.compile(f"({'|'.join(parts)})") if parts else None


def sentencepiece_file(folder: Path) -> Path | None:
    """Returns the SentencePiece model of a folder, None if it has none."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def sentencepiece_coder(path: Path, settings: Mapping[str, Any]) -> SentencePieceCoder:
    """Reads a SentencePiece model. settings: those of tokenizer_config.json.

    Raises ModelError for a damaged file, and for a class of tokenizers whose use of such models is not known.
    """
    with Needs("language models", ModelError, "language"):
        from sentencepiece import SentencePieceProcessor

    own = LanguageSettings(dict(settings), path.parent / "tokenizer_config.json")
    kind = own.text("tokenizer_class", "LlamaTokenizer").removesuffix("Fast")
    if kind not in FRAMES:
        raise ModelError(f"{own.path}: tokenizers of class {kind!r} are not supported, only {', '.join(FRAMES)}")
    try:
        data = path.read_bytes()
        model = SentencePieceProcessor(model_proto=data)
        pieces = {
            model.id_to_piece(i): i for i in range(model.get_piece_size()) if model.is_control(i) or model.is_unknown(i)
        }
    except (OSError, RuntimeError, ValueError) as e:
        raise ModelError(f"{path} cannot be read as a SentencePiece model: {e}") from None
    if not model.get_piece_size():
        raise ModelError(f"{path} cannot be read as a SentencePiece model: it has no pieces")
    fairseq = kind == FAIRSEQ
    if fairseq:
        pieces = {text: i for i, text in enumerate(FAIRSEQ_FIRST)} | {"<mask>": model.get_piece_size() + 1}
    extra = {i: ExtraToken(i, text, left=text == "<mask>") for text, i in pieces.items()}
    extra |= {e.id: e for e in _added(path.parent, own)}
    begins, ends = FRAMES[kind]
    begins, ends = own.flag("add_bos_token", begins), own.flag("add_eos_token", ends)
    ids = {e.text: e.id for e in extra.values()}
    front, back = (
        ids.get(_text(settings.get(n)) or default) for n, default in (("bos_token", "<s>"), ("eos_token", "</s>"))
    )
    return SentencePieceCoder(
        data,
        [*extra.values()],
        (front,) if begins and front is not None else (),
        (back,) if ends and back is not None else (),
        own.value("legacy") is not False,
        fairseq,
    )


def _added(folder: Path, settings: LanguageSettings) -> list[ExtraToken]:
    """Returns the tokens that the folder adds to the model's, those of tokenizer_config.json and added_tokens.json."""
    out = list[ExtraToken]()
    path = folder / "added_tokens.json"
    for text, id in (read_json(path) if path.is_file() else {}).items():
        if isinstance(id, int) and not isinstance(id, bool) and id >= 0:
            out.append(ExtraToken(id, text))
    added = settings.value("added_tokens_decoder")
    for key, token in added.items() if isinstance(added, dict) else ():
        if not (
            key.isdecimal() and len(key) < 10 and isinstance(token, dict) and isinstance(token.get("content"), str)
        ):
            raise ModelError(f"{settings.path}: added_tokens_decoder has {key!r}, expected a number and its token")
        flags = (token.get(name) is True for name in ("special", "lstrip", "rstrip"))
        out.append(ExtraToken(int(key), token["content"], *flags))
    return out


def _text(value: Any) -> str | None:
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None
