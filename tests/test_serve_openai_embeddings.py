"""Embeddings over the OpenAI protocol: those of the model itself, and what the route refuses."""

import base64

import numpy as np
import pytest
from openai_models import CHAT, EMBEDDINGS, text_serving
from test_embeddings import MOST, TEXTS, WIDTH, write

import pelton


@pytest.fixture(scope="module")
def client(tmp_path_factory, kernel_cache):
    with text_serving(write(tmp_path_factory.mktemp("embeddings") / "tiny")) as client:
        yield client


def test_embeddings_are_those_of_the_model(client):
    texts = [t for t in TEXTS if t]
    answer = client.good(EMBEDDINGS, input=texts)
    want = client.model.text.embed(texts)
    assert [d["index"] for d in answer["data"]] == list(range(len(texts)))
    assert np.array_equal(np.array([d["embedding"] for d in answer["data"]], np.float32), want)
    counts = [len(client.model.text.tokens.encode(t)) for t in texts]
    assert answer["usage"] == {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
    tokens = client.model.text.tokens.encode(texts[0])
    alone = client.model.text.embed(texts[0])[0]  # in another run than with others: other last bits
    for same in (texts[0], tokens, [tokens]):
        got = client.good(EMBEDDINGS, input=same, encoding_format="base64")["data"]
        assert np.array_equal(np.frombuffer(base64.b64decode(got[0]["embedding"]), "<f4"), alone)


def test_dimensions_are_the_first_ones_at_length_1(client):
    (row,) = client.good(EMBEDDINGS, input="a cat", dimensions=5)["data"]
    first = client.model.text.embed("a cat")[0, :5]
    assert np.allclose(row["embedding"], first / np.linalg.norm(first), rtol=1e-6)


@pytest.mark.parametrize(
    "wrong, part",
    [
        ({"input": []}, "a text"),
        ({"input": ""}, "not empty"),
        ({"input": [[]]}, "not empty"),
        ({"input": 5}, "a text"),
        ({"input": ["a", 5]}, "a text"),
        ({"input": [10**6]}, "tokens from 0 to"),
        ({"input": "a", "dimensions": WIDTH + 1}, f"1 to {WIDTH}"),
        ({"input": "a cat " * MOST}, f"maximum context length is {MOST} tokens"),
        ({"input": "a", "encoding_format": "hex"}, "base64"),
    ],
)
def test_wrong_inputs_are_refused(client, wrong, part):
    response = client.post(EMBEDDINGS, **wrong)
    assert response.status_code == 400 and part in response.json()["error"]["message"], response.text


def test_encoders_make_no_text(client):
    response = client.post(CHAT, messages=[{"role": "user", "content": "Hello"}])
    assert response.status_code == 400 and EMBEDDINGS in response.json()["error"]["message"]
    assert "sentence encoder" in client.client.get("/page.json").text
    assert isinstance(client.model.text, pelton.LanguageModel)
