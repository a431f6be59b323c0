"""The cache directory: its place, eviction when it grows too large, and builds that survive its failures."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from models import model
from onnx import helper

import pelton
from pelton.system import cache
from pelton.system.cache import Cache
from pelton.cli import main

X, W = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((2, 48), (48, 32)))
HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The path of a model that is built in a moment: y = x · w."""
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    path.write_bytes(
        model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": X.shape}, {"y": (2, 32)}, {"w": W}
        ).SerializeToString()
    )
    return str(path)


def filled(home: Path, *names: str, bytes_of_each: int = 68) -> Cache:
    """A cache with an entry of 100 bytes under each name, the first one unused for longest."""
    made = Cache(home)
    for i, name in enumerate(names):
        made.store("objects", name, b"x" * bytes_of_each)
        os.utime(home / "objects" / name, (when := 1_700_000_000 + i, when))
    return made


def left(home: Path) -> set[str]:
    return {p.name for p in home.rglob("*") if p.is_file() and p.name != cache.LEDGER}


def forever(made: Cache, limit: float, **more) -> list[str]:
    return sorted(os.path.basename(e.path) for e in made.trim(limit, kept=float("inf"), **more))


# --- what goes


def test_the_least_recently_used_go_first(tmp_path):
    made = filled(tmp_path, "a.o", "b.o", "c.o", "d.o")
    assert made.read("objects", "a.o") == b"x" * 68 and made.read("objects", "none.o") is None  # a is used now
    assert forever(made, 400) == [] and forever(made, 250) == ["b.o", "c.o"] and left(tmp_path) == {"a.o", "d.o"}
    assert forever(made, 250) == []


def test_nothing_but_entries_is_ever_removed(tmp_path):
    """The user's own files, in a directory that was given with --cache-dir, stay."""
    made = filled(tmp_path, "ab/a.o")
    mine = [
        tmp_path / "model.pelton",
        tmp_path / "objects" / "notes.txt",
        tmp_path / "sessions" / "sub.onnx",
        tmp_path / "more" / "b.o",
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        os.utime(path, (1, 1))
    assert [os.path.basename(e.path) for e in made.clear()] == ["a.o"] and all(p.read_text() == "mine" for p in mine)


def test_what_is_long_unused_goes_and_with_it_what_killed_processes_left(tmp_path):
    made = filled(tmp_path, "old.o", ".new.o.0123.part", ".old.o.4567.part")
    for name in ("new.o", ".new.o.0123.part"):
        (tmp_path / "objects" / name).write_bytes(b"x")
    assert sorted(os.path.basename(e.path) for e in made.trim(10**6)) == [".old.o.4567.part", "old.o"]
    assert left(tmp_path) == {"new.o", ".new.o.0123.part"}


def test_a_lock_that_somebody_may_wait_for_stays(tmp_path):
    made = filled(tmp_path, "a.o")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "k.lock").touch()
    made.trim(0)
    assert left(tmp_path) == {"k.lock"}


def test_the_directory_is_looked_at_only_where_it_may_be_too_large(tmp_path, monkeypatch):
    looked = []
    real = Cache.entries
    monkeypatch.setattr(Cache, "entries", lambda self: looked.append(1) or real(self))
    made = Cache(tmp_path, 1000)
    for i in range(9):  # 900 bytes; the first time nobody knows what there is
        made.store("objects", f"{i}.o", b"x" * 68)
        made.settle()
    assert len(looked) == 1 and len(left(tmp_path)) == 9
    other = Cache(tmp_path, 1000)  # another process, which sees what the first one added
    other.store("objects", "9.o", b"x" * 168)
    other.settle()
    # 900 of 1000 bytes, so that the next one does not look again
    assert len(looked) == 2 and len(left(tmp_path)) == 8
    made.settle()
    assert len(looked) == 2
    (tmp_path / cache.LEDGER).write_text("what is this")
    made.store("objects", "a.o", b"x")
    made.settle()
    assert len(looked) == 3 and int((tmp_path / cache.LEDGER).read_text().split()[1]) == sum(
        e.size for e in made.entries()
    )


def test_damaged_entries_count_as_none(tmp_path):
    made = filled(tmp_path, "a.o")
    (tmp_path / "objects" / "a.o").write_bytes(b"y" * 100)
    assert made.read("objects", "a.o") is None
    (tmp_path / "objects" / "a.o").write_bytes(b"")
    assert made.read("objects", "a.o") is None


def test_several_may_read_write_and_trim_at_once(tmp_path):
    """Whatever goes meanwhile, a read gives what was stored or nothing, and nobody fails."""
    wrong, done = [], threading.Event()

    def work(seed: int) -> None:
        made, rng = Cache(tmp_path, 3000), np.random.default_rng(seed)
        try:
            while not done.is_set():
                n = int(rng.integers(64))
                made.store("objects", f"{n}.o", b"%d" % n * 50)
                made.settle()
                if (found := made.read("objects", f"{n}.o")) not in (None, b"%d" % n * 50):
                    wrong.append(found)
        except Exception as e:  # to be seen by the thread that asserts
            wrong.append(e)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    done.wait(1)
    done.set()
    for w in workers:
        w.join()
    assert not wrong and not [p for p in tmp_path.rglob("*") if p.name.endswith(".part")]


