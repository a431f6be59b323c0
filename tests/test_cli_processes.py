"""Ends of commands: interrupted, killed, with a full disk, or without the packages for building."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pelton.system.cache import LEDGER
from test_cli import HERE


def pelton_process(*args, env=None, **more):
    """The command in a process that an interrupt reaches, also where whoever started the tests ignores them."""
    return subprocess.Popen(
        [sys.executable, "-m", "pelton", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**HERE, **(env or {})},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **more,
    )


def test_an_interrupted_build_leaves_nothing(tmp_path, cnn):
    temporary, there = tmp_path / "tmp", tmp_path / "there"
    temporary.mkdir()
    there.mkdir()
    process = pelton_process(
        "build",
        cnn,
        "-o",
        str(there / "e.pelton"),
        "--level",
        "5",
        "--cache-dir",
        str(tmp_path / "cache"),
        cwd=there,
        env={"TMPDIR": str(temporary)},
    )
    try:
        while "compiling" not in (line := process.stderr.readline()):
            assert line, "it ended before it could be interrupted"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err and out == ""
    assert os.listdir(there) == [] and os.listdir(temporary) == []
    assert not [
        p
        for p in (tmp_path / "cache").rglob("*")
        if p.is_file() and p.suffix not in (".o", ".json", ".pch") and p.name != LEDGER
    ]


def test_a_killed_build_leaves_no_file_and_the_next_one_its_temporary_ones(tmp_path, cnn):
    temporary, there = tmp_path / "tmp", tmp_path / "there"
    temporary.mkdir()
    there.mkdir()
    args = ("build", cnn, "-o", str(there / "e.pelton"), "--cache-dir", str(tmp_path / "cache"))
    process = pelton_process(*args, "--level", "5", env={"TMPDIR": str(temporary)}, start_new_session=True)
    try:
        while "compiling" not in (line := process.stderr.readline()):
            assert line, "it ended before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the compilers that it started, too
        process.communicate(timeout=60)
    assert os.listdir(there) == [] and os.listdir(temporary) != []
    again = pelton_process(*args, "--level", "0", env={"TMPDIR": str(temporary)})
    assert again.wait(timeout=60) == 0, again.communicate()
    assert os.listdir(there) == ["e.pelton"] and os.listdir(temporary) == []


def test_a_process_killed_while_it_writes_leaves_nothing(tmp_path):
    program = (
        "import os, signal, sys\nfrom pelton.system import files\ndef half():\n    yield b'x' * 4096\n   "
        " print(os.listdir(sys.argv[1]), flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n    yield"
        " b'y'\nfiles.write(sys.argv[1] + '/e.pelton', half())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=HERE, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    try:
        os.close(os.open(tmp_path, os.O_WRONLY | os.O_TMPFILE))
    except OSError as e:
        pytest.skip(f"this file system has no files without names: {e}")
    assert done.stdout == "[]\n" and os.listdir(tmp_path) == []


def test_a_reader_that_has_seen_enough_is_no_error(engines):
    process = pelton_process("inspect", engines["cnn"], "--json")
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE and process.stderr.read() == ""
    process.stderr.close()


def test_engines_run_without_what_building_needs(tmp_path, engines):
    """In a process where no package but numpy can be imported, and Pelton's compiler is not until the machine's peak is
    asked for."""
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 12, 12), np.float32))
    program = (
        "import sys\nfrom pelton.cli import main\nclass Only:\n    def find_spec(self, name, path=None,"
        " target=None):\n        if name.partition('.')[0] not in {*sys.stdlib_module_names, 'numpy', 'pelton'}:"
        " raise ModuleNotFoundError(f'no {name}', name=name)\nsys.meta_path.insert(0, Only())\nengine ="
        f" {engines['cnn']!r}\nbench = ['bench', engine, '--seconds', '0', '--warmup', '0']\nfor command in (['run',"
        " engine, '--input', 'x.npy'], ['inspect', engine, '--verify'], bench):\n    assert main(command) =="
        " 0\ncompiler = {'ir', 'ops', 'importers', 'partition', 'passes', 'reference', 'plan', 'codegen', 'tuning',"
        " 'compiler', 'quantize', 'builder', 'diagnose'}\nassert not [m for m in sys.modules if"
        " m.startswith('pelton.') and m.split('.')[1] in compiler]\nassert main([*bench, '--layers']) == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=HERE)
    assert done.returncode == 0, done.stderr
    assert "y f32[1, 10]" in done.stdout and "peak cannot be measured" in done.stdout
