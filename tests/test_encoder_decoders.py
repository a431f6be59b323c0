"""Encoder–decoders of text: logits beside float64, answers, and what they refuse."""

import asyncio
import json

import encoder_decoder_files as made
import numpy as np
import pytest

from pelton.errors import InputError, ModelError

pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")

import pelton  # noqa: E402
from pelton.language import GenerationRequest  # noqa: E402

RNG = np.random.default_rng(7)
SOURCES = [[*RNG.integers(2, made.VOCABULARY, n - 1).tolist(), made.END] for n in (31, 2, 12)]
IDS = [0, *RNG.integers(2, made.VOCABULARY, 20).tolist()]
FORMS = {"relu, tied": (False, False), "gated, own head": (True, True)}


def close(logits, want):
    assert logits.shape == want.shape
    assert np.abs(logits - want).max() <= 1e-4 * np.abs(want).max()


@pytest.fixture(autouse=True)
def engines_of_tests(kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))


def folder_of(folder, gated=False, head=False, **settings):
    form = dict(feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not head)
    return made.write(folder, made.t5(gated, head), {**made.T5, **form, **settings})


@pytest.fixture(scope="module", params=[*FORMS])
def form(request):
    return FORMS[request.param]


@pytest.fixture(scope="module")
def reference(form):
    return made.Text(made.t5(*form), *form)


@pytest.fixture(scope="module")
def decoder(form, tmp_path_factory, kernel_cache):
    folder = folder_of(tmp_path_factory.mktemp("t5"), *form)
    return pelton.language.open(folder, threads=1, cache_folder=kernel_cache, context=48)


@pytest.fixture(scope="module")
def model(decoder):
    with pelton.LanguageModel(decoder, sequences=3) as model:
        yield model


def read(decoder, sequence, ids):
    decoder.encoder.read(decoder.encoder.text(ids), sequence.state)


def test_logits_are_those_of_float64(decoder, reference):
    for source in SOURCES:
        sequence, want = decoder.state(), reference.logits(source, IDS)
        read(decoder, sequence, source)
        close(sequence.extend(IDS[:4], all_rows=True), want[:4])
        other = sequence.fork()
        for i in range(4, len(IDS)):
            close(other.extend([IDS[i]]), want[i])
        sequence.rewind(0)
        close(sequence.extend(IDS, all_rows=True), want)


def test_sequences_of_a_batch_attend_to_their_own_sources(decoder, reference):
    batch, want = decoder.batch(3), [reference.logits(source, IDS) for source in SOURCES]
    for i in (0, 2):
        read(decoder, batch[i], SOURCES[i])
        batch[i].extend(IDS[:3])
    steps = batch.step({0: IDS[3], 2: IDS[3]})  # the second one has no source and rests
    for i in (0, 2):
        close(steps[i], want[i][3])
    read(decoder, batch[1], SOURCES[1])
    batch[1].extend(IDS[:4])
    steps = batch.step({i: IDS[4] for i in range(3)})
    for i in range(3):
        close(steps[i], want[i][4])
    batch[0].rewind(0)
    read(decoder, batch[0], SOURCES[1])  # shorter than the source before
    close(batch[0].extend(IDS[:2]), want[1][1])


def greedy(reference, source, count):
    ids = [0]
    while len(ids) <= count and ids[-1] != made.END:
        ids.append(int(reference.logits(source, ids)[-1].argmax()))
    return tuple(ids[1:])


def test_answers_are_those_of_float64_whatever_else_runs(model, reference):
    want = [greedy(reference, source, 20) for source in SOURCES]
    assert len({*want}) == 3
    requests = [GenerationRequest(tuple(source), 20, logprobs=1) for source in [*SOURCES, SOURCES[0], SOURCES[1]]]
    answers = [model.submit(r) for r in requests]
    assert [a.tokens for a in answers] == [*want, want[0], want[1]]
    assert answers[0].usage.prompt == 31 and answers[0].usage.completion == len(want[0])
    alone = model.submit(requests[0])
    assert alone.logprobs == answers[0].logprobs == answers[3].logprobs
    again = model.submit(requests[0])
    assert again.tokens == want[0] and again.usage.cached == 31  # the encoder did not run again


def test_texts_streams_seeds_and_stops(model):
    text = model.generate("Hello, 你好", max_tokens=30, ignore_eos=True)
    ids = model.submit("Hello, 你好", max_tokens=30, ignore_eos=True).tokens
    assert text == model.tokens.decode(ids) and len(ids) == 30
    assert "".join(model.generate("Hello, 你好", max_tokens=30, ignore_eos=True, stream=True)) == text
    assert asyncio.run(model.agenerate("Hello, 你好", max_tokens=30, ignore_eos=True)) == text
    assert model.generate("Hello, 你好", max_tokens=30, ignore_eos=True, stop=text[5:7]) == text[: text.find(text[5:7])]
    drawn = dict(max_tokens=20, temperature=1.5, ignore_eos=True)
    assert model.generate("Hi", seed=3, **drawn) == model.generate("Hi", seed=3, **drawn)
    assert model.generate("Hi", seed=3, **drawn) != model.generate("Hi", seed=4, **drawn)
    with_end = model.tokens.encode("Hi") + [made.END]  # the tokenizer of this folder adds no end
    assert model.submit("Hi", max_tokens=9).tokens == model.submit(GenerationRequest(tuple(with_end), 9)).tokens


