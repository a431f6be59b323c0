"""Models of speech: spectrograms, sounds of several rates and forms, transcriptions, and what they refuse."""

import json
import wave
from contextlib import nullcontext

import encoder_decoder_files as made
import numpy as np
import pytest
from test_cli_json import SCHEMAS, faults

from pelton.cli import main
from pelton.errors import InputAbsent, InputError, ModelError
from pelton.language.mel import HOP, RATE, log_mel, mel_filters
from pelton.language.sound import parts_of, resampled, samples_of

pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")

import pelton  # noqa: E402
from pelton.language import GenerationRequest  # noqa: E402
from pelton.language.transcription import listener  # noqa: E402

FRAMES = 2 * made.ROWS
PART = FRAMES * HOP  # samples


def close(got, want, limit=1e-4):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= limit * np.abs(want).max()


def noise(count, seed=0):
    rng = np.random.default_rng(seed)
    tones = sum(np.sin(2 * np.pi * f * np.arange(count) / RATE) for f in rng.uniform(80, 5000, 4))
    return (0.1 * tones + rng.normal(0, 0.05, count)).astype(np.float32)


@pytest.fixture(autouse=True)
def engines_of_tests(kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("whisper"), made.whisper(), made.WHISPER, made.RULES)


@pytest.fixture(scope="module")
def reference():
    return made.Speech(made.whisper())


@pytest.fixture(scope="module")
def model(folder, kernel_cache):
    with pelton.LanguageModel(folder, threads=1, cache_folder=kernel_cache) as model:
        yield model


# --- spectrograms


def test_spectrograms_follow_their_definition():
    x, mels, frames = noise(4000), 20, 40
    padded = np.pad(np.concatenate([x.astype(np.float64), np.zeros(frames * HOP - len(x))]), 200, mode="reflect")
    at, bins = np.arange(400), np.arange(201)
    transform = np.exp(-2j * np.pi * np.outer(at, bins) / 400)
    hann = np.sin(np.pi * at / 400) ** 2
    power = np.array([np.abs(padded[i * HOP : i * HOP + 400] * hann @ transform) ** 2 for i in range(frames)])
    want = np.log10(np.maximum(power @ mel_filters(mels).T, 1e-10))
    want = (np.maximum(want, want.max() - 8) + 4) / 4
    close(log_mel(x, mels, frames), want.T, 1e-6)


def test_filters_are_triangles_of_slaneys_scale():
    filters = mel_filters(80)
    assert filters.shape == (80, 201) and (filters >= 0).all()
    peaks = filters.argmax(1) * RATE / 400
    assert (np.diff(peaks) >= 0).all() and filters[:, 0].max() == 0  # nothing at 0 Hz, nor at the end
    # 15 mels are 1000 Hz, 27 more are 6.4 times as much (Slaney 1998); of 82 corners, each is so many mels
    corner = (15 + 27 * np.log(8) / np.log(6.4)) / 81
    low, high = 9 * corner * 200 / 3, 11 * corner * 200 / 3  # corners of the tenth filter, below 1000 Hz
    at = np.arange(201) * 40.0
    middle = (low + high) / 2
    want = np.maximum(0, 1 - np.abs(at - middle) / (high - middle)) * 2 / (high - low)
    np.testing.assert_allclose(filters[9], want, atol=1e-12)
    assert abs((mel_filters(4) * 40).sum(1) - 1).max() < 0.05  # areas of 1


# --- sounds


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_other_rates_keep_tones_and_drop_those_beyond(rate):
    t = np.arange(int(1.3 * rate) + 5) / rate
    for f in (50, 1234.5, 3300, 6900, 9000):
        if f > 0.9 * rate / 2:
            continue
        got = resampled(np.sin(2 * np.pi * f * t + 1).astype(np.float32), rate, RATE)
        assert len(got) == -(-len(t) * RATE // rate)
        want = np.sin(2 * np.pi * f * np.arange(len(got)) / RATE + 1) * (f < RATE / 2)
        assert np.abs(got - want)[400:-400].max() < 1e-3


def write_wave(path, samples, rate=RATE, width=2):
    samples = np.asarray(samples)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1] if samples.ndim == 2 else 1)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype(f"<i{width}").tobytes())
    return path


