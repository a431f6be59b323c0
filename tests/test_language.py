"""Language models from every kind of file: logits of their sequences beside float64, and what they refuse."""

import json

import numpy as np
import pytest

import language_files as files
from pelton.errors import InputError, ModelAbsent, ModelError

pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")

import pelton.language  # noqa: E402

IDS = np.random.default_rng(5).integers(2, files.VOCABULARY, 40).tolist()


def close(logits, want):
    assert logits.shape == want.shape
    assert np.abs(logits - want).max() <= 1e-4 * np.abs(want).max()


@pytest.fixture(scope="module")
def model():
    return files.llama()


@pytest.fixture(scope="module")
def want(model):
    return files.logits(model, IDS)


@pytest.fixture(scope="module", params=["genai", "transformers", "gguf"])
def decoder(request, model, tmp_path_factory, kernel_cache):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gguf":
        pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
        folder = folder / "model.gguf"
        files.write_gguf(folder, model)
    else:
        {"genai": files.write_genai, "transformers": files.write_folder}[request.param](folder, model)
    return pelton.language.open(folder, threads=1, cache_folder=kernel_cache)


@pytest.fixture(autouse=True)
def engines_of_tests(kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))


def test_logits_are_those_of_float64(decoder, want):
    sequence = decoder.state()
    close(sequence.extend(IDS[:13]), want[12])
    close(sequence.extend(IDS[13:17], all_rows=True), want[13:17])
    for i in range(17, 25):
        close(sequence.extend(IDS[i : i + 1]), want[i])
    assert sequence.length == 25 and sequence.ids == IDS[:25]
    close(decoder.state().extend(IDS, all_rows=True), want)


def test_sequences_go_back_and_part(decoder, want):
    sequence = decoder.state()
    sequence.extend(IDS[:20])
    other = sequence.fork()
    sequence.rewind(7)
    close(sequence.extend(IDS[7:9]), want[8])
    close(other.extend(IDS[20:21]), want[20])
    sequence.rewind(0)
    close(sequence.extend(IDS[:3]), want[2])
    with pytest.raises(InputError, match="it cannot go back to 4"):
        sequence.rewind(4)


def test_what_does_not_fit_leaves_a_sequence_as_it_was(decoder, want):
    sequence = decoder.state(capacity=16)
    sequence.extend(IDS[:10])
    with pytest.raises(InputError, match="room for 16, 7 more do not fit"):
        sequence.extend(IDS[10:17])
    with pytest.raises(InputError, match=f"are 0 to {files.VOCABULARY - 1}, got {files.VOCABULARY}"):
        sequence.extend([files.VOCABULARY])
    with pytest.raises(InputError, match="one token or more"):
        sequence.extend([])
    close(sequence.extend(IDS[10:16]), want[15])
    with pytest.raises(InputError, match="room for 1 to"):
        decoder.state(capacity=files.CONTEXT + 1)


def test_a_batch_is_its_sequences(decoder, want):
    if not decoder.ports.batch:
        with pytest.raises(InputError, match="one sequence at a time"):
            decoder.batch(2)
        return
    batch = decoder.batch(4, capacity=30)
    for i, length in enumerate((29, 12, 30, 20)):
        batch[i].extend(IDS[:length])
    steps = batch.step({0: IDS[29], 1: IDS[12], 3: IDS[20]})  # the third one is full
    assert [*steps] == [0, 1, 3] and [s.length for s in batch.sequences] == [30, 13, 30, 21]
    batch[2].rewind(5)
    steps |= batch.step({1: IDS[13], 2: IDS[5], 3: IDS[21]})
    for i, row in enumerate((29, 13, 5, 21)):
        close(steps[i], want[row])
    steps = batch.step({3: IDS[22], 1: IDS[14]})  # the third one rests
    close(steps[1], want[14])
    close(steps[3], want[22])
    close(batch[2].extend(IDS[6:8]), want[7])
    with pytest.raises(InputError, match="sequence 0 has no room"):
        batch.step({0: 5})
    with pytest.raises(InputError, match="there is no sequence 4"):
        batch.step({4: 5})


