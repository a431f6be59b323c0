"""`pelton doctor`: its findings here, on other machines, and with missing parts."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton import variables
from pelton.backends.cpu import machine
from pelton.cli import doctor, main
from pelton.compat.session import config

from models import small_cnn


def said(capsys, *given: str, status: int = 0) -> str:
    assert main(["doctor", *given]) == status
    return capsys.readouterr().out


def test_what_is_here(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    for name in ("jax", "paddle"):  # the latter is not complete
        python = tmp_path / "environments" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(0o755)
    (tmp_path / "environments" / "jax" / "versions.json").write_text("{}")
    found = json.loads(said(capsys, "--json"))
    known = machine.describe()
    assert found["pelton"] == pelton.__version__ and found["cpu"]["model"] == known["model"]
    assert found["cpu"]["target"] == f"cpu:{pelton.targets.best(known)}" and found["memory"]["installed"]
    assert found["compiler"]["version"].startswith("clang") and found["environment"]["PELTON_CACHE_DIR"] == str(
        tmp_path
    )
    assert found["frameworks"] == {
        "tensorflow": None,
        "jax": str(tmp_path / "environments" / "jax" / "bin" / "python"),
        "paddle": None,
    }
    runs = next(u for u in found["uses"] if u["use"] == "run engines")
    assert runs == {"use": "run engines", "packages": {"numpy": np.__version__}, "missing": [], "mend": None}
    text = said(capsys)
    assert all(word in text for word in (known["model"], found["cpu"]["target"], found["compiler"]["version"]))


def test_what_is_missing_comes_with_its_mend(capsys, monkeypatch):
    plain = doctor.fits.installed
    monkeypatch.setattr(
        doctor.fits, "installed", lambda package: None if package in ("onnx", "rich") else plain(package)
    )
    lines = said(capsys).splitlines()
    assert any(
        line.startswith("no   build engines ") and line.endswith('pip install "pelton[build]"') for line in lines
    )
    assert any(line.startswith("yes  run engines ") for line in lines)


def test_uses_ask_for_packages_of_the_extras():
    """Names of distributions, which the mend installs by itself or as an extra."""
    extras = " ".join(metadata.requires("pelton") or ())
    assert not [p for use in doctor.USES for p in use.packages if p not in extras + use.mend]


def test_a_cpu_that_runs_no_engines(capsys, cpu_of):
    cpu_of("x86_64_v2")
    found = json.loads(said(capsys, "--json", status=1))
    assert "level x86_64_v3" in found["cpu"]["problem"] and found["cpu"]["isa"] == "x86_64_v2"
    assert "cpu: engines need a CPU of level x86_64_v3; this one lacks avx, avx2" in said(capsys, status=1)


def test_limits_and_problems_are_told(capsys, monkeypatch):
    from pelton.system import share

    monkeypatch.setattr(share, "quota", lambda: 1.5)
    monkeypatch.setattr(share, "memory_limit", lambda: 2 * 10**9)
    monkeypatch.setenv("PELTON_CACHE_LIMIT", "much")
    text = said(capsys)
    assert "limited by the control group to 1.5" in text and "limited to 2.00 GB" in text
    assert "cache: PELTON_CACHE_LIMIT must be a size" in text and "PELTON_CACHE_LIMIT  much" in text


def test_variables_that_nothing_reads(capsys, monkeypatch, caplog):
    """They are shown, and a build or a session warns of them once; tests have some of their own."""
    monkeypatch.setattr(variables, "_warned", set())
    monkeypatch.setenv("PELTON_LEVL", "0")
    monkeypatch.setenv("PELTON_TEST_X", "0")
    monkeypatch.setenv("PELTON_LEVEL", "0")
    assert json.loads(said(capsys, "--json"))["unknown"] == ["PELTON_LEVL"]
    shown = said(capsys)
    assert (
        "0: there is no such variable (did you mean 'PELTON_LEVEL'?)\n" in shown and shown.count("no such variab") == 1
    )
    warning = "there is no environment variable PELTON_LEVL (did you mean 'PELTON_LEVEL'?): it has no effect"
    assert not caplog.text
    model = small_cnn()
    for use in (lambda: pelton.build(model, level=0), lambda: pelton.InferenceSession(model.SerializeToString())):
        variables._warned.clear()
        caplog.clear()
        use(), use()
        assert caplog.text.count(warning) == 1


def test_variables_are_those_of_sessions_and_of_the_table():
    page = (Path(__file__).parents[1] / "docs" / "options.md").read_text()
    of_sessions = {f"PELTON_{name.upper()}" for name in (*config.READERS, *config.RENAMED.values())}
    assert of_sessions <= {*variables.VARIABLES}
    assert {*re.findall(r"`(PELTON_\w+)`", page)} == {*variables.VARIABLES} - {"PELTON_USUAL"}


@pytest.mark.parametrize("given", [["x"], ["--fix"]])
def test_nothing_else_is_taken(capsys, given):
    with pytest.raises(SystemExit):
        main(["doctor", *given])
    assert "unrecognized arguments" in capsys.readouterr().err
