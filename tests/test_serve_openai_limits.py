"""The OpenAI protocol at its limits: clients that go, queues, deadlines, keys, sizes, unloading, repositories."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import threading
import time

import pytest
from benchmarks.serve import fuzz_openai
from language_models import write_model
from openai_models import CHAT, COMPLETIONS, MESSAGES, text_serving
from serve_rest import serving

from pelton.errors import InputError
from pelton.language import GenerationRequest
from pelton.serve import repository
from pelton.serve.options import ServeOptions
from pelton.serve.requests import RequestError
from pelton.serve.server import Server

LONGEST = {"max_tokens": 1000, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("openai") / "tiny")


def idle(model, seconds=20.0):
    """Waits until a model has no answers."""
    end = time.monotonic() + seconds
    while model.running() or model.waiting():
        assert time.monotonic() < end, "answers go on"
        time.sleep(0.01)


class VanishingClient:
    """A client that goes once it has had some events, or after a time. sent: what it had."""

    def __init__(self, client, body, events=None, seconds=None):
        self.client, self.events, self.seconds, self.sent = client, events, seconds, []
        self.body = json.dumps({"model": "tiny", **body}).encode()
        self.asked, self.gone_at = False, None

    def run(self, path=CHAT):
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}

        async def call():
            self.gone = asyncio.Event()
            if self.seconds is not None:
                asyncio.get_running_loop().call_later(self.seconds, self.gone.set)
            await self.client.client.application(scope, self.receive, self.send)

        asyncio.run(asyncio.wait_for(call(), 30))

    async def receive(self):
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": self.body}
        await self.gone.wait()
        self.gone_at = self.client.steps()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        if self.events is not None and len(self.sent) == self.events:
            self.gone.set()


@pytest.fixture
def counted(root, monkeypatch):
    """A client of a model that counts its steps, none faster than 5 ms."""
    with text_serving(root) as client:
        scheduler, count = client.model.text.scheduler, [0]
        advance = scheduler._advance

        def step(progress, logits):
            count[0] += 1
            time.sleep(0.005)
            return advance(progress, logits)

        monkeypatch.setattr(scheduler, "_advance", step)
        monkeypatch.setattr(scheduler, "_draft", 0)
        client.steps = lambda: count[0]
        yield client


@pytest.mark.parametrize(
    ["body", "when"],
    [
        ({"stream": True}, {"events": 12}),
        ({"stream": True, "n": 3}, {"events": 20}),
        ({}, {"seconds": 0.3}),
        ({"n": 2}, {"seconds": 0.3}),
    ],
    ids=["stream", "three in a stream", "whole", "two whole"],
)
def test_answers_of_a_client_that_goes_end_within_a_step(counted, body, when):
    client = VanishingClient(counted, {"messages": MESSAGES, **LONGEST, **body}, **when)
    client.run()
    idle(counted.model)
    before = client.gone_at
    answers = body.get("n", 1)
    # the step under way, and one that begins before the loop has cancelled all of them
    assert 0 < before and counted.steps() - before <= 2 * answers, (before, counted.steps())
    assert counted.model.statistics.answers == {"cancelled": answers}
    assert counted.chat()["usage"]["completion_tokens"] == 12  # the next one is answered


def test_further_requests_are_refused_while_too_many_wait(root):
    with text_serving(root, sequences=1, waiting=1) as client:
        model = client.model
        request = GenerationRequest("x", max_tokens=1000, ignore_eos=True)
        busy = model.submit([request, request])
        response = client.post(CHAT, messages=MESSAGES, max_tokens=4)
        error = response.json()["error"]
        assert response.status_code == 429 and error["type"] == "rate_limit_error"
        assert int(response.headers["retry-after"]) >= 1 and "2 answers" in error["message"]
        assert client.post(CHAT, messages=MESSAGES, max_tokens=4, n=3).status_code == 429
        for answer in busy:
            answer.cancel()
        idle(model)
        assert client.post(CHAT, messages=MESSAGES, max_tokens=4).status_code == 200
        assert model.statistics.faults == {"full": 2}


def test_a_request_of_several_is_begun_whole_or_not_at_all(root):
    with text_serving(root) as client:
        good, wrong = GenerationRequest("x"), GenerationRequest((10**6,))
        with pytest.raises(RequestError):
            client.model.submit([good, wrong])
        idle(client.model)
        assert client.model.statistics.answers == {"cancelled": 1}


def test_an_answer_that_is_late_is_an_error(counted):
    counted.model.seconds = 0.2
    response = counted.post(CHAT, messages=MESSAGES, **LONGEST)
    assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
    events = counted.post(CHAT, messages=MESSAGES, **LONGEST, stream=True).text.strip().split("\n\n")
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "timeout" and len(events) > 1
    idle(counted.model)
    assert counted.model.statistics.faults == {"late": 1} or counted.model.statistics.faults == {"late": 2}


def test_the_most_tokens_of_an_answer_are_bounded(root):
    with text_serving(root, max_tokens=5) as client:
        assert client.good(CHAT, messages=MESSAGES, ignore_eos=True)["usage"]["completion_tokens"] == 5
        error = client.post(CHAT, messages=MESSAGES, max_tokens=6).json()["error"]
        assert error["param"] == "max_tokens" and "at most 5" in error["message"]
        assert client.good(COMPLETIONS, prompt="a", max_tokens=5, ignore_eos=True)["usage"]["completion_tokens"] == 5


def test_keys_and_sizes_are_rejected_in_the_form_of_the_protocol(root):
    with text_serving(root, token="secret", body=1000) as client:
        post = client.client.post
        refused = post(CHAT, b"{}")
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
        key = {"authorization": "Bearer secret"}
        large = post(CHAT, b"x" * 2000, headers=key)
        assert large.status_code == 413 and large.json()["error"]["code"] == "request_too_large"
        body = json.dumps({"model": "tiny", "messages": MESSAGES, "max_tokens": 2})
        assert post(CHAT, body, headers=key).status_code == 200
    with text_serving(root, requests=0) as client:
        full = client.post(CHAT, messages=MESSAGES)
        assert full.status_code == 429 and full.headers["retry-after"] == "1"


def test_a_model_that_is_unloaded_answers_first(tmp_path, root):
    shutil.copytree(root, tmp_path / "models" / "tiny")
    with text_serving(tmp_path / "models", control="explicit", startup=("*",)) as client:
        model, outcomes = client.model, []
        ask = threading.Thread(target=lambda: outcomes.append(client.chat(max_tokens=60, ignore_eos=True)))
        ask.start()
        while not model.running() and ask.is_alive():
            time.sleep(0.001)
        client.server.unload("tiny")
        ask.join()
        assert outcomes[0]["usage"]["completion_tokens"] == 60
        assert client.post(CHAT, messages=MESSAGES).status_code == 404
        with pytest.raises(RequestError, match="unloaded"):
            model.submit([GenerationRequest("x")])
        assert client.client.get("/v1/models").status_code == 400  # TensorFlow Serving's answer, without such models
        client.server.load("tiny")
        assert client.chat()["usage"]["completion_tokens"] == 12


def test_places_of_language_models(tmp_path, root):
    models = tmp_path / "models"
    shutil.copytree(root, models / "folder")
    shutil.copytree(root, models / "versions" / "1")
    (models / "versions" / "2").mkdir()
    (models / "versions" / "2" / "weights.gguf").write_bytes(b"GGUF")
    (models / "Tiny-1.5B.Q4_0.gguf").write_bytes(b"GGUF")
    places = repository.scan([models])
    assert set(places) == {"folder", "versions", "Tiny-1.5B.Q4_0"}
    assert repository.model_file(places["folder"].versions["1"]) == models / "folder"
    assert repository.model_file(places["versions"].versions["1"]) == models / "versions" / "1"
    assert repository.model_file(places["versions"].versions["2"]).name == "weights.gguf"
    before = repository.scan([models / "folder"])["folder"].stamp
    (models / "folder" / "tokenizer_config.json").write_text("{}")
    assert repository.scan([models / "folder"])["folder"].stamp != before


def test_settings_of_a_repository(tmp_path, root):
    shutil.copytree(root, tmp_path / "models" / "tiny" / "1")
    config = tmp_path / "models" / "tiny" / "config.pbtxt"
    values = {"sequences": "2", "context": "200", "max_tokens": "9", "waiting": "3", "seconds": "50", "cache": "fp16"}
    line = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    config.write_text("".join(line.format(*v) for v in values.items()))
    with text_serving(tmp_path / "models") as client:
        model = client.model
        assert (model.places, model.capacity, model.most_tokens, model.most_waiting) == (2, 200, 9, 3)
        assert model.seconds == 50 and not model.settings.ignored
    for name, value in (("sequences", "0"), ("context", "many"), ("cache", "fp8"), ("context", "9999")):
        config.write_text(line.format(name, value))
        server = Server(ServeOptions((tmp_path / "models",), control="none"))
        server.start()
        assert not server.ready() and name in server.reasons["tiny"], server.reasons
        server.close()


def test_a_damaged_model_and_trust_are_errors(tmp_path, root):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(60))
    with serving(tmp_path / "broken.gguf") as client:
        assert "broken" in client.server.reasons and not client.server.ready()
    with serving(root, trust=("key",)) as client:
        assert "signed" in client.server.reasons["tiny"]
    with pytest.raises(InputError, match="letters"):
        (tmp_path / "né.gguf").write_bytes(b"")
        repository.scan([tmp_path / "né.gguf"])


def test_damaged_requests_are_refused(root):
    with text_serving(root, max_tokens=4, body=1 << 20) as client:
        outcomes = set()
        for seed in range(400):
            path, body = fuzz_openai.damaged(random.Random(seed), "tiny")
            response = client.client.post(path, body)
            assert response.status_code in (200, 400, 404, 429), (seed, path, body[:300], response.text[:500])
            if response.status_code != 200:
                error = response.json()["error"]
                assert isinstance(error["message"], str) and error.keys() == {"message", "type", "param", "code"}
                assert "Traceback" not in error["message"] and "root:x:0" not in error["message"]
                assert len(error["message"]) < 2000
            outcomes.add(response.status_code)
        assert {200, 400, 404} <= outcomes
        assert client.chat(max_tokens=4)["usage"]["completion_tokens"] == 4
        idle(client.model)
