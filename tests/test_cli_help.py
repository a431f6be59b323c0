"""The help in groups, the reference made of it, the output of -v, completion in shells, and colours."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import model
from onnx import helper

from pelton.cli import GROUPS, layers, main, manual, parser, terminal, text

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
PLAIN = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def said(capsys, monkeypatch):
    """What --help prints, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def go(*args: str) -> str:
        with pytest.raises(SystemExit, match="0"):
            main([*args, "--help"])
        return capsys.readouterr().out

    return go


def test_help_lists_every_command_in_its_group_in_a_line(said):
    out = said()
    for title, names in parser().groups.items():
        block = re.search(rf"^{title}:\n((?:  .*\n)+)", out, re.M)[1].splitlines()
        assert [line.split()[0] for line in block] == [*names] and all(len(line.split()) > 3 for line in block)
    assert out.index("\nmachine:") < out.index("\noptions:") and "positional" not in out
    assert said() == out and set(parser().groups) == set(GROUPS)


@pytest.mark.parametrize("args", [[], ["build"], ["explain"]])
def test_help_in_colours_says_the_same(said, monkeypatch, args):
    pytest.importorskip("rich_argparse")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = said(*args)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = said(*args)
    # lines break elsewhere, and older Pythons repeat the value for each name of an option
    letters = [re.sub(r"\s", "", PLAIN.sub("", out)).replace("-oFILE,", "-o,") for out in (colored, plain)]
    assert "\x1b[" in colored and "\x1b" not in plain and letters[0] == letters[1]


def test_help_loads_nothing_that_takes_time():
    program = (
        "import sys\nfrom pelton.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'onnx', 'google', 'rich', 'rich_argparse', 'shtab', 'pelton.compiler', 'pelton.importers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_reference_is_of_this_parser():
    page = PAGE.read_text("utf-8")
    assert manual.replaced(page) == page, "write the reference in docs/cli.md again: make cli-docs"
    commands = next(a for a in parser()._actions if a.dest == "command").choices
    for name, command in commands.items():
        section = page.partition(f"\n### pelton {name}\n")[2].partition("\n### ")[0]
        for action in command._actions:
            listed = action.dest not in manual.EVERYWHERE and action.help is not argparse.SUPPRESS
            last = (action.option_strings or [str(action.metavar or action.dest)])[-1].replace("|", "\\|")
            assert not listed or last in section
    assert argparse.SUPPRESS not in page


def test_verbose_tells_what_is_decided_and_more_what_is_refused(capsys, tmp_path, cnn):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="gate"),
        helper.make_node("Mul", ["a", "b"], ["y"], name="times"),
    ]
    w = np.random.default_rng().standard_normal((24, 40)).astype(np.float32)
    (tmp_path / "m.onnx").write_bytes(model(nodes, {"x": (9, 24)}, {"y": (9, 40)}, {"w": w}).SerializeToString())
    given = ["--level", "1", "--cache-dir", str(tmp_path / "cache"), "-o", str(tmp_path / "e.pelton")]
    build = ["build", str(tmp_path / "m.onnx"), *given]
    assert main([*build, "-v"]) == 0
    told = re.findall(r"^info: (.*)$", capsys.readouterr().err, re.M)
    stages = list(dict.fromkeys(line.partition(": ")[0] for line in told))
    assert stages == ["import", "optimize", "fuse", "tune"] and "(swish_parts 1×)" in "".join(told)
    assert re.fullmatch(r"tune: \S+ by gemm:\S+, [\d.]+ µs, of \d+ timed; next gemm:\S+, [\d.]+ µs", told[-1])
    assert main([*build, "-vv"]) == 0
    more = re.findall(r"^debug: (.*)$", capsys.readouterr().err, re.M)
    assert any(re.match(r"tune: \S+ not by gemm:\S+, [\d.]+ µs", line) for line in more)
    assert main(["explain", cnn, "-vv"]) == 0
    assert re.search(r"^debug: optimize: sibling_convolutions not at a: the other", capsys.readouterr().err, re.M)
    assert main([*build, "--level", "0"]) == 0
    assert "info: " not in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completion_prints_a_script(capsys, shell):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("pelton", "import-env", "timing-cache", "entropy"))


def test_bash_completes_commands_options_choices_and_files(capsys, tmp_path):
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "some.onnx").touch()
    lines = [capsys.readouterr().out, f"cd '{tmp_path}'"]
    typed: tuple[str, ...] = (
        "pelton comp",
        "pelton build so",
        "pelton build --calibrator m",
        "pelton cache cl",
        "pelton run so --ou",
    )
    typed += (
        "pelton import-env ja",
        "pelton bench m --vs open",
        "pelton build m --level 3",
        "pelton build m --target cu",
    )
    for words in typed:
        lines.append(f"COMP_WORDS=({words}) COMP_CWORD={len(words.split()) - 1} COMPREPLY=()")
        lines.append('_shtab_pelton; echo "${COMPREPLY[*]}"')
    done = subprocess.run(["bash", "--norc"], input="\n".join(lines), capture_output=True, text=True)
    found = [
        "compare compress completion",
        "some.onnx",
        "minmax mse",
        "clear",
        "--output",
        "jax",
        "openvino",
        "3",
        "cuda",
    ]
    assert done.stdout.splitlines() == found, done.stderr


def test_completion_without_shtab_says_how_to_get_it(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert 'needs the package shtab: pip install "pelton[build]"' in refused("completion", "bash")


def test_slow_steps_and_host_steps_have_colours():
    steps = [
        {"share": share, "tactic": tactic} for share, tactic in ((0.7, "a"), (0.1, "b"), (0.19, "c"), (0.01, "host"))
    ]
    assert layers.styles(steps) == {1: "yellow", 4: "red"}
    many = [{"share": share, "tactic": "a"} for share in (0.12, 0.09, *[0.79 / 28] * 28)]
    assert layers.styles(many) == {1: "yellow"}


@pytest.mark.parametrize(
    "variables, terminal_, colored",
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": ""}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_where_there_are_colours(monkeypatch, variables, terminal_, colored):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal_, raising=False)
    assert terminal.colored(sys.stdout) == colored


def test_a_table_in_colours_has_the_same_cells_and_ends_with_the_terminal(monkeypatch):
    rows = [("name", "n"), ("[bold]a[/]", "1"), ("b" * 50, "1234")]
    monkeypatch.setenv("NO_COLOR", "1")
    plain = text.table(rows, "lr", "  ", styles={2: "red"})
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    wide = text.table(rows, "lr", "  ", styles={2: "red"})
    assert [line.split() for line in PLAIN.sub("", wide).splitlines()] == [line.split() for line in plain.splitlines()]
    assert ["\x1b[31m" in line for line in wide.splitlines()] == [False, False, True]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = PLAIN.sub("", text.table(rows, "lr", "  ", styles={2: "red"})).splitlines()
    assert max(map(len, narrow)) == 40 and len(narrow) == 3 and narrow[2].endswith("…  1234")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert text.table(rows, "lr", "  ", styles={2: "red"}).splitlines() == narrow


def test_texts_give_way_to_numbers(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = [("#", "time", "GFLOP/s", "tactic", "what"), ("12", "4.213 ms", "123.4", "gemm:" + "x" * 30, "conv" * 20)]
    for columns, length in ((80, 80), (40, 40), (34, 34), (10, 33)):
        monkeypatch.setenv("COLUMNS", str(columns))
        heading, row = PLAIN.sub("", text.table(rows, "rrrll")).splitlines()
        assert "12  4.213 ms    123.4  gem" in row and len(row) == length and "…" in row and heading.endswith("what")
