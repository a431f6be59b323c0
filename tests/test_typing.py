"""What type checkers see of the public interface."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pelton.options import BuildOptions, Options

USAGE = Path(__file__).parent / "typing" / "usage.py"


def test_keywords_of_build_are_the_options():
    fields = {f.name: f.type for f in dataclasses.fields(Options) if f.name != "shapes"}
    assert {name: of.__forward_arg__ for name, of in BuildOptions.__annotations__.items()} == fields


def test_programs_are_checked_as_they_should_be(tmp_path):
    pytest.importorskip("mypy", reason='mypy is not installed: pip install ".[lint]"')
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "mypy", "--strict", "--ignore-missing-imports", "--config-file=", "--no-error-summary"),
            *("--cache-dir", str(tmp_path), "--follow-imports=silent", str(USAGE)),
        ],
        capture_output=True,
        text=True,
        cwd=USAGE.parents[2],
    )
    said = {int(line): what for line, what in re.findall(r"^[^:]*usage\.py:(\d+): error: (.*)$", done.stdout, re.M)}
    wanted = {
        i: line.partition("# error: ")[2]
        for i, line in enumerate(USAGE.read_text("utf-8").splitlines(), 1)
        if line.rpartition("`")[2].count("# error: ")
    }
    assert said.keys() == wanted.keys() and wanted, done.stdout + done.stderr
    assert all(said[i].startswith(wanted[i]) for i in said), done.stdout
