"""Output streams that are not UTF-8, or a full disk: commands succeed, or end with one sentence."""

import os
import subprocess
import sys

import pytest

import pelton

HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
COMMANDS = ("build", "tune", "run", "bench", "compare", "check", "inspect", "explain", "cache", "doctor", "demo")


def ran(*args: str, out=subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pelton", *args],
        stdout=out,
        stderr=subprocess.PIPE,
        env={**HERE, **environment},
        timeout=300,
    )


def test_help_in_ascii():
    program = (
        f"from pelton.cli import main\nfor c in {COMMANDS!r}:\n    try: main([c, '--help'])\n    except SystemExit as"
        " e: assert not e.code"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env={**HERE, "PYTHONIOENCODING": "ascii"}, timeout=300
    )
    assert (
        done.returncode == 0
        and done.stdout.isascii()
        and b"0 times nothing" in done.stdout
        and b"\\u" not in done.stdout
    ), done.stderr


def test_commands_in_the_c_locale(cnn, engines, tmp_path, cache):
    """Also what they read: kernels' sources have characters beyond ASCII, too."""
    for args, said in (
        (["bench", cnn, "--level", "0", "--seconds", "0", "--warmup", "0", *cache], b" -> y f32[1, 10]"),
        (["explain", cnn], b" -> "),
        (["build", cnn, "--level", "0", "-o", str(tmp_path / "e.pelton"), "--cache-dir", str(tmp_path)], b"built in"),
    ):
        done = ran(*args, **ASCII)
        assert done.returncode == 0 and said in done.stdout and done.stdout.isascii(), (args, done.stderr)


def test_names_that_an_encoding_lacks_are_escaped_and_files_keep_theirs(engines, tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff\xe4\xb8\xad.pelton"
    with open(engines["cnn"], "rb") as f, open(odd, "wb") as copy:
        copy.write(f.read())
    for encoding, named in (("ascii", b"/\xff\\u4e2d.pelton"), ("utf-8", b"/\xff\xe4\xb8\xad.pelton")):
        done = ran("inspect", os.fsdecode(odd), PYTHONIOENCODING=encoding, PYTHONUTF8="1")
        assert done.returncode == 0 and done.stdout.startswith(os.fsencode(tmp_path) + named), done.stderr
    done = ran("inspect", engines["cnn"], PYTHONIOENCODING="ascii:replace")  # what the user asked for stays
    assert done.returncode == 0 and done.stdout.isascii()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(engines, cnn, tmp_path, closed):
    def status(*args: str) -> int:
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "pelton", *args]
        done = subprocess.run(command, capture_output=True, env=HERE, cwd=tmp_path, timeout=300)
        assert b"Traceback" not in done.stderr + done.stdout
        return done.returncode

    assert status("inspect", engines["cnn"]) == status("inspect", engines["cnn"], "--json") == status("--help") == 0
    assert status("build", cnn, "--level", "0", "-o", "e.pelton", "-q") == 0
    assert status("build", "none.onnx") == status("inspect", "none", "--json") == status("build") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["e.pelton"] and pelton.load(tmp_path / "e.pelton")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output(engines):
    with open("/dev/full", "wb") as full:
        done = ran("inspect", engines["cnn"], out=full)
    assert (
        done.returncode == 2
        and done.stderr.startswith(b"error: the output cannot be written: No space left on device")
        and done.stderr.count(b"\n") == 1
    )


def test_no_folder_for_temporary_files(cnn, tmp_path):
    program = (
        "import sys, tempfile\ndef none(): raise FileNotFoundError(2, 'No usable temporary directory"
        f" found')\ntempfile.gettempdir = none\nfrom pelton.cli import main\nsys.exit(main(['build', {cnn!r},"
        f" '--level', '0', '-o', {str(tmp_path / 'e.pelton')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**HERE, "PELTON_CACHE_DIR": str(tmp_path)},
        timeout=300,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: cannot write temporary files to compile kernels (No usable temporary directory found)" in done.stderr
