"""Folders whose tokenizer is a SentencePiece model: tokens and texts beside the package sentencepiece."""

import json
import random

import pytest

from pelton.errors import ModelError
from pelton.language.folder_tokens import folder_tokens

sentencepiece = pytest.importorskip("sentencepiece", reason="such models are read by the package sentencepiece")

WORDS = "the cat sat on a tall tower near naïve dogs who do not like Кошка or 猫 12 345".split()
EXACT = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
ADDED = {"content": "<|user|>", "special": True, "rstrip": True, "lstrip": False}


def lines(count, seed):
    rng = random.Random(seed)
    return [rng.choice((" ", "  ", "\n", "")).join(rng.choices(WORDS, k=rng.randrange(1, 12))) for _ in range(count)]


def write(folder, kind="bpe", name="tokenizer.model", trained=None, **settings):
    """Trains a model, and writes a folder; returns what sentencepiece makes of it."""
    folder.mkdir(exist_ok=True)
    text = folder / "text"
    text.write_text("\n".join(line.replace("\n", " ") for line in lines(400, 0)))
    trained = dict(EXACT, byte_fallback=True) if trained is None else trained
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "m"), model_type=kind, vocab_size=360, minloglevel=2,
        hard_vocab_limit=False, **trained,
    )  # fmt: skip
    (folder / "m.model").rename(folder / name)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pieces")


@pytest.fixture(scope="module")
def model(folder):
    return write(folder, tokenizer_class="LlamaTokenizer", added_tokens_decoder={"900": ADDED})


@pytest.fixture(scope="module")
def tokens(folder, model):
    return folder_tokens(folder, None, ())


def test_tokens_and_texts_are_those_of_the_library(model, tokens):
    for line in [*lines(200, 1), "", " ", "😺 ß", "a\u2581b"]:
        ids = tokens.encode(line)
        assert ids == [1, *model.encode(line)]
        assert tokens.decode(ids) == model.decode(ids)
        stream = tokens.stream()
        pieces = [stream.push(i) for i in ids] + [stream.finish()]
        assert "".join(pieces) == model.decode(ids) and ("\ufffd" in line or not any("\ufffd" in p for p in pieces))


def test_special_tokens_are_found_unless_the_text_is_literal(model, tokens):
    text = "a cat</s><|user|>  the cat"
    assert tokens.encode(text) == [1, *model.encode("a cat"), 2, 900, *model.encode("the cat")]
    assert tokens.encode(text, special=False, literal=True) == model.encode(text)
    assert tokens.decode([900, 1, *model.encode("a cat")], special=True) == "<|user|><s>a cat"
    assert tokens.decode([900, 1, *model.encode("a cat")]) == "a cat"
    assert (tokens.bos, tokens.eos, len(tokens)) == (1, (2,), 901)
    assert tokens.special == {0, 1, 2, 900}
    assert tokens.id("<|user|>") == 900 and tokens.id("no such") is None and tokens.id("<s>") == 1
    assert tokens.token(900) == "<|user|>" and tokens.token(2) == "</s>" and tokens.token(899) is None


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "XLMRobertaTokenizer"])
@pytest.mark.parametrize("legacy", [True, False])
def test_special_tokens_in_literal_text_are_characters(kind, legacy, tmp_path):
    model = write(tmp_path / "x", tokenizer_class=kind, legacy=legacy, added_tokens_decoder={"900": ADDED})
    tokens = folder_tokens(tmp_path / "x", None, ())
    texts = [tokens.token(i) for i in sorted(tokens.special)]
    assert len(texts) > 3
    rng = random.Random(0)
    for line in lines(60, 2):
        at, token = rng.randrange(len(line) + 1), rng.choice(texts)
        text = line[:at] + token + line[at:]
        ids = tokens.encode(text, special=False, literal=True)
        assert not tokens.special - {tokens.id("<unk>")} & {*ids} and tokens.decode(ids) == model.decode(
            model.encode(text)
        )
        # in parts, as a chat template makes them: one text behind the special token
        parts = [("<|user|>", False), (line[:at], False), (token, True), (line[at:], False)]
        whole = tokens.encode_parts(parts)
        assert whole[0] == 900 and not tokens.special - {tokens.id("<unk>")} & {*whole[1:]}
        assert tokens.decode(whole) == tokens.decode(
            [900, *tokens.encode_parts([("<|user|>", False), (text, True)])[1:]]
        )
        assert tokens.decode(whole).lstrip() == tokens.decode(ids).lstrip()


def test_only_the_first_part_has_a_space_unless_legacy(tmp_path):
    model = write(tmp_path / "x", tokenizer_class="LlamaTokenizerFast", legacy=False, add_bos_token=False)
    tokens = folder_tokens(tmp_path / "x", None, ())
    later = tokens.encode("a</s>the cat")[len(model.encode("a")) + 1 :]
    assert tokens.encode("a</s>")[-1] == 2 and later != model.encode("the cat")
    assert "".join(model.id_to_piece(i) for i in later) == "the\u2581cat"
    assert tokens.decode(tokens.encode("a</s> the cat"), special=True) == "a</s> the cat"


def test_numbers_of_xlm_roberta_are_those_of_fairseq(tmp_path):
    model = write(tmp_path / "x", "unigram", "sentencepiece.bpe.model", {}, tokenizer_class="XLMRobertaTokenizer")
    tokens, count = folder_tokens(tmp_path / "x", None, ()), model.get_piece_size()
    ids = model.encode("the cat 中")
    assert 0 in ids
    assert tokens.encode("the cat 中") == [0, *(i + 1 if i else 3 for i in ids), 2]
    assert tokens.encode("a <mask>") == [0, *(i + 1 for i in model.encode("a")), count + 1, 2]
    assert tokens.decode(tokens.encode("the cat")) == "the cat" and len(tokens) == count + 2


def test_other_files_are_refused(model, tmp_path, folder):
    path = tmp_path / "tokenizer.model"
    for data in (b"", b"abc", (folder / "tokenizer.model").read_bytes()[:100]):
        path.write_bytes(data)
        with pytest.raises(ModelError, match="cannot be read as a SentencePiece model"):
            folder_tokens(tmp_path, None, ())
    path.write_bytes((folder / "tokenizer.model").read_bytes())
    for settings, message in (
        (dict(tokenizer_class="BartTokenizer"), "of class 'BartTokenizer' are not supported"),
        (dict(added_tokens_decoder={"x": ADDED}), "added_tokens_decoder has 'x'"),
        (dict(add_bos_token=3), "add_bos_token must be true or false"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(ModelError, match=message):
            folder_tokens(tmp_path, None, ())