def test_forms_of_sounds_are_the_same_samples(tmp_path):
    whole = (noise(3000) * 20000).astype(np.int16)
    want = whole.astype(np.float32) / 32768
    for form in (whole, want, want.astype(np.float64), np.stack([want, want], 1), np.stack([whole, whole, whole], 1)):
        close(samples_of(form), want, 1e-6)
    close(samples_of(write_wave(tmp_path / "a.wav", whole)), want, 1e-6)
    both = np.stack([whole, -whole], 1)
    assert not samples_of(write_wave(tmp_path / "b.wav", both)).any()
    assert len(samples_of(write_wave(tmp_path / "c.wav", whole, 8000))) == len(samples_of(whole, 8000)) == 6000


SOUNDS = [
    (np.zeros(9, np.uint8), None, "int16, float32 or float64, or the path of a WAV file, got uint8"),
    ([0.0, 1.0], None, "or the path of a WAV file, got list"),
    (np.zeros(0, np.float32), None, r"\[samples\] or \[samples, channels\], got \[0\]"),
    (np.zeros((2, 3, 4), np.float32), None, r"got \[2, 3, 4\]"),
    (np.zeros((2, 900), np.float32), None, "has 900 channels: pass it transposed"),
    (np.array([0, np.nan], np.float32), None, "numbers that are not finite"),
    (np.array([0, np.inf]), None, "numbers that are not finite"),
    (np.array([0, 3e4], np.float32), None, "audio of floats is from -1 to 1, got 30000"),
    (np.zeros(9, np.float32), 0, "rate is an integer from 1000 to 768000 samples a second, got 0"),
    (np.zeros(9, np.float32), 16000.0, "rate is an integer"),
]


@pytest.mark.parametrize("audio, rate, message", SOUNDS, ids=[str(i) for i in range(len(SOUNDS))])
def test_arrays_that_are_no_sounds_are_refused(audio, rate, message):
    with pytest.raises(InputError, match=message):
        samples_of(audio, rate)


def test_files_that_are_no_sounds_are_refused(tmp_path):
    with pytest.raises(InputAbsent, match="there is no file"):
        samples_of(tmp_path / "absent.wav")
    with pytest.raises(InputError, match="has samples of 32 bits, expected 16: convert it, as with: ffmpeg"):
        samples_of(write_wave(tmp_path / "a.wav", np.zeros(9), width=4))
    with pytest.raises(InputError, match="has no samples"):
        samples_of(write_wave(tmp_path / "b.wav", np.zeros(0)))
    whole = write_wave(tmp_path / "c.wav", np.zeros(900)).read_bytes()
    for name, data in (("d", b""), ("e", b"ID3 of an MP3 file"), ("f", whole[:20]), ("g", whole[:16] + bytes(40))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="cannot be read as WAV with 16 bits .*convert it"):
            samples_of(tmp_path / name)
    (tmp_path / "h").write_bytes(whole[:101])  # a recording that broke off
    assert len(samples_of(tmp_path / "h")) == 28
    with pytest.raises(InputError, match="a file has its own"):
        samples_of(tmp_path / "h", 8000)


def test_long_sounds_are_cut_where_they_are_quiet():
    x = noise(100_000)
    x[17_500:19_500] = 0
    parts = [*parts_of(x, 20_000)]
    np.testing.assert_array_equal(np.concatenate(parts), x)
    assert all(len(p) <= 20_000 for p in parts) and all(len(p) > 16_000 for p in parts[:-1])
    assert 17_500 < len(parts[0]) < 19_500 and not parts[0][-500:].any()
    assert [len(p) for p in parts_of(x[:20_000], 20_000)] == [20_000]


# --- models


def test_logits_are_those_of_float64(model, reference):
    decoder, ids = model.decoder, [made.START, 261, 264, *np.random.default_rng(3).integers(2, 260, 20).tolist()]
    for seed, count in enumerate((PART, 900)):
        spectrogram, sequence = log_mel(noise(count, seed), made.MELS, FRAMES), decoder.state()
        decoder.encoder.read(decoder.encoder.sound(spectrogram), sequence.state)
        want = reference.logits(spectrogram, ids)
        close(sequence.extend(ids[:4], all_rows=True), want[:4])
        for i in range(4, len(ids)):
            close(sequence.extend([ids[i]]), want[i])


