"""The native library in programs without Python: promises of its interface, altered files, threads and memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import machines
import pytest
from models import small_cnn
from native_programs import compiled, run
from script_models import detector
from native_models import MODELS

import pelton
from pelton import native
from pelton.backends.cpu import machine
from pelton.codegen.c.toolchain import zig


def engine_files(folder: Path, cache: Path | None = None) -> dict[str, Path]:
    """Engines of several kinds, by name."""
    models = {"static": (lambda: small_cnn(size=12).SerializeToString(), {"x": (1, 3, 12, 12)}), **MODELS}
    found = {}
    for name, (model, shapes) in models.items():
        found[name] = folder / f"{name}.pelton"
        pelton.build(model(), level=0, cache_dir=cache, shapes=shapes or None).save(found[name])
    found["detector"] = folder / "detector.pelton"
    pelton.build(detector()[0], level=0, cache_dir=cache).save(found["detector"])
    return found


def carrying_engine(folder: Path, cache: Path | None = None) -> Path:
    """An engine as a machine makes it that does not run it: its steps carry several kernels."""
    path, level = folder / "carrying.pelton", machines.HERE[-1 if machines.runs(machines.HERE[-1]) else 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "identity", machines.without(level))
        model, shapes = MODELS["cnn"]
        engine = pelton.build(model(), target=f"cpu:{level}", cache_dir=cache, shapes=shapes or None)
    engine.save(path)
    return path


@pytest.fixture(scope="module")
def engines(tmp_path_factory, kernel_cache):
    return engine_files(tmp_path_factory.mktemp("engines"), kernel_cache)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")

    def make(name: str, *flags: str) -> Path:
        checked = ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all")
        return compiled(name, folder, [zig(), "cc"], *checked, *flags)

    return make


def test_the_interface_keeps_its_promises(engines, program, tmp_path, kernel_cache):
    arguments = engines["static"], engines["cnn"], carrying_engine(tmp_path, kernel_cache)
    assert run(program("interface"), *arguments) == "right"


def test_altered_files_are_refused_or_harmless(engines, program):
    mutate = program("mutate")
    for seed, engine in enumerate(engines.values()):
        refused, _, taken, _ = run(mutate, engine, 500, seed + 1).split()
        assert int(refused) > 100 and int(refused) + int(taken) == 500


def test_threads_get_what_one_thread_gets(engines, program):
    assert run(program("threads"), 3, *engines.values()) == "all equal"


@pytest.mark.parametrize("flags", [(), ("-DPELTON_POSIX",)])
def test_every_tile_is_claimed_once(program, flags):
    """With late workers, sleepers, nested runs and forks; on Linux, and as on any other POSIX system."""
    assert run(program("claims", *flags), 0.4) == "each tile once"


def test_contexts_give_back_their_memory(engines, program):
    assert "and 0 pieces more" in run(program("memory"), engines["cnn"], 600)


def test_the_library_shows_its_own_names_alone():
    found = subprocess.run(["nm", "-D", "--defined-only", native.PATH], capture_output=True, text=True)
    if found.returncode:
        pytest.skip("nm is not installed")
    names = [line.split()[-1] for line in found.stdout.splitlines()]
    assert len(names) > 40 and all(name.startswith("pelton_") for name in names)
    assert Path(native.PATH).stat().st_size <= 84_000
