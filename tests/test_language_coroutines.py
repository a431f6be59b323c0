"""Answers of language models in coroutines: texts, encoding in a thread, cancellation."""

from __future__ import annotations

import asyncio
import threading

import pytest
from language_models import TEXT, write_model

import pelton
from pelton.errors import InputError

MESSAGES = [{"role": "user", "content": "A cache?"}]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("language") / "model")
    return pelton.language.open(folder, threads=2, context=512)


def test_coroutines_read_answers_too(decoder):
    model = pelton.LanguageModel(decoder, sequences=8)

    async def both():
        options = dict(max_tokens=30, ignore_eos=True)
        texts = [text async for text in model.agenerate(TEXT, stream=True, **options)]
        return (
            texts,
            await model.agenerate(TEXT, **options),
            await asyncio.gather(*(model.agenerate(TEXT[i:], **options) for i in range(6))),
        )

    texts, text, several = asyncio.run(both())
    assert "".join(texts) == text == several[0]
    assert several == [model.generate(TEXT[i:], max_tokens=30, ignore_eos=True) for i in range(6)]
    model.close()


def test_coroutines_encode_in_a_thread_and_a_cancelled_one_leaves_no_answer(decoder):
    with pelton.LanguageModel(decoder, sequences=1) as model:
        text = model.generate(MESSAGES, max_tokens=4)
        submit, answers = model.submit, list[pelton.language.Answer]()

        async def all():
            loop = asyncio.get_running_loop()

            def slow(*args, **options):
                ran = threading.Event()
                loop.call_soon_threadsafe(ran.set)
                assert ran.wait(30), "the event loop waits for the tokenizer"
                answers.append(submit(*args, **options))
                return answers[-1]

            model.submit = slow
            assert await model.agenerate(MESSAGES, max_tokens=4) == text
            with pytest.raises(InputError, match="max_tokens"):
                await model.agenerate(MESSAGES, max_tokens=0)
            begun, on = threading.Event(), threading.Event()

            def held(*args, **options):
                begun.set()
                assert on.wait(30)
                return slow(*args, **options)

            model.submit = held
            task = asyncio.ensure_future(model.agenerate(TEXT, max_tokens=400, ignore_eos=True))
            await asyncio.to_thread(begun.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            on.set()

        asyncio.run(all())
        assert answers[-1].wait(60) and answers[-1].finish_reason == "cancelled"
