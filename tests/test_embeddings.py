"""Sentence encoders from folders: embeddings beside float64, batches, cuts, and what they refuse."""

import json
import logging
import math

import numpy as np
import pytest

import language_files as files
from pelton.errors import InputError, ModelAbsent, ModelError
from pelton.language.distances import buckets

pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")

import pelton  # noqa: E402
from pelton.language import open_encoder  # noqa: E402

WIDTH, HIDDEN, HEADS, LAYERS, MOST = 32, 48, 4, 2, 40
TEXTS = ["a cat", "", "the tall tower there", "x", "to be, or not to be", "naïve 😺", "tt"]
CONFIG = dict(model_type="bert", hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS)
CONFIG |= dict(num_attention_heads=HEADS, vocab_size=files.VOCABULARY, max_position_embeddings=MOST)
CONFIG |= dict(hidden_act="gelu", layer_norm_eps=1e-12, type_vocab_size=2, pad_token_id=0)
MODULES = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]


def weights(seed=0):
    rng = np.random.default_rng(seed)

    def linear(name, rows, columns):
        bias = rng.standard_normal(rows).astype(np.float32) * 0.3
        return {f"{name}.weight": (rng.standard_normal((rows, columns)) / columns**0.5), f"{name}.bias": bias}

    def norm(name):
        return {f"{name}.weight": rng.uniform(0.5, 1.5, WIDTH), f"{name}.bias": rng.standard_normal(WIDTH) * 0.3}

    tables = dict(word_embeddings=files.VOCABULARY, position_embeddings=MOST, token_type_embeddings=2)
    w = {f"embeddings.{name}.weight": rng.standard_normal((rows, WIDTH)) for name, rows in tables.items()}
    w |= norm("embeddings.LayerNorm") | linear("pooler.dense", WIDTH, WIDTH)
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            w |= linear(f"{layer}attention.self.{part}", WIDTH, WIDTH)
        w |= linear(f"{layer}attention.output.dense", WIDTH, WIDTH) | norm(f"{layer}attention.output.LayerNorm")
        w |= linear(f"{layer}intermediate.dense", HIDDEN, WIDTH) | linear(f"{layer}output.dense", WIDTH, HIDDEN)
        w |= norm(f"{layer}output.LayerNorm")
    return {name: a.astype(np.float32) for name, a in w.items()}


