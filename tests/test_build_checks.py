"""Checks before a build: the engine's path, its target, requirements, and the number of labels."""

import os
import subprocess
import sys

import pytest

import pelton
from pelton.system import files
from pelton.importers.onnx import load as importer
from pelton.codegen.c import toolchain as compiler
from pelton.passes import pipeline

HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture
def idle(monkeypatch):
    """Nothing may be optimized, compiled or timed."""

    def work(*args, **more):
        raise AssertionError("work was begun")

    monkeypatch.setattr(pipeline, "run", work)
    monkeypatch.setattr(compiler.ClangCompiler, "_compile", work)


@pytest.fixture
def unread(idle, monkeypatch):
    """Nor may the model be read."""

    def read(*args, **more):
        raise AssertionError("the model was read")

    monkeypatch.setattr(importer, "load", read)


@pytest.mark.parametrize(
    "args, why",
    [
        (["--target", "cpu:x86_64_v9"], "kernels for CPUs are made for x86_64_v3"),
        (["--target", "cuda:sm_55"], "there are no GPUs sm_55"),
        (["--timing-cache", "{folder}"], "Is a directory"),
        (["--timing-cache", "{folder}/file/times.json"], "Not a directory"),
        (["--save-tactics", "{folder}/none/t.json"], "cannot write tactics to"),
        (["--load-tactics", "{folder}/none.json"], "No such file"),
        (["--load-tactics", "{folder}/file"], "holds no recorded tactics"),
        (["-o", "{folder}/file/e.pelton"], "is no folder"),
        (["-o", "{folder}/none/e.pelton"], "no folder"),
    ],
)
def test_what_cannot_be_is_refused_before_the_model_is_read(refused, unread, cnn, tmp_path, args, why):
    (tmp_path / "file").write_text("x")
    assert why in refused(
        "build", cnn, *(a.format(folder=tmp_path) for a in args), "--cache-dir", str(tmp_path / "cache")
    )


def test_a_missing_compiler_is_told_before_the_model_is_read(refused, unread, cnn, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    for target in ("cuda", "cuda:sm_90"):
        assert 'pip install "pelton[build,cuda]"' in refused("build", cnn, "--target", target)
    for name in ("zig", "compiler_id"):
        getattr(compiler, name).cache_clear()
    monkeypatch.setitem(sys.modules, "ziglang", None)
    assert 'pip install "pelton[build]"' in refused("build", cnn)
    with pytest.raises(pelton.BuildError, match="fails with --version"):
        pelton.build(cnn, cc="no-such-compiler")


def test_there_are_as_many_labels_as_classes(refused, idle, cnn, tmp_path):
    labels = tmp_path / "labels.txt"
    for n in (9, 11):
        labels.write_text("\n".join(f"thing {i}" for i in range(n)))
        said = refused("build", cnn, "--labels", str(labels), "--cache-dir", str(tmp_path / "cache"))
        assert f"labels= has {n} names, but output 'y' f32[1, 10] has 10 classes along its last axis" in said
    with pytest.raises(AssertionError, match="work was begun"):
        pelton.build(cnn, labels=tuple("abcdefghij"), cache_dir=tmp_path / "cache")


UNPRIVILEGED = """
import ctypes, struct, sys
# capset(2), version 3: no capabilities, so that permissions bind root, too
ctypes.CDLL(None).capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", *[0] * 6))
"""


def test_a_folder_that_takes_no_files(cnn, tmp_path):
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o555)
    for args, why in (
        (["-o", f"{shut}/e.pelton"], f"{shut}/e.pelton cannot be written: files cannot be made in the folder {shut}"),
        (
            ["-o", f"{tmp_path}/e.pelton", "--timing-cache", f"{shut}/t.json"],
            f"cannot write the timing cache {shut}/t.json",
        ),
    ):
        program = UNPRIVILEGED + f"from pelton.cli import main\nsys.exit(main({['build', cnn, *args]!r}))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**HERE, "PELTON_CACHE_DIR": str(tmp_path)},
            timeout=300,
        )
        assert done.returncode == 2 and why in done.stderr and "optimizing" not in done.stderr, done.stderr
    assert not list(tmp_path.rglob("e.pelton"))


def test_why_no_file_can_be_put_somewhere(tmp_path):
    (tmp_path / "file").write_text("x")
    assert files.rejection(tmp_path / "new") is None and files.rejection(tmp_path / "file") is None
    assert "no folder" in str(files.rejection(tmp_path / "none" / "new")) and "device" in str(files.rejection(tmp_path))
    assert files.rejection(tmp_path / "file" / "new") and "device" in str(files.rejection("/dev/null"))
