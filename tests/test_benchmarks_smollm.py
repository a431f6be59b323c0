"""The model, the reference and the heads of benchmarks/llm/smollm.py, on small random models."""

import argparse

import numpy as np
import pytest

from benchmarks.llm import decoder, head, smollm
from benchmarks.llm.llama import BLOCK, Blocks, Llama, Reference
from benchmarks.llm.peers import timing

WIDTH, INNER, TOKENS = 64, 96, 80


def matrix(rng, rows, inner, bits):
    codes = rng.integers(0, 1 << bits, (rows, inner)).astype(np.uint8)
    scale = (rng.uniform(1, 2, (rows, inner // BLOCK)) * inner**-0.5 / (1 << bits)).astype(np.float16)
    least = None if bits == 8 else (-rng.uniform(6, 9, scale.shape) * scale).astype(np.float16)
    if least is not None:  # a block of one number, one of zeros
        codes[:2, :BLOCK], scale[:2, 0], least[1, 0] = 0, 0, 0
    return Blocks(codes, scale, least, bits)


def llama(seed):
    rng = np.random.default_rng(seed)
    inners = {"ffn_down": INNER}
    rows = {"attn_q": WIDTH, "attn_k": 32, "attn_v": 32, "attn_output": WIDTH, "ffn_gate": INNER, "ffn_up": INNER}
    rows["ffn_down"] = WIDTH
    matrices = {f"blk.{i}.{n}": matrix(rng, r, inners.get(n, WIDTH), 4) for i in range(2) for n, r in rows.items()}
    matrices["token_embd"] = matrix(rng, TOKENS, WIDTH, 8)
    names = [*(f"blk.{i}.{part}_norm" for i in range(2) for part in ("attn", "ffn")), "output_norm"]
    norms = {name: rng.uniform(0.5, 1.5, WIDTH).astype(np.float32) for name in names}
    return Llama(2, WIDTH, 4, 2, 1e-5, 1e4, matrices, norms, matrices["token_embd"])


def test_the_engine_computes_the_reference(kernel_cache, monkeypatch):
    monkeypatch.setattr(smollm, "LENGTH", 24)
    monkeypatch.setattr(smollm, "PROMPT", 8)
    monkeypatch.setattr(smollm, "SINGLE", 8)
    model = llama(3)
    decoder = smollm.Decoder(model, smollm.VARIANTS[0])
    for seed in (0, 1):
        text = np.random.default_rng(seed).integers(0, TOKENS, 24)
        np.testing.assert_allclose(
            decoder.logits(text), Reference(model, np.float64).logits(text), rtol=1e-4, atol=1e-4
        )
    sample = decoder.sample(np.random.default_rng(0))
    assert sample[0] == smollm.SEPARATOR and len(sample) == 12 and len(set(sample)) > 3


def test_rows_of_two_kinds_are_an_error():
    variant = smollm.Variant("level 4", "", level=4)  # expects three digits where one is enough
    with pytest.raises(ValueError, match="round rows in another way"):
        smollm.Decoder(llama(3), variant)


def test_the_reference_sees_no_later_tokens():
    model, text = llama(5), np.random.default_rng(5).integers(0, TOKENS, 20)
    whole, part = (Reference(model, np.float64).logits(t) for t in (text, text[:12]))
    np.testing.assert_allclose(whole[:12], part, rtol=1e-12, atol=1e-12)


def error(blocks, w, rows):
    return float(np.square(rows @ (blocks.wide(np.float32) - w).T).mean())


def test_calibration_makes_up_for_errors():
    """Its products are nearer than those of the nearest weights, on rows whose elements depend on each other."""
    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((128, 128)).astype(np.float32) * np.float32(np.linspace(0.1, 2, 128))
    rows, w = rng.standard_normal((2000, 128)).astype(np.float32) @ mixed, rng.standard_normal((96, 128), np.float32)
    chosen, nearest = head.calibrated(w, rows[:1000]), head.rounded(w)
    assert error(chosen, w, rows[1000:]) < 0.5 * error(nearest, w, rows[1000:])
    assert np.square(nearest.wide(np.float32) - w).mean() < np.square(chosen.wide(np.float32) - w).mean()
    assert chosen.codes.max() <= 15 and chosen.scale.dtype == np.float16


def test_divergence_and_perplexity():
    """A uniform distribution has as much perplexity as tokens, and diverges from itself by 0."""
    tokens, flat = np.zeros((1, smollm.LENGTH), int), np.zeros((smollm.LENGTH, 7), np.float32)
    same = smollm.judge(lambda text: flat, tokens, [flat])
    assert same.kl == 0 and same.perplexity == pytest.approx(7)
    half = np.concatenate([flat[:, :1] + np.float32(np.log(6)), flat[:, 1:]], 1)  # a half, and six twelfths
    other = smollm.judge(lambda text: half, tokens, [flat])
    assert other.perplexity == pytest.approx(2)
    assert other.kl == pytest.approx(np.log(12 / 7) - np.log(6) / 7)


# --- timers


def test_prompts_are_unseen():
    lengths, prompts = [], []

    def sequence(length):
        lengths.append(length)

        def step(tokens):
            prompts.append(tuple(tokens))
            return 5

        return step

    result = timing.measure(sequence, turn=1)
    assert [*result] == ["prefill 128", "prefill 512", "decode after 16", "decode after 512", "first token"]
    long = [p for p in prompts if len(p) > 1]
    assert len(set(long)) == len(long) == len(lengths) == 7 and prompts.count((5,)) == 56
    assert all(n > len(p) for n, p in zip(lengths, long))


def test_peers():
    parser = argparse.ArgumentParser()
    peer = decoder.peer(parser, ["llama", "python", "a/m.gguf", "b/libggml-cpu-zen4.so"])
    assert peer.name == "llama.cpp, zen4, m.gguf" and peer.library == ["b/libggml-cpu-zen4.so"]
    assert decoder.peer(parser, ["genai", "python", "a/folder"]).command[2] == "a/folder"


@pytest.mark.parametrize("words", [["genai", "python"], ["llama", "python", "m.gguf"], ["other", "python", "m"]])
def test_words_that_name_no_peer(words, capsys):
    with pytest.raises(SystemExit):
        decoder.peer(argparse.ArgumentParser(), words)
    assert "--peer needs genai PYTHON MODEL" in capsys.readouterr().err
