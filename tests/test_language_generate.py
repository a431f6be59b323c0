"""Answers of language models: pieces, stops, seeds, several at once, caches of earlier ones, speculation, sessions."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from language_models import SPECIAL, TEXT, VOCABULARY, write_model

import pelton
from pelton.config import FOLDER
from pelton.errors import InputError, ModelError
from pelton.language import places
from pelton.language.generation import GenerationRequest
from pelton.language.sampling import Sampling
from pelton.language.scheduler import Scheduler

CONTEXT = 512
MESSAGES = [{"role": "user", "content": "A cache?"}]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("language") / "model")
    return pelton.language.open(folder, threads=2, context=CONTEXT)


@pytest.fixture(scope="module")
def model(decoder):
    with pelton.LanguageModel(decoder, sequences=8) as model:
        yield model


@pytest.fixture
def fresh(decoder):
    """Answers a request with empty caches and no other requests."""

    def answer(request, **options):
        scheduler = Scheduler(decoder, 1, **options)
        try:
            answer = scheduler.submit(request)
            return answer, facts(answer)
        finally:
            scheduler.close()

    return answer


def facts(answer):
    """Everything that must not depend on what else runs; log probabilities differ if a bit of the logits does."""
    return answer.text, answer.tokens, answer.logprobs, answer.finish_reason


def ask(prompt=TEXT, **changes):
    fields = {"max_tokens": 24, "ignore_eos": True, "logprobs": 2, **changes}
    return GenerationRequest(prompt, **fields)


def test_runs_of_a_few_tokens_compute_what_single_ones_do(decoder):
    assert decoder.description.few == places.FEW
    assert decoder.description.context == CONTEXT and decoder.description.digest


# --- texts


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_pieces_are_whole_characters_and_join_to_the_text(model, temperature):
    options = dict(max_tokens=80, temperature=temperature, seed=5, ignore_eos=True)
    pieces = list(model.generate(TEXT, stream=True, **options))
    answer = model.submit(TEXT, **options)
    assert len(pieces) > 5 and all(pieces)
    assert "".join(pieces) == answer.text == model.tokens.decode(answer.tokens) == model.generate(TEXT, **options)
    assert answer.finish_reason == "length" and len(answer.tokens) == 80
    assert [p.tokens for p in answer] == [p.tokens for p in answer] and all(p.tokens for p in answer)


def test_a_stop_may_be_a_special_token(model):
    bias = dict(ignore_eos=True, max_tokens=60)
    bias["sampling"] = Sampling(temperature=1.0, seed=1, logit_bias=((1, 2.0), (2, 2.0)))  # <|user|>, <|assistant|>
    whole = model.submit(ask(**bias))
    tokens, user = whole.tokens, SPECIAL.index("<|user|>")
    at = tokens.index(user)
    assert at > 0 and "<|" not in whole.text
    answer = model.submit(ask(**bias, stop=("<|user|>",)))
    assert answer.wait(60) and answer.finish_reason == "stop" and answer.tokens == tokens[: at + 1]
    assert answer.text == model.tokens.decode(tokens[:at])
    character = next(c for c in model.tokens.decode(tokens[:at])[::-1] if c != "\ufffd")
    later = model.submit(ask(**bias, stop=(f"{character}<|user|>", "<|user|>" + character)))
    assert later.text in whole.text and "<|" not in later.text
    other = model.submit(ask(**bias, stop=("<|user|>?!",)))
    assert other.text == whole.text and other.finish_reason == "length"


def test_a_stop_ends_the_text_wherever_pieces_end(model):
    whole = model.generate(TEXT, max_tokens=60, ignore_eos=True)
    for begin in range(4, 30, 3):
        for length in (1, 2, 5):
            stop = whole[begin : begin + length]
            at = whole.find(stop)
            pieces = list(model.generate(TEXT, stream=True, stop=["never", stop], max_tokens=60, ignore_eos=True))
            assert "".join(pieces) == whole[:at]
            answer = model.submit(TEXT, stop=stop, max_tokens=60, ignore_eos=True)
            assert answer.text == whole[:at] and answer.finish_reason == "stop"
    assert model.generate(TEXT, stop=whole[-1] + "?", max_tokens=60, ignore_eos=True) == whole


def test_a_token_ends_an_answer(model):
    tokens = model.submit(ask()).tokens
    answer = model.submit(ask(stop_tokens=(tokens[5],)))
    first = tokens.index(tokens[5])
    assert answer.wait(60)
    assert answer.finish_reason == "stop" and answer.tokens == tokens[: first + 1]
    assert answer.text == model.tokens.decode(tokens[:first]) and answer.usage.completion == first + 1


def test_messages_go_through_the_template(model):
    prompt = model.chat_prompt(MESSAGES)
    assert prompt == "<|user|>A cache?<|end|><|assistant|>"
    ids = tuple(model.tokens.encode(prompt, special=False))
    assert ids[0] == SPECIAL.index("<|user|>")
    options = dict(max_tokens=10, ignore_eos=True)
    assert model.generate(MESSAGES, **options) == model.submit(GenerationRequest(ids, **options)).text


# --- sampling


def test_equal_seeds_give_equal_answers_whatever_else_runs(model, fresh):
    requests = [ask(TEXT[i:], sampling=Sampling(temperature=1.2, top_k=50, top_p=0.95, seed=i)) for i in range(8)]
    alone = [fresh(r)[1] for r in requests]
    together = [model.submit(r) for r in requests]
    assert [facts(a) for a in together] == alone
    assert len({a.tokens for a in together}) == 8
    other = [model.submit(ask(sampling=Sampling(temperature=1.2))).tokens for _ in range(3)]
    assert len(set(other)) > 1


def test_log_probabilities_are_those_of_the_logits(model, decoder):
    answer = model.submit(ask(logprobs=3, sampling=Sampling(temperature=1, top_k=3, seed=1, repetition_penalty=1.3)))
    sequence, new = decoder.state(), decoder.tokens.encode(TEXT)
    for entry in answer.logprobs:
        logits = sequence.extend(new).astype(np.float64)
        new = [entry.token]
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        np.testing.assert_allclose(entry.logprob, expected[entry.token], rtol=1e-4)
        assert [t for t, _ in entry.top] == list(np.argsort(-expected, kind="stable")[:3])
    assert len(answer.logprobs) == 24 and all(len(e.top) == 3 for e in answer.logprobs)


# --- several at once


def test_eight_threads_get_what_each_gets_alone(model, fresh):
    requests = [ask(TEXT[i:] + TEXT * (i % 4), max_tokens=10 + 5 * i) for i in range(8)]
    alone = [fresh(r)[1] for r in requests]
    got = [None] * 24

    def client(number):
        for i in range(3):
            k = number * 3 + i
            got[k] = facts(model.submit(requests[k % 8]))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == alone * 3


def test_long_prompts_let_others_go_on(decoder):
    scheduler = Scheduler(decoder, 2)
    seen = []
    step = scheduler.places.batch.step
    scheduler.places.batch.step = lambda tokens: seen.append(len(tokens)) or step(tokens)
    first = scheduler.submit(ask("A", max_tokens=60))
    next(iter(first))
    second = scheduler.submit(ask(tuple(range(3, 300)), max_tokens=2))
    second.wait()
    assert first.wait(60) and sum(n == 1 for n in seen) >= 3  # steps of the first between parts of the second's prompt
    scheduler.close()


def test_a_cancelled_answer_ends_and_its_place_is_free(decoder):
    scheduler = Scheduler(decoder, 1)
    answer = scheduler.submit(ask(max_tokens=None))
    waiting, gone = (scheduler.submit(ask(max_tokens=3)) for _ in range(2))
    gone.cancel()
    for i, _ in enumerate(answer):
        if i == 3:
            answer.cancel()
    assert answer.finish_reason == "cancelled" and 4 <= answer.usage.completion < CONTEXT - 100
    assert waiting.text and waiting.finish_reason == "length"
    assert gone.text == "" and gone.finish_reason == "cancelled"
    scheduler.close()


def test_an_iterator_that_is_closed_cancels(decoder):
    with pelton.LanguageModel(decoder, sequences=1) as model:
        texts = model.generate(TEXT, stream=True, max_tokens=None, ignore_eos=True)
        next(texts)
        texts.close()
        assert model.generate(TEXT, max_tokens=2, ignore_eos=True)
    with pytest.raises(InputError, match="this language model is closed"):
        model.generate(TEXT)


# --- caches of earlier answers


def test_a_prompt_that_begins_like_an_earlier_one_goes_on_from_its_caches(decoder, fresh):
    scheduler = Scheduler(decoder, 2)
    history = tuple(decoder.tokens.encode(TEXT))
    first = scheduler.submit(ask(history))
    longer = ask((*history, *first.tokens, *range(10, 40)))
    again = scheduler.submit(longer)
    assert facts(again) == fresh(longer)[1]
    assert again.usage.cached == len(history)  # the answer itself, which other kernels computed, is not reused
    other = ask((*history[:40], *range(50, 80)))
    assert facts(scheduler.submit(other)) == fresh(other)[1]
    again = scheduler.submit(longer)
    assert again.wait(60) and again.usage.cached > len(history)  # the other one took a place of its own
    scheduler.close()


def test_while_nothing_runs_answers_become_prompts(decoder, fresh):
    scheduler = Scheduler(decoder, 1)
    history = tuple(decoder.tokens.encode(TEXT))
    first = scheduler.submit(ask(history))
    longer = ask((*history, *first.tokens, *range(10, 40)))
    place, end = scheduler.places.all[0], time.monotonic() + 60
    while place.exact < len(history) + len(first.tokens) and time.monotonic() < end:
        time.sleep(0.01)
    again = scheduler.submit(longer)
    assert facts(again) == fresh(longer)[1]
    assert again.usage.cached == len(history) + len(first.tokens)
    scheduler.close()


def test_speculation_changes_no_bit_of_an_answer(decoder, fresh):
    drafted = accepted = 0
    for sampling in (Sampling(), Sampling(temperature=0.3, top_k=2, seed=3)):
        for text in (TEXT * 3, "abcabcabc", "the the the"):
            request = ask(text, max_tokens=120, sampling=sampling)
            answer, with_drafts = fresh(request)
            assert with_drafts == fresh(request, speculate=False)[1]
            drafted, accepted = drafted + answer.usage.drafted, accepted + answer.usage.accepted
    assert drafted > accepted > 0


def test_a_session_is_restored_bit_for_bit(decoder, fresh, tmp_path):
    path = tmp_path / "talk.session"
    history = tuple(decoder.tokens.encode(TEXT))
    with pelton.LanguageModel(decoder) as model:
        first = model.submit(ask(history))
        first.wait()
        model.save(path)
    longer = ask((*history, *first.tokens, *range(10, 40)))
    with pelton.LanguageModel(decoder) as model:
        model.restore(path)
        again = model.submit(longer)
        assert facts(again) == fresh(longer)[1]
        assert again.usage.cached == len(history) + len(first.tokens)
        content = bytearray(path.read_bytes())
        with np.load(path) as f:
            arrays = dict(f)
        for change, message in (
            ({"digest": np.array("other")}, "a session of another model"),
            ({"0.tokens": arrays["0.tokens"][:5]}, "holds no session of this model: 'past.0.key'"),
            ({"0.tokens": arrays["0.tokens"] + VOCABULARY}, "its tokens are not those of this model"),
            ({"more": np.zeros(1 << 22)}, "is larger than all caches"),
        ):
            np.savez(tmp_path / "x.npz", **{**arrays, **change})
            with pytest.raises(InputError, match=message):
                model.restore(tmp_path / "x.npz")
        for cut in (10, len(content) // 2, len(content) - 5):
            path.write_bytes(content[:cut])
            with pytest.raises(InputError, match="holds no session"):
                model.restore(path)


# --- without Python


def test_a_program_in_c_makes_the_same_tokens(decoder, fresh, tmp_path):
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    source = Path(__file__).parents[1] / "examples" / "native" / "generate.c"
    libs = [f"-I{FOLDER}", f"-L{FOLDER}", "-lpelton", f"-Wl,-rpath,{FOLDER}"]
    subprocess.run(
        [compiler, str(source), "-O1", "-Wall", "-Werror", *libs, "-o", str(tmp_path / "generate")], check=True
    )
    decoder.engine.save(tmp_path / "model.pelton")
    for prompt in (decoder.tokens.encode(TEXT), [7]):
        command = [str(tmp_path / "generate"), str(tmp_path / "model.pelton"), "24", *map(str, prompt)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert tuple(map(int, done.stdout.split())) == fresh(ask(tuple(prompt)))[1][1]
    for wrong, message in (("0 7", "COUNT is"), ("x 7", "COUNT is"), ("2 -1", "tokens are"), ("2 7 abc", "tokens are")):
        done = subprocess.run([*command[:2], *wrong.split()], capture_output=True, text=True)
        assert done.returncode == 1 and message in done.stderr


# --- schemas


def test_answers_match_their_schemas(model):
    pytest.importorskip("llguidance", reason="constrained answers need the package llguidance")
    digits = {"type": "string", "pattern": "^[0-9]{3}$"}
    schema = {"type": "object", "properties": {"a": digits, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
    schema["additionalProperties"] = False
    sampling = dict(temperature=1, max_tokens=400)
    for seed in range(4):
        answer = model.submit(
            "A", schema={**schema, "x-guidance": {"whitespace_flexible": False}}, seed=seed, **sampling
        )
        value = json.loads(answer.text)
        assert len(value["a"]) == 3 and value["b"] in ("x", "y") and answer.finish_reason == "stop"
    assert model.generate("A", schema="regex:(red|green) [0-9]", seed=1, **sampling)[:-1] in ("red ", "green ")
    for bad, message in (
        ({"type": "other"}, "schema cannot be read"),
        ("regex:(", "schema cannot be read"),
        ("(a|b)", "a text that begins with regex: or lark:"),
    ):
        with pytest.raises(InputError, match=message):
            model.submit("A", schema=bad)


# --- errors


def test_a_prompt_longer_than_the_cache_is_one_sentence(model):
    with pytest.raises(InputError, match=r"the prompt has 600 tokens, and the cache has room for 512, one of them"):
        model.submit(GenerationRequest((5,) * 600))
    answer = model.submit(GenerationRequest((5,) * 500, ignore_eos=True))
    assert answer.finish_reason is None and len(answer.tokens) == 12 and answer.finish_reason == "length"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": -1}, "temperature is a number from 0 to 100, got -1"),
        ({"top_p": float("nan")}, "top_p is a number from 0 to 1, got nan"),
        ({"top_k": 1.5}, "top_k is an integer from 0 on"),
        ({"max_tokens": 0}, "max_tokens is an integer from 1 on"),
        ({"logprobs": 1000}, "logprobs is an integer from 0 to 100"),
        ({"stop": [""]}, "texts that are not empty"),
    ],
)
def test_wrong_options_are_rejected(model, options, message):
    with pytest.raises(InputError, match=message):
        model.generate("A", **options)
    with pytest.raises(TypeError, match="generate has no argument 'temprature'"):
        model.generate("A", temprature=1)


def test_tokens_and_prompts_that_are_none(model):
    with pytest.raises(InputError, match=f"tokens of this model are 0 to {VOCABULARY - 1}, got 999"):
        model.submit(GenerationRequest((999,)))
    with pytest.raises(InputError, match="the prompt has no tokens"):
        model.generate("")
    for messages in ([], {"role": "user"}, 7):
        with pytest.raises(InputError, match="a prompt is a text, or a list of messages"):
            model.generate(messages)


def test_a_sequence_without_numbers_fails_alone(decoder, fresh):
    scheduler = Scheduler(decoder, 4)
    good = ask(max_tokens=40)
    run = decoder.runner.run

    def damaged(state, ids, lengths, rows, *more):
        if marked in ids:
            raise ModelError("the model computed logits that are NaN at token 7; its file is damaged")
        return run(state, ids, lengths, rows, *more)

    expected = fresh(good)[1]
    marked = next(i for i in range(VOCABULARY) if i not in {*decoder.tokens.encode(TEXT), *expected[1]})
    decoder.runner.run = damaged
    try:
        answers = [scheduler.submit(good), scheduler.submit(ask((5, marked))), scheduler.submit(good)]
        with pytest.raises(ModelError, match="NaN"):
            _ = answers[1].text
        assert answers[1].finish_reason == "error"
        assert [facts(answers[i]) for i in (0, 2)] == [expected] * 2
    finally:
        del decoder.runner.run
    assert facts(scheduler.submit(good)) == expected
    scheduler.close()
