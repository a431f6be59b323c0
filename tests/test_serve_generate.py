"""The extension "generate": flat objects of JSON in and out, events, parameters, refusals."""

import json

import numpy as np
import pytest
from serve_rest import WEIGHTS, half_plus_two, line, save, scores, serving, texts

from pelton.serve import generate
from pelton.serve.requests import RequestError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, source in (("half", half_plus_two()), ("line", line()), ("texts", texts()), ("scores", scores())):
        save(root, name, source)
    return root


@pytest.fixture(scope="module")
def client(root):
    with serving(root) as client:
        yield client


def test_values_become_tensors_and_tensors_values(client):
    want = {"model_name": "texts", "model_version": "1", "text_out": "π!"}
    assert client.post("/v2/models/texts/generate", json.dumps({"text": "π"})).json() == want
    body = {"id": "42", "text": ["a", "b"], "parameters": {"stream": False, "temperature": 0.5}}
    response = client.post("/v2/models/texts/versions/1/generate", json.dumps(body))
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {**want, "id": "42", "text_out": ["a!", "b!"]}
    assert client.post("/v2/models/line/generate", '{"x": 3}').json()["y"] == 3.5
    x = np.float32([0.5, -1, 2, 3])
    scored = client.post("/v2/models/scores/generate", json.dumps({"parameters": {"x": x.tolist()}})).json()["scores"]
    want = np.exp(WEIGHTS @ x) / np.exp(WEIGHTS @ x).sum()
    np.testing.assert_allclose(scored, want, rtol=1e-5)


def test_a_stream_has_one_event(client):
    response = client.post("/v2/models/texts/generate_stream", '{"text": "a", "id": "7"}')
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text.startswith("data: {") and response.text.endswith("}\n\n") and response.text.count("\n") == 2
    event = json.loads(response.text.removeprefix("data: "))
    assert event == {"id": "7", "model_name": "texts", "model_version": "1", "text_out": "a!"}


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    "model, body, status, message",
    [
        ("texts", "", 400, "needs input 'text'"),
        ("texts", '{"abc": 123}', 400, "needs input 'text'"),
        ("texts", "[1]", 400, "an object of JSON"),
        ("texts", "{", 400, "failed to parse the request JSON"),
        ("texts", "[" * 100000, 400, "failed to parse the request JSON"),
        ("texts", '{"text": 123}', 400, "BYTES are texts"),
        ("line", '{"x": "false"}', 400, "does not fit FP32"),
        ("line", '{"x": NaN}', 400, "NaN is no number"),
        ("texts", '{"text": "a", "text": "b"}', 400, "input 'text' already exists in request"),
        ("texts", '{"text": "a", "parameters": {"text": "b"}}', 400, "input 'text' already exists in request"),
        ("texts", '{"text": "a", "PARAMS": {"a": 0}}', 400, "parameter 'PARAMS' has invalid type"),
        ("texts", '{"text": {"USER": "a"}}', 400, "BYTES are texts"),
        ("texts", '{"text": "a", "parameters": 1}', 400, "Expected JSON object for keyword: 'parameters'"),
        ("texts", '{"text": "a", "id": 1}', 400, "id of a request is a text"),
        ("half", '{"x": [1, 2, 3]}', 400, "can not convert input 'x' to tensor with proper shape"),
        ("absent", "{}", 404, "not found"),
    ],
)
def test_what_does_not_fit_is_refused(client, route, model, body, status, message):
    response = client.post(f"/v2/models/{model}/{route}", body)
    assert response.headers["content-type"] == "application/json"
    assert response.status_code == status and message in response.json()["error"]


def test_only_post_generates(client):
    assert client.get("/v2/models/texts/generate").status_code == 405


def test_sizes_are_limited(root):
    with serving(root, body=1000) as client:
        response = client.post("/v2/models/line/generate", json.dumps({"x": [1] * 400}))
        assert response.status_code == 413 and response.json()["error"] == (
            f"request JSON size of {len(json.dumps({'x': [1] * 400}))} bytes exceeds the maximum allowed input size of"
            " 1000 bytes. Use --http-max-input-size to increase the limit."
        )
        body = '{"x": [' + "1," * 299 + "1]}"
        response = client.post("/v2/models/line/generate", body)
        assert response.status_code == 400 and "'x' of size 1200 bytes exceeds the maximum" in response.json()["error"]


@pytest.mark.parametrize(
    "shape, elements, want",
    [([-1, 1], 1, (1, 1)), ([-1, 1], 3, (3, 1)), ([-1, -1], 3, (1, 3)), ([-1, 2, 2], 8, (2, 2, 2)), ([3], 3, (3,))]
    + [([], 1, ()), ([-1, 2], 0, (0, 2)), ([-1, 2], 3, None), ([2], 4, None), ([0], 1, None), ([0, -1], 0, (0, 0))],
)
def test_elements_fill_the_shape_of_the_input(shape, elements, want):
    body = json.dumps({"x": list(range(elements))}).encode()
    port = {"name": "x", "datatype": "INT32", "shape": shape}
    if want is None:
        with pytest.raises(RequestError, match="proper shape"):
            generate.read(body, "m", "", [port], 1000)
    else:
        array = generate.read(body, "m", "", [port], 1000).inputs["x"]
        np.testing.assert_array_equal(array, np.arange(elements, dtype=np.int32).reshape(want))
