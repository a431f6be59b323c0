#!/usr/bin/env python3
"""Makes tiny encoder–decoders, and records what transformers computes: encoder_decoders.py FOLDER [WHISPER WAV].

Needs the packages transformers, torch and tokenizers. Each model has random weights and is a folder of FOLDER, with
answers.npz beside it. Each of three sources i is ids (`i ids`) or a sound (`i sound`, with `i spectrogram`, by
WhisperFeatureExtractor). It has logits in float64 of all tokens of an answer (`i answer`, `i logits`), and the tokens
that `generate` appends, greedily, in float64 (`i generated`); those of sounds also with the language that it detects.
WHISPER is the folder of a model of English as CTranslate2 writes it, which hears the file WAV and two parts of it.
"""

from __future__ import annotations

import json
import shutil
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import whisper_ctranslate2
from language_models import VOCABULARY, tokens

LENGTHS, ANSWER, NEW = (1, 9, 70), 24, 40
SECONDS = (0.25, 1.0, 0.7)  # of a chunk
SMALL = dict(vocab_size=VOCABULARY, d_model=64, d_kv=24, d_ff=96, num_layers=3, num_heads=4, num_decoder_layers=2)
SMALL |= dict(decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
FEW = dict(relative_attention_num_buckets=16, relative_attention_max_distance=40)
START, LANGUAGES, TASKS, SILENT = 260, {"<|en|>": 261, "<|de|>": 262}, {"translate": 263, "transcribe": 264}, 265
HEARS = dict(vocab_size=VOCABULARY, d_model=64, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4)
HEARS |= dict(decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=128, max_target_positions=96)
HEARS |= dict(decoder_start_token_id=START, pad_token_id=1, bos_token_id=1, eos_token_id=1)
HEARS |= dict(suppress_tokens=None, begin_suppress_tokens=None)
TEXT: dict[str, Callable[[], Any]] = {
    "t5, relu, tied": lambda: transformers.T5Config(**SMALL),
    "t5, gated-gelu, own head": lambda: transformers.T5Config(
        **SMALL, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "t5, gated-silu, no own head": lambda: transformers.T5Config(
        **SMALL, feed_forward_proj="gated-silu", tie_word_embeddings=False
    ),
    "t5, 16 buckets": lambda: transformers.T5Config(**SMALL, **FEW),
    "mt5, own head": lambda: transformers.MT5Config(**SMALL, feed_forward_proj="gated-gelu"),
}
SOUND: dict[str, Callable[[], Any]] = {
    "whisper, 80 mels": lambda: transformers.WhisperConfig(**HEARS, num_mel_bins=80, max_source_positions=50),
    "whisper, 128 mels": lambda: transformers.WhisperConfig(**HEARS, num_mel_bins=128, max_source_positions=50),
    "whisper, 30 seconds": lambda: transformers.WhisperConfig(**HEARS, num_mel_bins=80, max_source_positions=1500),
    "whisper, scaled, one language": lambda: transformers.WhisperConfig(
        **HEARS, num_mel_bins=80, max_source_positions=100, scale_embedding=True, activation_function="relu"
    ),
}


def random_model(kind: Any, config: Any) -> Any:
    torch.manual_seed(1)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    own_head = "own head" in config.name and "no own" not in config.name
    if own_head:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for name, p in model.named_parameters():
            centre = 1.0 if p.dim() == 1 and "norm" in name and "weight" in name else 0.0
            scale = np.prod(p.shape[1:]) ** -0.5 if p.dim() > 1 else 0.3
            scale = 1.0 if "relative" in name else scale
            p.copy_(torch.randn_like(p) * scale + centre)
    return model


def write_tokenizer(folder: Path, names: dict[int, str]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {t: i for i, t in enumerate(tokens())}
    tokenizer = Tokenizer(models.BPE({names.get(i, t): i for t, i in vocabulary.items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", *names.values())])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(eos_token="</s>", pad_token="<s>")))


def write_text(folder: Path, config: Any) -> None:
    config.name = folder.name
    kind = transformers.MT5ForConditionalGeneration if "mt5" in folder.name else transformers.T5ForConditionalGeneration
    model, rng = random_model(kind, config), torch.Generator().manual_seed(2)
    del config.name
    model.save_pretrained(folder)
    if folder.name.startswith("t5, gated-gelu"):  # as earlier versions of transformers write it
        path = folder / "config.json"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "tie_word_embeddings": False}))
    wide, out = model.double(), {}
    for i, length in enumerate(LENGTHS):
        ids = torch.randint(2, VOCABULARY, (1, length), generator=rng)
        ids[0, -1] = 1
        answer = torch.randint(2, VOCABULARY, (1, ANSWER), generator=rng)
        answer[0, 0] = 0
        with torch.no_grad():
            logits = wide(input_ids=ids, decoder_input_ids=answer, use_cache=False).logits[0]
            new = wide.generate(ids, max_new_tokens=NEW, do_sample=False, num_beams=1)[0, 1:]
        of = dict(ids=ids[0], answer=answer[0], logits=logits, generated=new)
        out |= {f"{i} {name}": t.numpy() for name, t in of.items()}
    np.savez(folder / "answers.npz", **out)
    write_tokenizer(folder, {})


def sound(i: int, seconds: float) -> np.ndarray:
    """Returns a chord with noise, some of it silent."""
    rng, t = np.random.default_rng(i), np.arange(int(seconds * 16000)) / 16000
    x = sum(np.sin(2 * np.pi * f * t) for f in rng.uniform(80, 6000, 5)) + rng.normal(0, 0.1, len(t))
    x[len(x) // 3 : len(x) // 2] = 0
    return (x / 8).astype(np.float32)


def write_sound(folder: Path, config: Any) -> None:
    config.name, single = folder.name, "one language" in folder.name
    model = random_model(transformers.WhisperForConditionalGeneration, config)
    del config.name
    rules = dict(decoder_start_token_id=START, eos_token_id=1, pad_token_id=1, bos_token_id=1, max_length=96)
    rules |= dict(suppress_tokens=[20, 21, *range(START, 300)], begin_suppress_tokens=[220, 1], return_timestamps=False)
    rules |= dict(is_multilingual=not single, no_timestamps_token_id=SILENT)
    rules |= dict(forced_decoder_ids=[[1, SILENT]]) if single else dict(lang_to_id=LANGUAGES, task_to_id=TASKS)
    model.generation_config = transformers.GenerationConfig(**rules)
    model.save_pretrained(folder)
    seconds = config.max_source_positions * 2 / 100
    record_sounds(folder, model, [sound(i, part * seconds) for i, part in enumerate(SECONDS)], single)
    named = {START: "<|startoftranscript|>", SILENT: "<|notimestamps|>"} | {i: t for t, i in LANGUAGES.items()}
    write_tokenizer(folder, named | {i: f"<|{t}|>" for t, i in TASKS.items()})


def record_sounds(folder: Path, model: Any, sounds: list[np.ndarray], single: bool) -> None:
    """Writes answers.npz, and what describes spectrograms. single: the model has one language."""
    config = model.config
    seconds = config.max_source_positions * 2 // 100
    extract = transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=seconds)
    extract.save_pretrained(folder)
    wide, out = model.double(), {}
    for i, x in enumerate(sounds):
        features = torch.from_numpy(extract(x, sampling_rate=16000).input_features)
        answer = torch.randint(2, VOCABULARY, (1, ANSWER), generator=torch.Generator().manual_seed(i))
        ways = {"": {}} if single else {"": dict(language="de", task="translate"), " detected": dict(task="transcribe")}
        with torch.no_grad():
            logits = wide(input_features=features.double(), decoder_input_ids=answer, use_cache=False).logits[0]
            for name, way in ways.items():
                new = wide.generate(features.double(), max_new_tokens=NEW, do_sample=False, num_beams=1, **way)[0]
                out[f"{i} generated{name}"] = new.numpy()
        of = dict(sound=x, spectrogram=features[0].numpy(), answer=answer[0].numpy(), logits=logits.numpy())
        out |= {f"{i} {name}": a for name, a in of.items()}
    np.savez(folder / "answers.npz", **out)


def write_real(folder: Path, stored: Path, wav: Path) -> None:
    """Writes a model that a package holds, and what it hears in a file and in two parts of it."""
    of = whisper_ctranslate2.variables(stored / "model.bin")
    about, rules = whisper_ctranslate2.settings(stored, of)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**about)).eval()
    state = {name: torch.from_numpy(a) for name, a in whisper_ctranslate2.tensors(of).items()}
    missing, others = model.load_state_dict(state, strict=False)
    assert missing == ["proj_out.weight"] and not others, (missing, others)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(**rules)
    model.save_pretrained(folder)
    shutil.copy(stored / "tokenizer.json", folder)
    with wave.open(str(wav)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        x = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    record_sounds(folder, model, [x, x[: len(x) // 2], x[len(x) // 2 :]], True)


def main(folder: Path, *real: Path) -> None:
    if real:
        to = folder / "whisper tiny.en, speech"
        to.mkdir(parents=True, exist_ok=True)
        write_real(to, *real)
        print(to.name, flush=True)
    for families, write in ((TEXT, write_text), (SOUND, write_sound)):
        for name, config in families.items():
            to = folder / name
            to.mkdir(parents=True, exist_ok=True)
            write(to, config())
            print(to.name, flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
