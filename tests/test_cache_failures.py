"""Unusable caches: no permission, a full disk, or a damaged file is reported once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import pelton
from pelton.cli import main
from pelton.system.cache import Cache
from test_cache import HERE, W, X, small  # noqa: F401  (fixtures)


def said(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "pelton.cache" and r.levelname == "WARNING"]


@pytest.mark.parametrize("made", ["a file", "a folder in a file"])
def test_a_cache_that_cannot_be_made_is_told_once(small, tmp_path, caplog, made):
    (tmp_path / "file").write_text("x")
    home = tmp_path / ("file" if made == "a file" else "file/cache")
    for _ in range(2):
        engine = pelton.build(small, level=1, threads=1, cache_dir=home)
        assert np.allclose(engine.run({"x": X})["y"], X @ W, atol=1e-4)
    (text,) = said(caplog)
    assert f"the cache {home} cannot be used (Not a directory)" in text and "PELTON_CACHE_DIR" in text
    assert not [r for r in caplog.records if "cache" in r.getMessage() and r.name != "pelton.cache"]


@pytest.fixture
def foreign(tmp_path):
    """A folder that this process can neither read nor write: of mode 0, and where that keeps nobody out, as it does not
    root, seen without that privilege."""
    home = tmp_path / "foreign"
    home.mkdir()
    home.chmod(0)
    yield home
    home.chmod(0o700)


UNPRIVILEGED = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# capset(2), version 3: no capabilities, so that permissions bind root, too
libc.capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", *[0] * 6))
"""


def without_privileges(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED + program],
        capture_output=True,
        text=True,
        env={**HERE, **environment},
        timeout=300,
    )


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What was said, but for a session's announcement that it builds."""
    return [line for line in done.stderr.splitlines() if not line.startswith("building an engine for ")]


def test_a_cache_that_cannot_be_read(small, tmp_path, foreign):
    """As with the HOME of another user: a build and a session work, and say once what that costs."""
    build = (
        f"from pelton.cli import main\nsys.exit(main(['build', {small!r}, '-o', {str(tmp_path / 'e.pelton')!r},"
        " '--level', '1', '--threads', '1']))"
    )
    done = without_privileges(build, HOME=str(foreign), XDG_CACHE_HOME="", PELTON_CACHE_DIR="")
    assert done.returncode == 0 and (tmp_path / "e.pelton").exists(), done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "cache" in line]
    assert warning.startswith(f"warning: the cache {foreign}/.cache/pelton cannot be used (Permission denied)")
    session = f"import pelton\nprint(pelton.InferenceSession({small!r}).get_inputs()[0].shape)"
    done = without_privileges(session, PELTON_CACHE_DIR=str(foreign / "mine"), PELTON_LEVEL="0")
    assert done.returncode == 0 and done.stdout == "[2, 48]\n" and len(warnings(done)) == 1, done.stderr
    named = build.replace("'--level'", f"'--timing-cache', {str(foreign / 't.json')!r}, '--level'")
    done = without_privileges(named, PELTON_CACHE_DIR=str(tmp_path / "cache"))
    assert (
        done.returncode == 2
        and "Traceback" not in done.stderr
        and "Permission denied; use another file with --timing-cache" in done.stderr
    )


FULL = """
import resource, signal, sys
import pelton
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from pelton.system import files
real = files.make
def make(path, put, **more):
    def limited(handle):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
        try:
            put(handle)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    real(path, limited, **more)
files.make = make
"""


def test_a_full_disk_is_told_once_and_leaves_nothing(small, tmp_path):
    """No entry fits (a limit on the size of files stands for the disk), and the work goes on."""
    program = (
        FULL + f"print(pelton.build({small!r}, level=1, threads=1).steps != (),"
        f" pelton.InferenceSession({small!r}).get_inputs()[0].shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**HERE, "PELTON_CACHE_DIR": str(tmp_path), "PELTON_LEVEL": "0"},
    )
    assert done.returncode == 0 and done.stdout == "True [2, 48]\n", done.stderr
    assert done.stderr.count("cannot be used (File too large)") == 1 and len(warnings(done)) == 1, done.stderr
    assert not [e for e in Cache(tmp_path).entries() if e.size]


@pytest.mark.parametrize("made", ["a file", "no place for a folder"])
def test_a_cache_that_cannot_be_used_is_shown_so(tmp_path, monkeypatch, capsys, made):
    (tmp_path / "file").write_text("x")
    home = str(tmp_path / "file") if made == "a file" else "/proc/nope"
    monkeypatch.setenv("PELTON_CACHE_DIR", home)
    why = "File exists" if made == "a file" else "No such file or directory"
    said = f"the cache {home} cannot be used ({why})"
    for command in (["cache", "info"], ["doctor"]):
        assert main(command) == 0
        shown = capsys.readouterr().out
        assert said in shown and "PELTON_CACHE_DIR" in shown and "of at most" not in shown
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found if command[0] == "cache" else found["cache"])["problem"].startswith(said)


def test_a_cache_that_can_be_used_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert main(["cache", "info"]) == 0 and "nothing yet" in capsys.readouterr().out
    assert not (tmp_path / "a").exists()


def test_a_session_promises_no_engine_that_is_not_kept(small, tmp_path, foreign):
    """As on a root that is read-only: the folder is there, and nothing can be put into it."""
    (tmp_path / "kept" / "sessions").mkdir(parents=True)
    (tmp_path / "kept" / "sessions").chmod(0o500)
    (tmp_path / "kept").chmod(0o500)
    session = f"import pelton\npelton.InferenceSession({small!r})"
    for home, promised in ((tmp_path / "kept", False), (foreign, False), (tmp_path / "cache", True)):
        done = without_privileges(session, PELTON_CACHE_DIR=str(home), PELTON_LEVEL="0")
        assert done.returncode == 0 and "building an engine" in done.stderr, done.stderr
        assert ("the next session will find it" in done.stderr) is promised, done.stderr
        assert ("it is not kept for the next session" in done.stderr) is not promised


def test_damaged_times_are_taken_anew(small, tmp_path, caplog):
    pelton.build(small, level=1, threads=1, cache_dir=tmp_path)
    (times,) = (tmp_path / "times").iterdir()
    for damaged in ("{", '{"version": 1, "times": [3]}'):
        times.write_text(damaged)
        caplog.clear()
        pelton.build(small, level=1, threads=1, cache_dir=tmp_path)
        assert caplog.text.count("are taken anew") == 1 and json.loads(times.read_text())["times"]
    shutil.rmtree(tmp_path / "times")
    (tmp_path / "times").write_text("no folder")
    pelton.build(small, level=1, threads=1, cache_dir=tmp_path)


def test_a_cache_that_cannot_be_looked_at_is_one_sentence(small, foreign):
    done = without_privileges(
        "from pelton.cli import main\nsys.exit(main(['cache', 'info']))", PELTON_CACHE_DIR=str(foreign)
    )
    assert (
        done.returncode == 2
        and done.stdout == ""
        and done.stderr.startswith(f"error: the cache {foreign} cannot be read: Permission denied")
    )
    assert done.stderr.count("\n") == 1
