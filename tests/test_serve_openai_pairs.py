"""Models with an encoder over the OpenAI protocol: T5 completes prompts, Whisper answers none."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")

import encoder_decoder_files as files  # noqa: E402
from openai_models import COMPLETIONS, text_serving  # noqa: E402

import pelton  # noqa: E402

PROMPT = {"prompt": "a red house", "max_tokens": 8, "temperature": 0}


@pytest.fixture(autouse=True)
def engines_of_tests(kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))


def test_prompts_are_texts_of_the_encoder(tmp_path):
    folder = files.write(tmp_path / "tiny", files.t5(), files.T5)
    with pelton.LanguageModel(folder) as model:
        want = model.generate(PROMPT["prompt"], max_tokens=8)
    with text_serving(tmp_path) as client:
        (choice,) = client.good(COMPLETIONS, **PROMPT)["choices"]
        assert choice["text"] == want
        assert "".join(e["choices"][0]["text"] for e in client.events(COMPLETIONS, **PROMPT)) == want


def test_models_of_speech_refuse_prompts(tmp_path):
    files.write(tmp_path / "tiny", files.whisper(), files.WHISPER, files.RULES)
    with text_serving(tmp_path) as client:
        response = client.post(COMPLETIONS, **PROMPT)
        assert response.status_code == 400 and "call LanguageModel.transcribe" in response.json()["error"]["message"]