def greedy(reference, x, language, task="transcribe"):
    """Returns the language and the tokens of a part, by float64."""
    spectrogram = log_mel(x, made.MELS, FRAMES)
    if language is None:
        logits = reference.logits(spectrogram, [made.START])[-1]
        language = max(made.LANGUAGES, key=lambda name: logits[made.LANGUAGES[name]])
    ids = [made.START, made.LANGUAGES[language], made.TASKS[task], made.SILENT]
    new = list[int]()
    while len(ids) + len(new) < made.CONTEXT and new[-1:] != [made.END]:
        logits = reference.logits(spectrogram, [*ids, *new])[-1]
        logits[made.RULES["suppress_tokens"]] = -np.inf
        if not new:
            logits[made.END] = -np.inf
        new.append(int(logits.argmax()))
    return language, new


def test_transcriptions_are_those_of_float64(model, reference):
    of = listener(model.scheduler)
    for seed in range(4):
        x = noise(PART - 1000 * seed, seed)
        language, _ = greedy(reference, x, None)
        assert model.detect_language(x) == language.strip("<|>")
        for way, task in (("<|de|>", "translate"), (language, "transcribe")):
            _, tokens = greedy(reference, x, way, task)
            answer = of.submit(of.spectrogram(x), of.prompt(way.strip("<|>"), task))
            assert list(answer.tokens) == tokens
            assert model.transcribe(x, language=way.strip("<|>"), task=task) == answer.text.strip()
        assert model.transcribe(x) == answer.text.strip()


def test_long_sounds_are_their_parts_and_streams(model):
    x = noise(5 * PART, 9)
    parts = [*parts_of(x, PART)]
    assert len(parts) == 6
    texts = [model.transcribe(part, language="en") for part in parts]
    whole = model.transcribe(x, language="en")
    of = listener(model.scheduler)
    each = [of.submit(of.spectrogram(part), of.prompt("en", None)).text for part in parts]
    assert [text.strip() for text in each] == texts and whole == "".join(each).strip()
    stream = model.transcribe(x, language="en", stream=True)
    pieces = [next(stream) for _ in range(3)]
    assert "".join([*pieces, *stream]).strip() == whole
    stream = model.transcribe(x, language="en", stream=True)
    next(stream)
    stream.close()  # cancels all parts
    drawn = dict(language="en", temperature=1.2, max_tokens=5)
    assert model.transcribe(x, seed=1, **drawn) == model.transcribe(x, seed=1, **drawn)
    assert model.transcribe(x, seed=1, **drawn) != model.transcribe(x, seed=2, **drawn)


def test_the_encoder_runs_once_for_a_sound(model, monkeypatch):
    context, runs = model.decoder.encoder._context, []
    run = type(context).run
    monkeypatch.setattr(type(context), "run", lambda self, *a: (runs.append(self is context), run(self, *a))[1])
    x = noise(PART, 77)
    model.transcribe(x)  # finds the language, too
    model.transcribe(x, language="de")
    assert sum(runs) == 1


def test_what_does_not_apply_is_refused(model, tmp_path):
    x = noise(100)
    with pytest.raises(InputError, match="this model has no language 'fr', only en, de"):
        model.transcribe(x, language="fr")
    with pytest.raises(InputError, match="no task 'sing', only translate, transcribe"):
        model.transcribe(x, task="sing", stream=True)
    with pytest.raises(InputError, match="call LanguageModel.transcribe"):
        model.generate("Hello")
    with pytest.raises(InputError, match="call LanguageModel.transcribe"):
        model.submit(GenerationRequest((made.START,)))
    with pytest.raises(TypeError, match="transcribe has no argument 'stop'"):
        model.transcribe(x, stop="a")
    with pytest.raises(InputError, match="temperature is a number"):
        model.transcribe(x, temperature=-1)
    for bad in (np.zeros((3, FRAMES), np.float32), np.zeros((made.MELS, FRAMES))):
        with pytest.raises(InputError, match=rf"float32\[{made.MELS}, {FRAMES}\], got"):
            model.submit(GenerationRequest((made.START,), spectrogram=bad))
    with pytest.raises(InputError, match="spectrogram has numbers that are not finite"):
        model.submit(GenerationRequest((made.START,), spectrogram=np.full((made.MELS, FRAMES), np.nan, np.float32)))


