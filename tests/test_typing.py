"""The public interface under type checkers."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pelton.build_options import BuildOptions
from pelton.options import Options

ROOT = Path(__file__).parents[1]
USAGE = ROOT / "tests" / "typing" / "usage.py"
STRICT = ("-m", "mypy", "--strict", "--ignore-missing-imports", "--config-file=", "--follow-imports=silent")
# for examples, of packages that are not installed or have no types; usage.py is without these
UNTYPED = ("--allow-subclassing-any", "--allow-untyped-decorators", "--allow-untyped-calls", "--no-warn-return-any")


def test_keywords_of_build_are_the_options():
    fields = {f.name: f.type for f in dataclasses.fields(Options) if f.name != "shapes"}
    assert {name: of.__forward_arg__ for name, of in BuildOptions.__annotations__.items()} == fields


def faults_wanted() -> dict[int, str]:
    """Line → what mypy has to say of it."""
    lines = enumerate(USAGE.read_text("utf-8").splitlines(), 1)
    return {i: said for i, line in lines if (said := line.partition("# error: ")[2]) and not line.startswith('"""')}


def test_programs_and_examples_are_checked_as_they_should_be(tmp_path):
    pytest.importorskip("mypy", reason='mypy is not installed: pip install ".[lint]"')
    examples = sorted(map(str, (ROOT / "examples").glob("*.py")))
    done = subprocess.run(
        [sys.executable, *STRICT, *UNTYPED, "--cache-dir", str(tmp_path), str(USAGE), *examples],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )
    found = re.findall(r"^(?:.*/)?(\w+\.py):(\d+): error: (.*)$", done.stdout, re.M)
    wanted = faults_wanted()
    assert [(file, int(line)) for file, line, _ in found] == [("usage.py", i) for i in wanted], (
        done.stdout + done.stderr
    )
    assert all(what.startswith(want) for (*_, what), want in zip(found, wanted.values())), done.stdout


def test_pyright_agrees():
    """Errors where mypy has some, and nowhere else, in programs and examples."""
    program = shutil.which("pyright")
    if program is None:
        pytest.skip("pyright is not installed: make typing")
    command = [program, "--outputjson", "--project", str(USAGE.parent), "--pythonpath", sys.executable]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert found["summary"]["filesAnalyzed"] == 1 + len([*(ROOT / "examples").rglob("*.py")])
    said = {(d["file"], d["range"]["start"]["line"] + 1) for d in found["generalDiagnostics"]}
    assert sorted(said) == [(str(USAGE), i) for i in faults_wanted()], found["generalDiagnostics"]
