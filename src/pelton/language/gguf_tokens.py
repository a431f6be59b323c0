"""Tokens of GGUF files: a tokenizer of the package tokenizers, made from the file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.errors import ModelError, Needs

from .gguf_file import GgufFile
from .tokens import LibraryCoder, Tokens

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # kinds of tokens
SPACE = "\u2581"
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
REST_OF_CODE = REST.replace(r"\n]*|", r"\n/]*|")
TEKKEN = f"{LEAD}{UPPER}*{LOWER}+|{LEAD}{UPPER}+{LOWER}*" + r"|\p{N}" + REST_OF_CODE
GPT4O = f"{LEAD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTIONS}?" + r"|\p{N}{1,3}" + REST_OF_CODE
PLAIN = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
# names that files have for a way to cut a text into words → its patterns, one after the other
WORDS: dict[str, tuple[str, ...]] = {
    "default": PLAIN,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"), (LLAMA3,)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"), (QWEN2,)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "modern-bert", "roberta-bpe"), (GPT2,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", GPT2)
    ),
    **dict.fromkeys(("gpt-4o", "llama4"), (GPT4O,)),
    "tekken": (TEKKEN,),
}
WHOLE_WORDS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
BEGIN = WHOLE_WORDS - {"tekken"}  # whose texts begin with a token unless the file says otherwise
ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"),
    *("<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>"),
)
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True)
class KeptMetadata:
    """The metadata of a file's tokens, which an earlier start read."""

    path: Path
    metadata: Mapping[str, Any]


class _Metadata:
    """The metadata of tokens, checked as it is read."""

    def __init__(self, file: GgufFile | KeptMetadata):
        self.path, self.values = file.path, file.metadata
        self.tokens: list[str] = self.texts("tokens")
        kinds = self.value("token_type", list, [NORMAL] * len(self.tokens))
        if len(kinds) != len(self.tokens):
            raise ModelError(f"{self.path}: there are {len(self.tokens)} tokens, and types of {len(kinds)}")
        self.kinds: list[int] = kinds
        # most of a vocabulary are normal ones
        self.others = [(i, text, k) for i, (text, k) in enumerate(zip(self.tokens, kinds)) if k != NORMAL]

    def value(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.values.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, kind) or kind is int and isinstance(value, bool):
            raise ModelError(f"{self.path}: tokenizer.ggml.{name} is missing or of another type than expected")
        return value

    def texts(self, name: str) -> list[str]:
        values = self.value(name, list)
        if {*map(type, values)} != {str}:
            raise ModelError(f"{self.path}: tokenizer.ggml.{name} must be a list of texts")
        return values

    def id(self, name: str) -> int | None:
        """Returns the id of a token that the file names; None if it names none."""
        id = self.values.get(f"tokenizer.ggml.{name}_token_id")
        if id is None:
            return None
        if not isinstance(id, int) or not 0 <= id < len(self.tokens):
            raise ModelError(f"{self.path}: tokenizer.ggml.{name}_token_id is {id!r}, no number of a token")
        return id


def gguf_tokens(file: GgufFile | KeptMetadata) -> Tokens:
    """Returns the tokens of a file. Raises ModelError for a tokenizer that is not known, naming it, and for a damaged
    one."""
    with Needs("language models", ModelError, "language"):
        import tokenizers

    m = _Metadata(file)
    kind = m.value("model", str)
    if kind not in KINDS:
        raise ModelError(f"{file.path}: tokenizers of type {kind!r} are not supported, only {', '.join(KINDS)}")
    try:
        tokenizer, begins = KINDS[kind](m)
        added = [
            tokenizers.AddedToken(text, special=k in (CONTROL, UNKNOWN), normalized=False)
            for _, text, k in m.others
            if k in (CONTROL, UNKNOWN, USER) and text
        ]
        tokenizer.add_tokens(added)
    except ModelError:
        raise
    except Exception as e:  # the library raises plain ones
        raise ModelError(f"{file.path}: its tokens cannot be read: {e}") from None
    bos, eos = m.id("bos"), m.id("eos")
    _frame(m, tokenizer, bos if m.value("add_bos_token", bool, begins) else None, eos)
    ends = {id for name in ("eos", "eot", "eom") if (id := m.id(name)) is not None}
    ends |= {i for i, text, k in m.others if k == CONTROL and text in ENDS}
    special = frozenset(i for i, _, k in m.others if k in (CONTROL, UNKNOWN))
    names = {name: m.tokens[id] for name, of in NAMED.items() if (id := m.id(of)) is not None}
    template = file.metadata.get("tokenizer.chat_template", "")
    coder = LibraryCoder(tokenizer)
    return Tokens(coder, bos, tuple(sorted(ends)), special, template if isinstance(template, str) else "", names)


