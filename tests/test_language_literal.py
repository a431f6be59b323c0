"""Special tokens in text of strangers, by the package tokenizers: characters, without spaces of the tokenizer's own."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")

from pelton.language.tokens import LibraryCoder  # noqa: E402

ENDS = ("<s>", "</s>")


def coder(kind: str, *special: str) -> LibraryCoder:
    """A small tokenizer that begins texts with a space: the first one, all of them, or by a normalizer (Llama 2)."""
    tokens = ["<unk>", *sorted({*"▁abcdefghijklmnopqrstuvwxyz</>[]INST!"}), "▁a", "▁b", "he", "ll"]
    merges = [("▁", "a"), ("▁", "b"), ("h", "e"), ("l", "l")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>"))
    if kind == "normalizer":
        space = tokenizers.normalizers.Replace(" ", "▁")
        made.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("▁"), space])
    else:
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=kind)
    made.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in special])
    return LibraryCoder(made)


@pytest.mark.parametrize("kind", ["first", "always", "normalizer"])
def test_literal_special_tokens_are_part_of_the_text_around_them(kind):
    parts = [
        ("<s>[INST] hello a", False),
        ("</s>", True),
        ("b and", False),
        ("</s>", True),
        (" he [/INST]<s> a", False),
    ]
    both, one = coder(kind, *ENDS), coder(kind, "<s>")
    whole = "".join(text for text, _ in parts)
    assert both.encode_parts(parts) == one.encode(whole, False, False), "those of a tokenizer that lacks the token"
    assert both.encode_parts([(whole, False)]) == both.encode(whole, False, False) != both.encode_parts(parts)


def test_a_special_token_is_none_across_the_edge_of_literal_text():
    both = coder("first", *ENDS)
    parts = [("hello <", False), ("/s", True), ("> a", False)]
    assert both.encode_parts(parts) == coder("first").encode("hello </s> a", False, False)


class SlowTokenizer:
    """Looks at what is special some time after it was called."""

    encode_special_tokens = False

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        time.sleep(0.002)
        return SimpleNamespace(ids=[self.encode_special_tokens])


def test_threads_do_not_change_what_is_special_for_others():
    slow = LibraryCoder(SlowTokenizer())
    with ThreadPoolExecutor(4) as pool:
        kinds = [bool(i % 2) for i in range(80)]
        assert list(pool.map(lambda literal: slow.encode("", False, literal), kinds)) == [[kind] for kind in kinds]