def test_answers_match_schemas_and_leave_tokens_out(model):
    pytest.importorskip("llguidance", reason="schemas need llguidance")
    assert model.generate("A colour", schema="regex:(red|blue)") in ("red", "blue")
    plain = model.submit(GenerationRequest(tuple(SOURCES[0]), 12, ignore_eos=True)).tokens
    request = dict(prompt=tuple(SOURCES[0]), max_tokens=12, ignore_eos=True)
    first = model.submit(GenerationRequest(**request, suppress_first=(plain[0],))).tokens
    none = model.submit(GenerationRequest(**request, suppress=plain)).tokens
    assert first[0] != plain[0] and not {*none} & {*plain}
    with pytest.raises(InputError, match="got 300 among those to suppress"):
        model.submit(GenerationRequest(**request, suppress=(300,)))


def test_what_does_not_apply_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="the prompt has 49 tokens, and the encoder reads 48 at most"):
        model.generate("a" * 48)
    with pytest.raises(InputError, match="has no tokens"):
        model.submit(GenerationRequest((), 3))
    with pytest.raises(InputError, match=f"tokens of this model are 0 to {made.VOCABULARY - 1}"):
        model.submit(GenerationRequest((made.VOCABULARY,), 3))
    with pytest.raises(InputError, match="it has no sessions"):
        model.save(tmp_path / "s")
    with pytest.raises(InputError, match="'t5', hears nothing"):
        model.transcribe(np.zeros(100, np.float32))
    with pytest.raises(InputError, match="hears nothing"):
        model.submit(GenerationRequest((5,), 3, spectrogram=np.zeros((2, 2), np.float32)))
    with pytest.raises(InputError, match="makes text and no embeddings"):
        model.embed("a")


def test_an_answer_ends_where_the_cache_does(model):
    answer = model.submit(GenerationRequest(tuple(SOURCES[2]), None, ignore_eos=True))
    assert len(answer.tokens) == 47 and answer.finish_reason == "length"


def test_a_second_start_builds_nothing(tmp_path, monkeypatch):
    folder = folder_of(tmp_path)
    first = pelton.LanguageModel(folder, threads=1, context=16)
    from pelton.builder import build

    monkeypatch.setattr(build, "build", lambda *args, **named: pytest.fail("built again"))
    second = pelton.LanguageModel(folder, threads=1, context=16)
    assert first.generate("one", max_tokens=9) == second.generate("one", max_tokens=9)
    assert second.description.context == 16 == second.decoder.encoder.context


CONFIGS = [
    (dict(relative_attention_num_buckets=0), "relative_attention_num_buckets must be an integer from 1"),
    (
        dict(relative_attention_num_buckets=10),
        "must be a multiple of 4, and relative_attention_max_distance above half",
    ),
    (dict(relative_attention_max_distance=4), "above half of it, got 8 and 4"),
    (dict(relative_attention_max_distance="far"), "relative_attention_max_distance must be an integer"),
    (dict(feed_forward_proj="gated-mystery"), "the activation 'mystery' is not supported"),
    (dict(num_decoder_layers=3), "has no tensor 'decoder.block.2.layer.0.layer_norm.weight'"),
    (dict(num_layers=3, num_decoder_layers=2), "has no tensor 'encoder.block.2.layer.0.layer_norm.weight'"),
    (dict(num_layers=1, num_decoder_layers=2), "tensor 'encoder.block.1.* has no place in a model of type 't5'"),
    (dict(d_kv=8), r"has shape \[24, 32\], expected \[16, 32\]"),
    (dict(decoder_start_token_id=None), "decoder_start_token_id must be a token from 0 to 299, got None"),
    (dict(twist=3), "'twist' is not supported in models of type 't5'"),
    (dict(model_type="led"), "models of type 'led' are not supported, only .*t5"),
]


@pytest.mark.parametrize("settings, message", CONFIGS, ids=[f"{i} {next(iter(c))}" for i, (c, _) in enumerate(CONFIGS)])
def test_folders_that_are_refused(settings, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        pelton.LanguageModel(folder_of(tmp_path, **settings), threads=1, context=16)


def test_caches_of_fewer_bits(tmp_path):
    decoder = pelton.language.open(folder_of(tmp_path), threads=1, context=32, cache="int8")
    sequence, want = decoder.state(), made.Text(made.t5(), False, False).logits(SOURCES[0], IDS)
    read(decoder, sequence, SOURCES[0])
    sequence.extend(IDS[:9])
    logits = sequence.fork().extend(IDS[9:])
    assert 1e-5 < np.abs(logits - want[-1]).max() / np.abs(want).max() < 0.05


def test_a_sentence_encoder_of_this_family_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed = [dict(idx=i, path=p, type=f"sentence_transformers.models.{n}") for i, (n, p) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(dict(pooling_mode_mean_tokens=True)))
    with pytest.raises(ModelError, match="models of type 't5' make text and no embeddings"):
        pelton.LanguageModel(folder)


def test_weights_that_are_missing_or_nan_are_noticed(tmp_path):
    tensors = made.t5()
    made.write(tmp_path / "a", {n: t for n, t in tensors.items() if not n.startswith("encoder.")}, made.T5)
    with pytest.raises(ModelError, match=r"has no tensor 'encoder\."):
        pelton.LanguageModel(tmp_path / "a", threads=1, context=16)
    tensors["encoder.final_layer_norm.weight"][3] = np.nan
    made.write(tmp_path / "b", tensors, made.T5)
    with pelton.LanguageModel(tmp_path / "b", threads=1, context=16) as model:
        with pytest.raises(ModelError, match="the encoder computed numbers that are not finite"):
            model.generate("a")


def test_a_table_by_the_name_of_the_encoder_is_read(tmp_path):
    tensors = made.t5()
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    decoder = pelton.language.open(made.write(tmp_path, tensors, made.T5), threads=1, context=48)
    sequence = decoder.state()
    read(decoder, sequence, SOURCES[0])
    close(sequence.extend(IDS, all_rows=True), made.Text(made.t5(), False, False).logits(SOURCES[0], IDS))