def test_the_description_and_the_tokens(decoder):
    about = decoder.description
    assert (about.family, about.layers, about.kv_heads, about.head_size) == ("llama", 2, files.KV_HEADS, files.DEPTH)
    assert (about.context, about.vocabulary) == (files.CONTEXT, files.VOCABULARY)
    assert about.token_bytes == 2 * files.LAYERS * files.KV_HEADS * files.DEPTH * 4
    tokens = decoder.tokens
    assert (tokens.bos, tokens.eos, tokens.template) == (0, (1,), "{{ messages }}")
    assert tokens.decode(tokens.encode("a té 🙂")) == "a té 🙂" and tokens.names["eos_token"] == "</s>"
    assert tokens.encode("a</s>", False) == [*tokens.encode("a", False), 1]
    assert len(tokens.encode("a</s>", False, literal=True)) == 5


def test_a_second_start_builds_nothing(model, tmp_path, monkeypatch):
    files.write_folder(tmp_path, model)
    first = pelton.language.open(tmp_path, threads=1)
    assert first.engine.source is not None, "a first start keeps the weights of the build, not those of the file"
    from pelton.builder import build

    def refused(*args, **named):
        raise AssertionError("built again")

    monkeypatch.setattr(build, "build", refused)
    second = pelton.language.open(tmp_path, threads=1)
    assert second.description == first.description and second.ports == first.ports
    np.testing.assert_array_equal(second.state().extend(IDS), first.state().extend(IDS))
    with pytest.raises(AssertionError, match="built again"):
        pelton.language.open(tmp_path, threads=1, context=32)


def test_caches_of_fewer_bits_and_weights_in_bf16(model, want, tmp_path):
    files.write_folder(tmp_path, model, "BF16")
    decoder = pelton.language.open(tmp_path, threads=1, cache="int8", context=48)
    assert decoder.description.context == 48
    assert decoder.description.token_bytes == 2 * files.LAYERS * files.KV_HEADS * (files.DEPTH + 4)
    sequence = decoder.state()
    sequence.extend(IDS[:20])
    logits = sequence.fork().extend(IDS[20:])
    assert 1e-5 < np.abs(logits - want[-1]).max() / np.abs(want).max() < 0.05


def test_rows_are_rounded_to_8_bits_if_asked(model, want, tmp_path):
    pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
    files.write_gguf(tmp_path / "model.gguf", model)
    decoder = pelton.language.open(tmp_path / "model.gguf", threads=1, precision="int8")
    told = {step.info.get("rounding") for part in decoder.engine.parts for step in part.plain.steps}
    assert "rows rounded to 8 bits, as the model allows" in told
    sequence = decoder.state()
    logits = np.stack([sequence.extend(IDS[:13]), *(sequence.extend([i]) for i in IDS[13:20])])
    off = np.abs(logits - want[12:20]).max() / np.abs(want[12:20]).max()
    assert 1e-4 < off < 5e-2
    batch = decoder.batch(2)
    batch[0].extend(IDS[:13])
    batch[1].extend(IDS[:5])
    assert (batch.step({0: IDS[13], 1: IDS[5]})[0] == logits[1]).all(), "rows are rounded one by one"


@pytest.mark.parametrize("precision", ["int4", "int8", 8])
def test_an_unknown_precision_is_refused(precision, model, tmp_path):
    files.write_folder(tmp_path, model)
    said = "in GGUF files" if precision == "int8" else "precision is 'fp32', 'fp16', 'int8'"
    with pytest.raises(InputError, match=said):
        pelton.language.open(tmp_path, precision=precision)


@pytest.mark.parametrize("cache", ["fp8", 8])
def test_an_unknown_cache_is_refused(cache, tmp_path):
    with pytest.raises(InputError, match="cache is 'fp32', 'fp16' or 'int8'"):
        pelton.language.open(tmp_path, cache=cache)