def _frame(m: _Metadata, tokenizer: Any, bos: int | None, eos: int | None) -> None:
    """Makes the tokenizer add the tokens in front of texts and behind them."""
    from tokenizers.processors import Sequence, TemplateProcessing

    end = eos if m.value("add_eos_token", bool, False) else None
    around = {m.tokens[i]: i for i in (bos, end) if i is not None}
    if around:
        first, last = (f"{m.tokens[i]}:0" if i is not None else "" for i in (bos, end))
        single = " ".join(part for part in (first, "$A:0", last) if part)
        frame = TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=[*around.items()])
        tokenizer.post_processor = frame if tokenizer.post_processor is None else Sequence([frame])


def _byte_pairs(m: _Metadata) -> tuple[Any, bool]:
    """Makes a tokenizer of bytes, as that of GPT-2; returns it, and true if texts begin with a token by default."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = m.value("pre", str, "default")
    if words not in WORDS:
        raise ModelError(f"{m.path}: words of the kind {words!r} are not supported, only {', '.join(WORDS)}")
    vocabulary = dict(zip(m.tokens, range(len(m.tokens))))
    model = models.BPE(vocabulary, _pairs(m.value("merges", list)), ignore_merges=words in WHOLE_WORDS)
    tokenizer = Tokenizer(model)
    steps: list[Any] = [pre_tokenizers.Split(Regex(p), "isolated") for p in WORDS[words]]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, words in BEGIN


def _pairs(merges: list[str]) -> list[Any]:
    """Splits "left right" of each merge, all at once where none is damaged."""
    parts = " \n ".join(merges).split(" ")
    if len(parts) == max(3 * len(merges) - 1, 1) and {"\n", *parts[2::3]} == {"\n"}:
        return [*zip(parts[::3], parts[1::3])]
    return [tuple(text.split(" ", 1)) for text in merges]


def _pieces(m: _Metadata) -> tuple[Any, bool]:
    """Makes a tokenizer of pieces, as that of SentencePiece with byte-pair encoding: a pair joins where the result has
    the best score."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = m.value("scores", list)
    if len(scores) != len(m.tokens):
        raise ModelError(f"{m.path}: there are {len(m.tokens)} tokens, and scores of {len(scores)}")
    vocabulary = {text: i for i, text in enumerate(m.tokens)}
    usable = {t: s for t, s, k in zip(m.tokens, scores, m.kinds) if k in (NORMAL, USER, UNUSED)}
    pairs = [
        (score, vocabulary[text[:cut]], text[:cut], text[cut:])
        for text, score in usable.items()
        for cut in range(1, len(text))
        if text[:cut] in usable and text[cut:] in usable
    ]
    pairs.sort(key=lambda p: (-p[0], p[1]))
    unknown = m.id("unknown")
    model = models.BPE(
        vocabulary,
        [(left, right) for _, _, left, right in pairs],
        unk_token=m.tokens[unknown] if unknown is not None else None,
        fuse_unk=True,
        byte_fallback=BYTE in m.kinds,
    )
    tokenizer = Tokenizer(model)
    prefix = m.value("add_space_prefix", bool, True)
    front = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*front, normalizers.Replace(" ", SPACE)])
    back = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *back]
    )
    return tokenizer, True


KINDS = {"gpt2": _byte_pairs, "llama": _pieces}
