"""Pelton in place of onnxruntime: installed, removed, and for unchanged programs."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pelton
import pelton.onnxruntime
from pelton.onnxruntime import __main__ as command
from pelton.onnxruntime import finder
from test_onnxruntime import SOURCES, W, cache, network, path, right  # noqa: F401  (fixtures)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder on the path with an ONNX Runtime: two modules and a version."""
    home = tmp_path / "site"
    for name, text in (
        ("onnxruntime/__init__.py", "InferenceSession = 'theirs'\n__version__ = '1.0.0'\n"),
        ("onnxruntime/capi/__init__.py", ""),
        (
            "onnxruntime/quantization/__init__.py",
            "from onnxruntime import InferenceSession\nfrom .calibrate import reader\n",
        ),
        ("onnxruntime/quantization/calibrate.py", "import onnxruntime\nreader = onnxruntime.InferenceSession\n"),
        ("onnxruntime-1.0.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: onnxruntime\nVersion: 1.0.0\n"),
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    importlib.invalidate_caches()
    yield home
    pelton.onnxruntime.uninstall()
    for name in finder._imported_modules():
        del sys.modules[name]


def test_pelton_wins_until_it_is_taken_away(beside, caplog):
    assert (
        importlib.import_module("onnxruntime").InferenceSession == "theirs"
        and importlib.metadata.version("onnxruntime") == "1.0.0"
    )
    theirs, capi = sys.modules["onnxruntime"], importlib.import_module("onnxruntime.capi")
    pelton.onnxruntime.install()
    pelton.onnxruntime.install()
    assert "was imported before" in caplog.text
    import onnxruntime

    assert (
        onnxruntime is pelton.onnxruntime
        and importlib.metadata.version("onnxruntime") == onnxruntime.__version__ != "1.0.0"
    )
    assert importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state").Fail is not None
    pelton.onnxruntime.uninstall()
    pelton.onnxruntime.uninstall()
    import onnxruntime

    assert (
        onnxruntime is theirs
        and importlib.import_module("onnxruntime.capi") is capi
        and importlib.metadata.version("onnxruntime") == "1.0.0"
    )
    assert finder.CHILDREN not in sys.path and not [f for f in sys.meta_path if isinstance(f, finder._Finder)]


def test_tools_of_an_onnxruntime_that_is_installed_work_on_pelton(beside):
    pelton.onnxruntime.install()
    from onnxruntime import quantization

    assert quantization.InferenceSession is quantization.reader is pelton.onnxruntime.InferenceSession
    assert quantization.__file__.startswith(str(beside))
    for name in ("quantization.nothing", "tools"):  # which this one does not have
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"onnxruntime.{name}")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES}


def run(*arguments: str, cwd: Path | str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pelton.onnxruntime", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
    )


SCRIPT = """
import sys, multiprocessing, numpy as np, onnxruntime as ort
import beside
def work(path):
    return ort.__name__, ort.InferenceSession(path).run(None, {"x": np.ones((2, 4), np.float32)})[0].sum()
if __name__ == "__main__":
    print(sys.argv[1:], beside.__name__, *work(sys.argv[1]), sys.argv[0])
    if "processes" in sys.argv:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(work, [sys.argv[1]])[0][0])
"""


def test_programs_run_as_they_are(tmp_path, path):
    (tmp_path / "program").mkdir()
    (tmp_path / "program/main.py").write_text(SCRIPT)
    (tmp_path / "program/beside.py").write_text("")
    done = run("program/main.py", path, "--level=3", "processes", cwd=tmp_path)
    said = done.stdout.split("\n")
    assert done.returncode == 0, done.stderr
    assert said[0].startswith(f"['{path}', '--level=3', 'processes'] beside pelton.onnxruntime ") and said[0].endswith(
        "program/main.py"
    )
    # also in the other process
    assert float(said[0].split()[-2]) == pytest.approx(2 * W.sum(), rel=1e-4) and said[1] == "pelton.onnxruntime"
    done = run("-m", "main", path, cwd=tmp_path / "program")
    assert (
        done.returncode == 0 and "beside pelton.onnxruntime" in done.stdout and done.stdout.strip().endswith("main.py")
    ), done.stderr
    done = run(
        "-c", "import sys, onnxruntime as ort; print(ort.__name__, sys.argv, __name__); sys.exit(5)", "a", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (5, "pelton.onnxruntime ['-c', 'a'] __main__\n"), done.stderr


def test_a_program_that_fails_fails_as_it_would(tmp_path):
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import onnxruntime as ort
        ort.InferenceSession("nowhere.onnx")
        """)
    )
    done = run("main.py", cwd=tmp_path)
    assert (
        done.returncode == 1
        and "nowhere.onnx cannot be read" in done.stderr
        and "Absent" in done.stderr
        and 'main.py", line 3' in done.stderr
    )


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "usage"),
        (["--nothing"], "there is no option --nothing"),
        (["none.py"], "there is no file none.py"),
        (["-m"], "the name of a module"),
        (["-c"], "needs code"),
    ],
)
def test_what_cannot_run_is_said(arguments, says, capsys):
    assert command.main(arguments) == 2 and says in capsys.readouterr().err and finder._finder not in sys.meta_path


def test_help(capsys):
    assert command.main(["--help"]) == 0 and "usage: python -m pelton.onnxruntime" in capsys.readouterr().out