def rows_of(w, ids):
    """The rows of a BERT's tokens in float64, of one text."""
    w = {name: a.astype(np.float64) for name, a in w.items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, f"{layer}attention.self.{p}").reshape(len(ids), HEADS, -1) for p in ("query", "key", "value")
        )
        scores = np.einsum("qhd,khd->hqk", q, k) / (WIDTH // HEADS) ** 0.5
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", share, v).reshape(len(ids), WIDTH)
        x = norm(x + linear(y, f"{layer}attention.output.dense"), f"{layer}attention.output.LayerNorm")
        y = linear(x, f"{layer}intermediate.dense")
        x = norm(
            x + linear(y * (1 + np.vectorize(math.erf)(y / 2**0.5)) / 2, f"{layer}output.dense"),
            f"{layer}output.LayerNorm",
        )
    return x


def write(folder, modules=MODULES, pooling=("mean_tokens",), config=None, tensors=None, **others):
    """Writes a folder of sentence-transformers, whose tokenizer puts <s> in front of texts and </s> behind them."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (folder / "model.safetensors").write_bytes(files.safetensors(weights() if tensors is None else tensors))
    files.write_tokenizer(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    frame = [dict(SpecialToken=dict(id="<s>", type_id=0)), dict(Sequence=dict(id="A", type_id=0))]
    frame += [dict(SpecialToken=dict(id="</s>", type_id=0))]
    special = {t: dict(id=t, ids=[i], tokens=[t]) for i, t in enumerate(("<s>", "</s>"))}
    pair = [*frame, dict(Sequence=dict(id="B", type_id=0))]
    tokenizer["post_processor"] = dict(type="TemplateProcessing", single=frame, pair=pair, special_tokens=special)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if modules is not None:
        listed = [dict(path=path, type=f"sentence_transformers.models.{kind}") for kind, path in modules]
        (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {f"pooling_mode_{mode}": True for mode in pooling}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(dict(word_embedding_dimension=WIDTH, **flags)))
    for name, content in others.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("encoder"), config_sentence_transformers=dict(prompts=dict(query="ask: ")))


@pytest.fixture(scope="module")
def model(folder, kernel_cache):
    return pelton.LanguageModel(folder, threads=1, cache_folder=kernel_cache)


def wanted(model, texts, length=1, prompt=""):
    means = np.stack([rows_of(weights(), model.tokens.encode(prompt + t)).mean(0) for t in texts])
    return means / np.linalg.norm(means, axis=1, keepdims=True) if length else means


def close(got, want):
    assert got.dtype == np.float32 and got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_embeddings_are_those_of_float64(model, batch):
    close(model.embed(TEXTS, batch=batch), wanted(model, TEXTS))
    close(model.embed(TEXTS, batch=batch, normalize=False), wanted(model, TEXTS, 0))


def test_one_text_has_one_row_and_none_has_none(model):
    close(model.embed("a cat"), wanted(model, ["a cat"]))
    assert model.embed([]).shape == (0, WIDTH)
    close(model.embed(tuple(TEXTS), prompt="query"), wanted(model, TEXTS, prompt="ask: "))


def test_long_texts_are_cut_with_a_warning(model, caplog):
    with caplog.at_level(logging.WARNING, "pelton.language"):
        long = model.embed(["x" * 100, "x" * (MOST - 2), "x"])
    assert model.description.context == MOST
    assert caplog.messages == ["1 of 3 texts are longer than the 40 tokens of this model, and were cut"]
    assert np.array_equal(long[0], long[1]) and not np.array_equal(long[0], long[2])


def test_wrong_calls_are_refused(model):
    for texts in (3, b"abc", None, {"a": 1}, ["a", 3], [None]):
        with pytest.raises(InputError, match="embed expects a text or a list of texts"):
            model.embed(texts)
    for batch in (0, 257, True, 2.0):
        with pytest.raises(InputError, match="batch is a number of texts from 1 to 256"):
            model.embed("a", batch=batch)
    with pytest.raises(InputError, match="no prompt 'other'; it has 'query'"):
        model.embed("a", prompt="other")
    for ids in ([], [0] * (MOST + 1)):
        with pytest.raises(InputError, match="have 1 to 40 tokens"):
            model.model.embed_tokens([ids])
    with pytest.raises(InputError, match=f"tokens of this model are 0 to {files.VOCABULARY - 1}, got -1"):
        model.model.embed_tokens([[3, -1]])


def test_encoders_make_no_text_and_decoders_no_embeddings(model, folder, tmp_path, kernel_cache):
    with pytest.raises(InputError, match="'bert', makes embeddings and no text: call embed"):
        model.generate("a")
    with pytest.raises(ModelError, match="make embeddings and no text"):
        pelton.language.open(folder)
    model.close()
    files.write_folder(tmp_path, files.llama())
    with pelton.LanguageModel(tmp_path, threads=1, cache_folder=kernel_cache) as decoder:
        with pytest.raises(InputError, match="'llama', makes text and no embeddings"):
            decoder.embed("a")


def test_a_second_start_builds_nothing_and_pooling_counts(folder, tmp_path, kernel_cache, monkeypatch):
    pooled = write(tmp_path / "other", modules=MODULES[:2], pooling=("cls_token", "max_tokens"))
    both = open_encoder(pooled, threads=1, cache_folder=kernel_cache)
    rows = [rows_of(weights(), both.tokens.encode(t)) for t in TEXTS]
    close(both.embed(TEXTS), np.stack([np.concatenate([r[0], r.max(0)]) for r in rows]))
    plain = write(tmp_path / "plain", modules=None)  # without modules: the mean
    close(open_encoder(plain, threads=1, cache_folder=kernel_cache).embed(TEXTS), wanted(both, TEXTS, 0))
    monkeypatch.setattr("pelton.builder.build.build", None)
    assert open_encoder(folder, threads=1, cache_folder=kernel_cache).embed("a").shape == (1, WIDTH)


def test_texts_are_bounded_and_lowered(tmp_path, kernel_cache, caplog):
    path = write(tmp_path / "x", sentence_bert_config=dict(max_seq_length=12, do_lower_case=True))
    encoder = open_encoder(path, threads=1, cache_folder=kernel_cache)
    assert encoder.description.context == 12
    assert np.array_equal(encoder.embed("A Cat"), encoder.embed("a cat"))
    with pytest.raises(InputError, match="context is a number of tokens from 1 to 12"):
        open_encoder(path, context=13)


REFUSED = [
    (dict(modules=[("Transformer", ""), ("LSTM", "1_LSTM")]), ModelError, "the module 'LSTM' is not supported"),
    (
        dict(modules=[("Transformer", ""), ("Pooling", "../x")]),
        ModelError,
        "names '../x', which is no folder beside it",
    ),
    (dict(modules=[("Transformer", "")]), ModelError, "has no module Pooling"),
    (dict(modules=[]), ModelError, "must be a list of modules"),
    (dict(modules=[*MODULES, ("Dense", "3_Dense")]), ModelError, "behind Normalize is not supported"),
    (dict(modules=[*MODULES[:2], ("Dense", "3_Dense")]), ModelAbsent, "3_Dense has no config.json"),
    (dict(pooling=()), ModelError, "the pooling"),
    (dict(pooling=("attention_tokens",)), ModelError, "pooling_mode_attention_tokens"),
    (dict(config=dict(model_type="deberta")), ModelError, "of type 'deberta' are not supported"),
    (dict(config=dict(position_embedding_type="relative_key")), ModelError, "'relative_key' is not supported"),
    (dict(config=dict(num_attention_heads=5)), ModelError, "5 heads do not divide a hidden_size of 32"),
    (dict(config=dict(rotary=True)), ModelError, "'rotary' is not supported in models of type 'bert'"),
    (dict(config=dict(is_decoder=True)), ModelError, "is_decoder is not supported in encoders"),
    (dict(config=dict(vocab_size=301)), ModelError, r"expected \[301, 32\]"),
    (dict(tensors={**weights(), "adapter.weight": np.zeros((2, 2))}), ModelError, "'.*adapter.weight' has no place"),
    (dict(tensors={k: v for k, v in weights().items() if "query" not in k}), ModelError, "has no tensor"),
    (dict(config_sentence_transformers=dict(default_prompt_name="q")), ModelError, "'q' is none of its prompts"),
]


@pytest.mark.parametrize("others, kind, message", REFUSED)
def test_other_folders_are_refused(others, kind, message, tmp_path, kernel_cache):
    with pytest.raises(kind, match=message):
        pelton.LanguageModel(write(tmp_path / "x", **others), threads=1, cache_folder=kernel_cache)


def test_weights_that_are_not_finite_are_an_error(tmp_path, kernel_cache):
    damaged = {**weights(), "embeddings.LayerNorm.bias": np.full(WIDTH, np.nan)}
    encoder = open_encoder(write(tmp_path / "x", tensors=damaged), threads=1, cache_folder=kernel_cache)
    with pytest.raises(ModelError, match="not finite; its file is damaged"):
        encoder.embed("a")


def test_buckets_are_those_of_t5():
    distance = np.array([-1000, -128, -20, -8, -7, -1, 0, 1, 7, 8, 20, 127, 128, 1000])
    assert buckets(distance, 32, 128).tolist() == [15, 15, 10, 8, 7, 1, 0, 17, 23, 24, 26, 31, 31, 31]
