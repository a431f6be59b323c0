"""`pelton generate` and `pelton chat`."""

from __future__ import annotations

import json
import sys

import pytest
from language_models import TEXT, write_model
from test_cli_json import SCHEMAS, faults

import pelton
from pelton.cli import main

OPTIONS = ["--threads", "2", "--context", "512", "--max-tokens", "12"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("language") / "model")


@pytest.fixture(scope="module")
def model(folder):
    with pelton.LanguageModel(folder, threads=2, context=512) as model:
        yield model


def typed(monkeypatch, text):
    class Typed:
        lines = iter(text.splitlines(keepends=True))

        def isatty(self):
            return False

        def readline(self, *_):
            return next(self.lines, "")

        def read(self):
            return "".join(self.lines)

    monkeypatch.setattr(sys, "stdin", Typed())


def test_generate_prints_the_answer(capsys, folder, model, monkeypatch, tmp_path):
    assert main(["generate", str(folder), TEXT, *OPTIONS]) == 0
    assert capsys.readouterr().out.rstrip("\n") == model.generate(TEXT, max_tokens=12).rstrip("\n")
    typed(monkeypatch, TEXT)
    flags = ["--temperature", "1.1", "--top-k", "30", "--top-p", "0.9", "--min-p", "0.01", "--seed", "7", "--json"]
    engine = tmp_path / "x.pelton"
    assert main(["generate", str(folder), *OPTIONS, *flags, "--system", "Be", "-", "--save-engine", str(engine)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert not faults(SCHEMAS["generate.json"], result)
    messages = [{"role": "system", "content": "Be"}, {"role": "user", "content": TEXT}]
    sampling = dict(temperature=1.1, top_k=30, top_p=0.9, min_p=0.01, seed=7)
    assert result["text"] == model.generate(messages, max_tokens=12, **sampling)
    assert result["finish_reason"] in ("length", "stop") and result["tokens"]["completion"] <= 12
    assert 0 < result["seconds"]["first"] <= result["seconds"]["all"] and result["seconds"]["open"] > 0
    assert [p.name for p in pelton.load(engine).inputs] == [p.name for p in model.decoder.engine.inputs]


def test_sessions_are_files(capsys, folder, tmp_path):
    arguments = ["generate", str(folder), TEXT, *OPTIONS, "--session", str(tmp_path / "s"), "--json"]
    cached = []
    for _ in range(2):
        assert main(arguments) == 0
        cached.append(json.loads(capsys.readouterr().out)["tokens"]["cached"])
    assert cached[0] == 0 < cached[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--schema", "nothing.json"], "there is no schema nothing.json"),
        (["--schema", "regex:("], "schema cannot be read"),
        (["--temperature", "-1"], "temperature is a number from 0 to 100"),
        (["--context", "5000"], "context is a number of tokens from 2 to 1100"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, folder, arguments, message):
    if "regex:(" in arguments:
        pytest.importorskip("llguidance", reason="constrained answers need the package llguidance")
    assert main(["generate", str(folder), "A", *OPTIONS, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["generate", "A", "--temperature", "2000"], "temperature is a number from 0 to 100, got 2000.0"),
        (["chat", "--top-p", "nan"], "top_p is a number from 0 to 1, got nan"),
        (["generate", "A", "--session", "nowhere/a"], "nowhere/a cannot be written: there is no folder"),
        (["generate", "A", "--save-engine", "nowhere/a"], "nowhere/a cannot be written: there is no folder"),
    ],
)
def test_wrong_arguments_build_no_engine(capsys, folder, arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pelton.language.model.open", lambda *args, **options: pytest.fail("opened"))
    assert main([arguments[0], str(folder), *arguments[1:]]) == 2
    assert message in capsys.readouterr().err


def test_chat_keeps_the_history(capsys, folder, model, monkeypatch, tmp_path):
    first = [{"role": "user", "content": "One"}]
    answers = [model.generate(first, max_tokens=12)]
    second = [*first, {"role": "assistant", "content": answers[0]}, {"role": "user", "content": "Two"}]
    answers.append(model.generate(second, max_tokens=12))
    path = tmp_path / "talk.json"
    typed(
        monkeypatch,
        f"One\nTwo\n/save {path}\n/undo\nTwo\n/reset\nOne\n/load {path}\n/undo\nTwo\n/bad\n/save\n/quit\nno",
    )
    assert main(["chat", str(folder), *OPTIONS]) == 0
    shown = capsys.readouterr()
    ended = [a if a.endswith("\n") else a + "\n" for a in answers]
    assert shown.out == "".join(ended[i] for i in (0, 1, 1, 0, 1))
    assert "there is no /bad; /help lists" in shown.err and "/save needs the name of a file" in shown.err
    assert "tokens a second]" in shown.err and path.with_name("talk.json.session").is_file()
    messages = json.loads(path.read_text())["messages"]
    assert messages == [*second, {"role": "assistant", "content": answers[1]}]


def test_an_interrupt_ends_the_answer_and_not_the_program(capsys, folder, monkeypatch):
    from pelton.cli import generate

    shown, interrupted = generate.shown, []

    def interrupt(answer, **options):
        for i, piece in enumerate(shown(answer, **options)):
            yield piece
            if i == 1 and not interrupted:
                interrupted.append(answer)
                raise KeyboardInterrupt

    monkeypatch.setattr(generate, "shown", interrupt)
    typed(monkeypatch, "One\nTwo\n")
    assert main(["chat", str(folder), *OPTIONS[:-1], "200"]) == 0
    assert len(interrupted) == 1 and interrupted[0].finish_reason in ("cancelled", "stop")
    assert capsys.readouterr().err.count("new ones") == 2