def test_models_of_one_language(tmp_path):
    rules = dict(forced_decoder_ids=[[1, made.SILENT]], eos_token_id=made.END)
    folder = made.write(tmp_path, made.whisper(), made.WHISPER, rules)
    with pelton.LanguageModel(folder, threads=1) as model:
        assert listener(model.scheduler).prompt(None, None) == (made.START, made.SILENT)
        assert isinstance(model.transcribe(noise(PART)), str)
        with pytest.raises(InputError, match="this model has no tokens for a language: leave it out"):
            model.transcribe(noise(PART), language="en")
        with pytest.raises(InputError, match="there is none to detect"):
            model.detect_language(noise(PART))


FOLDERS = [
    ("generation_config.json", dict(lang_to_id=dict(en=999)), "lang_to_id must have tokens from 0 to 299, got 999"),
    ("generation_config.json", dict(task_to_id=[1]), "task_to_id must be an object"),
    ("generation_config.json", dict(forced_decoder_ids=[[2, 5]]), "forced_decoder_ids must be pairs of 1, 2, "),
    ("generation_config.json", dict(forced_decoder_ids=7), "forced_decoder_ids must be pairs"),
    ("preprocessor_config.json", dict(sampling_rate=8000), "sampling_rate must be 16000, got 8000"),
    ("preprocessor_config.json", dict(feature_size=80), "feature_size must be 16, got 80"),
    ("preprocessor_config.json", dict(chunk_length=30), "chunk_length must be 0.5 seconds, got 30"),
    (
        "config.json",
        {**made.WHISPER, "encoder_attention_heads": 5},
        "5 encoder_attention_heads do not divide a d_model",
    ),
    (
        "config.json",
        {**made.WHISPER, "num_mel_bins": 20},
        r"conv1.weight has shape \[32, 16, 3\], expected \[32, 20, 3\]",
    ),
    ("config.json", {**made.WHISPER, "max_source_positions": 30}, r"has shape \[25, 32\], expected \[30, 32\]"),
    ("generation_config.json", dict(decoder_start_token_id=-1), "decoder_start_token_id must be a token .*, got -1"),
]


@pytest.mark.parametrize("name, values, message", FOLDERS, ids=[f"{i}" for i in range(len(FOLDERS))])
def test_folders_that_are_refused(name, values, message, tmp_path):
    folder = made.write(tmp_path, made.whisper(), made.WHISPER, made.RULES)
    (folder / name).write_text(json.dumps(values))
    with pytest.raises(ModelError, match=message):
        pelton.LanguageModel(folder, threads=1)


# --- commands


def test_generate_writes_down_a_sound(folder, model, tmp_path, capsys):
    x = (noise(2 * PART, 4) * 32768).astype(np.int16)
    path = str(write_wave(tmp_path / "x.wav", x))
    options = ["generate", str(folder), "--threads", "1", "--audio", path]
    want = model.transcribe(path, language="de", task="translate", max_tokens=9)
    assert main([*options, "--language", "de", "--task", "translate", "--max-tokens", "9"]) == 0
    assert capsys.readouterr().out.strip() == want
    assert main([*options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert not faults(SCHEMAS["generate.json"], result) and result["text"] == model.transcribe(path)


COMMANDS = [
    (["a prompt", "--audio", "x.wav"], "models of speech have no use for a prompt"),
    (["--audio", "x.wav", "--schema", "regex:a"], "no use for --schema: leave it out beside --audio"),
    (["--audio", "absent.wav"], "there is no file 'absent.wav'"),
    (["--language", "en", "a prompt"], "--language is that of a sound: pass --audio"),
    ([], "the following arguments are required: prompt"),
]


@pytest.mark.parametrize("arguments, message", COMMANDS, ids=[m for _, m in COMMANDS])
def test_commands_that_are_refused(arguments, message, folder, capsys):
    with pytest.raises(SystemExit) if not arguments else nullcontext():
        assert main(["generate", str(folder), *arguments]) != 0
    assert message in capsys.readouterr().err


def test_sessions_and_engines_of_pairs_are_refused(folder, capsys, tmp_path):
    for option in ("--session", "--save-engine"):
        assert main(["generate", str(folder), "a", "--threads", "1", option, str(tmp_path / "x")]) != 0
        assert "has an encoder, beside which there are no sessions" in capsys.readouterr().err