CONFIGS = [
    (dict(model_type="mamba"), "models of type 'mamba' are not supported"),
    (dict(rope_scaling=dict(rope_type="spiral", factor=2.0)), "rope_type 'spiral' is not supported"),
    (dict(rope_scaling=dict(rope_type="linear", factor=2.0, twist=3)), "'twist' of rope_type 'linear'"),
    (dict(attn_logit_softcapping=50.0), "'attn_logit_softcapping' is not supported in models of type 'llama'"),
    (dict(hidden_act="mystery"), "the activation 'mystery' is not supported"),
    (dict(num_key_value_heads=3), "3 heads of keys do not divide 4 heads"),
    (dict(hidden_size="wide"), "hidden_size must be an integer from 1 to 2147483647, got 'wide'"),
    (dict(tie_word_embeddings=False), "has no tensor 'lm_head.weight', and tie_word_embeddings is false"),
    (dict(num_hidden_layers=3), "has no tensor 'model.layers.2.input_layernorm.weight'"),
    (dict(num_hidden_layers=1), "tensor 'model.layers.1.* has no place in a model of type 'llama'"),
    (dict(intermediate_size=64), r"mlp.*has shape \[96, 64\], expected \[64, 64\]"),
    (dict(rms_norm_eps=float("nan")), "rms_norm_eps must be a number, got nan"),
]


@pytest.mark.parametrize("others, message", CONFIGS, ids=[next(iter(c)) + str(i) for i, (c, _) in enumerate(CONFIGS)])
def test_what_is_not_known_is_refused_by_name(others, message, model, tmp_path):
    files.write_folder(tmp_path, model, **others)
    with pytest.raises(ModelError, match=message):
        pelton.language.open(tmp_path, threads=1)


GENAI = [
    (lambda c: c["model"].update(vision={}), "models with a part 'vision'"),
    (lambda c: c["model"]["decoder"].update(pipeline=[]), "a pipeline of several models"),
    (lambda c: c["model"]["decoder"]["inputs"].update(rnn_states="s"), "an input 'rnn_states'"),
    (lambda c: c["model"]["decoder"].update(filename="other.onnx"), "has no other.onnx"),
    (lambda c: c["model"]["decoder"]["outputs"].update(logits="scores"), "has no output 'scores'"),
    (lambda c: c["model"].pop("vocab_size"), "vocab_size must be an integer"),
    (lambda c: c.pop("model"), "model must be an object"),
]


@pytest.mark.parametrize("change, message", GENAI, ids=[message for _, message in GENAI])
def test_folders_of_genai_that_are_refused(change, message, model, tmp_path):
    files.write_genai(tmp_path, model)
    path = tmp_path / "genai_config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        pelton.language.open(tmp_path, threads=1)


def test_what_is_missing_is_named(model, tmp_path):
    with pytest.raises(ModelAbsent, match="there is no language model"):
        pelton.language.open(tmp_path / "absent")
    with pytest.raises(ModelError, match="is no language model: expected a GGUF file, or a folder"):
        pelton.language.open(tmp_path)
    files.write_folder(tmp_path, model)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer.json cannot be read as a tokenizer"):
        pelton.language.open(tmp_path, threads=1)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelAbsent, match="has no tokenizer.json"):
        pelton.language.open(tmp_path, threads=1)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelAbsent, match="has no model.safetensors"):
        pelton.language.open(tmp_path)


def test_weights_that_are_nan_are_noticed(model, tmp_path):
    norms = {**model.norms, "output_norm": np.full(files.WIDTH, np.nan, np.float32)}
    damaged = files.Llama(**{**vars(model), "norms": norms})
    files.write_folder(tmp_path, damaged)
    sequence = pelton.language.open(tmp_path, threads=1).state()
    with pytest.raises(ModelError, match="logits that are NaN at token 3"):
        sequence.extend(IDS[:3])
    assert sequence.length == 0