def test_an_engine_in_use_outlives_its_file(small, tmp_path, monkeypatch):
    """A session runs on though its engine was removed, and the next one builds it again."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PELTON_LEVEL", "0")
    session = pelton.InferenceSession(small)
    first = session.run(None, {"x": X})[0]
    found = pelton.InferenceSession(small)  # mapped from the file
    assert Cache(tmp_path).clear() and not left(tmp_path)
    for s in (session, found, pelton.InferenceSession(small)):
        assert np.array_equal(s.run(None, {"x": X})[0], first)


@pytest.mark.parametrize(
    "text, bytes_",
    [("0", 0), ("800000", 800_000), ("500MB", 5 * 10**8), ("1.5 GB", 15 * 10**8), ("4g", 4 * 10**9), ("2kb", 2000)],
)
def test_sizes(text, bytes_):
    assert cache.parse_size(text) == bytes_


@pytest.mark.parametrize("text", ["", "much", "-1", "4XB", "1.5.2GB", "GB"])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="such as 500MB"):
        cache.parse_size(text)


# --- where it is, and how large


def test_the_environment_says_where_it_is(tmp_path, monkeypatch, small):
    """For builds as for sessions; what is given beats it, and where nothing is, the user's own cache is taken."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "env"))
    pelton.build(small, level=1, threads=1)
    assert [e.part for e in Cache(tmp_path / "env").entries()].count("times") == 1 and not (tmp_path / "xdg").exists()
    pelton.build(small, level=0, cache_dir=tmp_path / "given")
    assert {e.part for e in Cache(tmp_path / "given").entries()} == {"objects"}
    assert cache.directory() == tmp_path / "env"
    monkeypatch.setenv("PELTON_CACHE_DIR", "")
    assert cache.directory() == tmp_path / "xdg" / "pelton"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.directory() == tmp_path / ".cache" / "pelton"


def test_builds_keep_to_the_limit(small, tmp_path, monkeypatch):
    for limits in ({"cache_limit": 2000}, {}):
        monkeypatch.setenv("PELTON_CACHE_LIMIT", "1GB" if limits else "2kB")
        monkeypatch.setattr(cache, "_warned", set())
        home = tmp_path / str(len(limits))
        pelton.build(small, level=1, threads=1, cache_dir=home, **limits)
        assert 0 < sum(e.size for e in Cache(home).entries()) <= 2000
    monkeypatch.setenv("PELTON_CACHE_LIMIT", "much")
    with pytest.raises(pelton.InputError, match="PELTON_CACHE_LIMIT must be a size such as 500MB or 4GB, got 'much'"):
        pelton.build(small, level=0, cache_dir=tmp_path)
    with pytest.raises(pelton.InputError, match="cache_limit"):
        pelton.Options(cache_limit=-1)


def test_a_build_that_finds_everything_keeps_to_the_limit_too(small, tmp_path):
    pelton.build(small, level=0, threads=1, cache_dir=tmp_path)
    assert left(tmp_path)
    pelton.build(small, level=0, threads=1, cache_dir=tmp_path, cache_limit=0)
    assert not left(tmp_path)


def test_sessions_keep_to_the_limit(small, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    options = pelton.SessionOptions()
    options.add_session_config_entry("pelton.level", "0")
    options.add_session_config_entry("pelton.cache_limit", "1kB")
    pelton.InferenceSession(small, options)
    assert sum(e.size for e in Cache(tmp_path).entries()) <= 1000 and "is not kept" in caplog.text
    options.add_session_config_entry("pelton.cache_limit", "lots")
    with pytest.raises(pelton.InputError, match="pelton.cache_limit must be a size"):
        pelton.InferenceSession(small, options)


# --- pelton cache


def test_the_command_says_what_there_is(tmp_path, capsys, monkeypatch, small):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PELTON_CACHE_LIMIT", "2GB")
    assert main(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 0 B of at most 2.00 GB, nothing yet\n"
    monkeypatch.setenv("PELTON_LEVEL", "1")
    pelton.InferenceSession(small)
    assert main(["cache", "info", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["limit"] == 2 * 10**9 and known["bytes"] == sum(p["bytes"] for p in known["parts"].values()) > 0
    assert [part for part, of in known["parts"].items() if of["files"]] == ["objects", "times", "sessions"]
    assert main(["cache", "info"]) == 0
    said = capsys.readouterr().out
    assert "compiled kernels" in said and re.search(r"times of kernels +1 file +\d+ B  last used today", said)


def test_the_command_makes_it_smaller(tmp_path, capsys):
    made = filled(tmp_path, "a.o", "b.o", "c.o")
    where = ["--cache-dir", str(tmp_path)]
    for name in ("a.o", "b.o", "c.o"):
        assert made.read("objects", name)  # used just now
    os.utime(tmp_path / "objects" / "b.o", (1, 1))
    assert main(["cache", "prune", "--limit", "1kB", "--unused", "36500", *where]) == 0 and left(tmp_path) == {
        "a.o",
        "b.o",
        "c.o",
    }
    assert main(["cache", "prune", *where]) == 0 and left(tmp_path) == {"a.o", "c.o"}
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path}: 1 file (100 B) removed, 2 files (200 B) left"
    assert main(["cache", "prune", "--limit", "150B", *where]) == 0 and left(tmp_path) == {"c.o"}
    assert main(["cache", "clear", *where]) == 0 and left(tmp_path) == set()


@pytest.mark.parametrize(
    "args, why",
    [
        (["info", "--limit", "1GB"], "prune"),
        (["prune", "--limit", "lots"], "500MB"),
        (["shrink"], "shrink"),
    ],
)
def test_what_the_command_refuses(refused, args, why):
    assert why in refused("cache", *args)
