"""Temporary folders: removed with their creator, however it ends, and safe for several at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from pelton.system import temporary


def test_a_room_is_gone_when_it_is_left():
    with temporary.temporary_folder() as folder:
        Path(folder, "file").write_text("x")
    assert not Path(folder).exists()


def test_the_rooms_of_killed_processes_are_swept(tmp_path):
    made = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from pelton.system import temporary\nwith temporary.temporary_folder() as r: print(r, flush=1); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    folder = Path(made.stdout.readline().strip())
    temporary._sweep.__wrapped__(str(tmp_path))
    assert folder.is_dir()  # somebody is in it
    made.send_signal(signal.SIGKILL)
    made.wait()
    assert folder.is_dir()
    temporary._sweep.__wrapped__(str(tmp_path))
    assert not folder.exists()


def test_a_room_that_goes_while_others_are_looked_at_is_no_error(tmp_path, monkeypatch):
    gone = tmp_path / "pelton-gone"
    left = tmp_path / "pelton-left"
    for folder in (gone, left):
        folder.mkdir()
        (folder / temporary._LOCK).touch()
    entries = sorted(os.scandir(tmp_path), key=lambda e: e.name)
    (gone / temporary._LOCK).unlink()
    gone.rmdir()
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda base: entries if base == str(tmp_path) else scan(base))
    temporary._sweep.__wrapped__(str(tmp_path))
    assert not left.exists()
