"""The demo: its claims follow from its pictures, in words, in colours and on a page."""

import base64
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest
from test_cli import HERE

from pelton import cli
from pelton.cli import demo, demo_page, main

DATA = resources.files("pelton") / "data"
MODEL = str(DATA / "resnet20_cifar10.onnx")
LABELS = (DATA / "cifar10.txt").read_text().split()


@pytest.fixture(scope="module")
def said(tmp_path_factory, kernel_cache):
    """(what a plain run prints, the page that it writes)"""
    pytest.importorskip("PIL")
    page = tmp_path_factory.mktemp("demo") / "demo.html"
    command = [sys.executable, "-m", "pelton", "demo", "--level", "0", "--html", str(page)]
    env = {**HERE, "PYTHONIOENCODING": "utf-8", "PELTON_CACHE_DIR": str(kernel_cache)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout, page.read_text()


@functools.cache
def as_the_reference_has_it():
    """(classes, answers) by the program's meaning in numpy, not by an engine."""
    from pelton import importers
    from pelton.ir.evaluate import evaluate

    with np.load(DATA / "cifar10_pictures.npz") as found:
        pictures, classes = found["pictures"], found["classes"]
    x = pictures.transpose(0, 3, 1, 2).astype(np.float32)
    graph = importers.load(MODEL, shapes={"image": x.shape}).graph
    return classes, evaluate(graph, {"image": x})["logits"].argmax(1)


def test_what_it_says_is_so(said):
    out, _ = said
    classes, answers = as_the_reference_has_it()
    right = int((classes == answers).sum())
    assert f"{right} of {len(classes)} pictures right, {right / len(classes):.0%}" in out
    for c, label in enumerate(LABELS):
        (line,) = re.findall(rf"^  {label} +(\d+) of (\d+) *(.*)$", out, re.M)
        of = answers[classes == c]
        assert (int(line[0]), int(line[1])) == (int((of == c).sum()), len(of))
        assert line[2] == ", ".join(LABELS[a] for a in of if a != c)
    assert re.search(r"one run: [\d.]+ ms", out) and "\x1b" not in out and demo_page.HALF not in out


def test_the_commands_that_it_names_are_commands(said):
    """Of files that are there; tests of the documents run such ones."""
    calls = re.findall(r"^  (?:\S*/)?(?:python\S* -m )?(pelton .*)$", said[0], re.M)
    lines = [shlex.split(line, comments=True) for line in calls]
    assert [line[1] for line in lines] == ["bench", "explain", "build", "demo"]
    for _, *words in lines:
        args = cli.parser().parse_args(words)
        assert args.command == "demo" or os.path.samefile(args.model, MODEL)


def test_the_page_is_the_explorers_and_holds_everything(said):
    from PIL import Image

    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', said[1], re.S)[1])
    assert len(data["engines"]) == 1 and len(data["engines"][0]["steps"]) > 20
    pictures, (classes, answers) = data["sample"]["pictures"], as_the_reference_has_it()
    assert "default-src 'none'" in said[1] and len(pictures) == len(classes)
    for picture, c, a in zip(pictures, classes, answers):
        assert picture["alt"] == LABELS[c] and picture["caption"].startswith(LABELS[a])
        assert (f"no: {LABELS[c]}" in picture["caption"]) == (a != c) == (not picture["right"])
        kind, png = picture["src"].split(",")
        assert kind == "data:image/png;base64" and Image.open(io.BytesIO(base64.b64decode(png))).size == (32, 32)
    last = said[0].strip().splitlines()[-1]
    assert "demo.html: the engine's steps as a graph" in last and "open file:///" in last


def test_commands_are_called_as_this_shell_finds_them(tmp_path, monkeypatch):
    """By the name alone where that is on the path and is this installation, else by a path."""
    own = os.path.join(os.path.dirname(sys.executable), "pelton")
    if not os.path.exists(own):
        pytest.skip("this Python has no command of its own")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert os.path.samefile(shlex.split(demo.program())[0], own)
    (tmp_path / "pelton").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "pelton").chmod(0o755)
    assert os.path.samefile(shlex.split(demo.program())[0], own), "another one is found first"
    monkeypatch.setenv("PATH", os.path.dirname(own))
    assert demo.program() == "pelton"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none" / "python"))
    monkeypatch.setenv("PATH", "")
    assert demo.program() == f"{sys.executable} -m pelton"


def test_a_terminal_with_colours_sees_the_pictures(monkeypatch, capsys):
    """Each character is two pixels of a picture of half the size; captions stand below their own pictures."""
    pytest.importorskip("rich")
    rng = np.random.default_rng()
    pictures = [(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8), [f"name {i}", ""]) for i in range(3)]
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm", "COLUMNS": "34"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    demo_page.show_in_terminal(pictures)
    out = capsys.readouterr().out
    colours = [tuple(map(int, m)) for m in re.findall(r"38;2;(\d+);(\d+);(\d+)", out)]
    corner = pictures[0][0][:2, :2].astype(float).mean((0, 1)).astype(int)
    assert out.count(demo_page.HALF) == 3 * 16 * 8 and colours[0] == tuple(corner)
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert re.search(r"^name 0 {12}name 1$", plain, re.M) and max(map(len, plain.splitlines())) <= 34
    monkeypatch.setenv("NO_COLOR", "1")
    demo_page.show_in_terminal(pictures)
    assert capsys.readouterr().out == ""


def test_a_picture_of_ones_own(tmp_path, monkeypatch, capsys, refused, kernel_cache):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    assert "cannot be read" in refused("demo", "--picture", "missing.png")
    assert "cannot be read" in refused("demo", "--picture", "")
    assert "not allowed with" in refused("demo", "--picture", "a.png", "--html", "a.html")
    assert "cannot be written" in refused("demo", "--html", "nowhere/a.html")
    with np.load(DATA / "cifar10_pictures.npz") as found:
        ship = found["pictures"][found["classes"] == 8][-1]
    image.fromarray(ship.repeat(3, 0).repeat(3, 1)).save(tmp_path / "p.png")
    assert main(["demo", "--level", "0", "--picture", str(tmp_path / "p.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("probabilities"))
    assert lines[at + 1].split()[1] == "ship"
