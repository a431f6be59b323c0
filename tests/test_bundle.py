"""Engines as C sources: they compile without warnings, need no library, and equal the engine bit for bit."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import chain
from models import small_cnn
from onnx_models import one_node
from test_engine_file import with_host_step
from native_models import recurrent

import pelton
from pelton import bundle
from pelton.backends.arrays import random_inputs
from pelton.bundle import tables
from pelton.cli import main
from pelton.codegen.c.toolchain import zig
from pelton.errors import EngineError, InputError

STRICT = "-std=gnu11 -O1 -Wall -Wextra -Werror -I.".split()


def compiled(folder: Path, sources: list[str], *flags: str) -> Path:
    """The program of some sources in a folder."""
    made = folder / "program"
    command = [zig(), "cc", *STRICT, *sources, *flags, "-o", str(made)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, cwd=program.parent)


@pytest.fixture(scope="module")
def built(kernel_cache):
    def build(model: bytes, **options):
        return pelton.build(model, level=0, cache_dir=kernel_cache, **options)

    return build


def sources(folder: Path, name: str) -> list[str]:
    return ["main.c", *(p.name for p in folder.glob("*.c") if p.name != "main.c"), f"{name}_data.S"]


CASES = {
    "static": (lambda: small_cnn(size=12).SerializeToString(), {"x": (1, 3, 12, 12)}, None),
    "of one batch": (lambda: small_cnn(size=12).SerializeToString(), {"x": (5, 3, 12, 12)}, {"x": "1..4..9x3x12x12"}),
    "with sizes as outputs": (recurrent, {"x": (4, 3, 7)}, {"x": "1..4..9x1..3..9x7"}),
    "of integers": (lambda: one_node("Add", "i64[3, 5]", "i64[5]"), {}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fixed_engine_gives_what_it_gave(built, case, tmp_path):
    model, shapes, ranges = CASES[case]
    engine = built(model(), shapes=ranges or shapes)
    plan = bundle.at_shapes(engine.plain, shapes)
    bundle.write(plan, tmp_path, "net")
    program = compiled(tmp_path, sources(tmp_path, "net"))
    inputs = random_inputs(plan.inputs, 5)
    for p in plan.inputs:
        inputs[p.name].tofile(tmp_path / f"in {p.name}")
    outputs = [tmp_path / f"out {p.name}" for p in plan.outputs]
    said = run(program, *(tmp_path / f"in {p.name}" for p in plan.inputs), *outputs)
    assert said.returncode == 0 and "median of 100 runs" in said.stdout, said.stderr
    for path, want in zip(outputs, engine.context(threads=1).run(inputs).values(), strict=True):
        assert path.read_bytes() == want.tobytes()
    assert run(program, "one").returncode == 2


def test_a_fixed_engine_needs_no_library(built, tmp_path):
    engine = built(small_cnn(size=12).SerializeToString(), shapes={"x": (1, 3, 12, 12)})
    bundle.write(engine.plain, tmp_path, "net")
    (tmp_path / "start.c").write_text(
        '#include "net.h"\n'
        "static float x[NET_X_ELEMENTS], y[NET_Y_ELEMENTS];\n"
        "__attribute__((force_align_arg_pointer)) void _start(void) {\n"
        "    const long status = net_run(x, y) ? 3 : 42;\n"
        '    __asm__ volatile("syscall" : : "a"(60L), "D"(status));\n'
        "    __builtin_unreachable();\n"
        "}\n"
    )
    program = compiled(
        tmp_path,
        ["start.c", "net.c", "cpu.c", "net_data.S"],
        "-nostdlib",
        "-static",
        "-ffreestanding",
        "-fno-sanitize=all",
    )
    assert run(program).returncode == 42


def test_two_engines_go_into_one_program(built, tmp_path):
    for name, size in (("one", 12), ("two", 16)):
        engine = built(small_cnn(size=size).SerializeToString(), shapes={"x": (1, 3, size, size)})
        bundle.write(engine.plain, tmp_path, name)
    (tmp_path / "main.c").write_text(
        '#include "one.h"\n#include "two.h"\n'
        "static float x[TWO_X_ELEMENTS], y[TWO_Y_ELEMENTS];\n"
        "int main(void) { return one_run(x, y) || two_run(x, y); }\n"
    )
    files = ["main.c", "one.c", "two.c", "one_data.S", "two_data.S", "cpu.c"]
    assert run(compiled(tmp_path, files)).returncode == 0


def test_a_cpu_that_lacks_something_is_told(built, tmp_path):
    engine = built(small_cnn(size=12).SerializeToString(), shapes={"x": (1, 3, 12, 12)})
    lacking = replace(engine.plain, target={**engine.plain.target, "features": ["avx2", "avx9000"]})
    bundle.write(lacking, tmp_path, "net")
    said = run(compiled(tmp_path, sources(tmp_path, "net")))
    assert said.returncode == 1 and "this CPU lacks avx9000" in said.stderr


@pytest.mark.parametrize("libc", [(), ("-target", "x86_64-linux-musl", "-static")], ids=["glibc", "musl"])
def test_an_engine_of_any_size_comes_with_the_runtime(built, tmp_path, libc):
    engine = built(recurrent())
    bundle.write(engine.plain, tmp_path, "net", threads=2)
    said = run(compiled(tmp_path, sources(tmp_path, "net"), "-lpthread", "-ldl", *libc), 2)
    assert said.returncode == 0, said.stderr
    assert "input x: [?, ?, 7]" in said.stdout and "median of 100 runs" in said.stdout


def test_it_builds_with_cmake(built, tmp_path):
    if not shutil.which("cmake") or not shutil.which("cc"):
        pytest.skip("cmake and cc are not installed")
    engine = built(small_cnn(size=12).SerializeToString(), shapes={"x": (1, 3, 12, 12)})
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        bundle.write(engine.plain, folder, "net", threads=threads)
        for step in (["cmake", "-B", "build", "."], ["cmake", "--build", "build"]):
            done = subprocess.run(step, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        assert "ms" in run(folder / "build" / "main").stdout


def test_what_needs_python_is_refused(built, tmp_path):
    wrong = {
        "step 0, odd, runs in Python": with_host_step(),
        "has no C type": replace(chain(), outputs=(replace(chain().outputs[0], dtype="c64"),)),
        "engines for GPUs cannot be exported": replace(chain(), target={**chain().target, "arch": "cuda"}),
        "without its weights": replace(chain(), absent=(4,)),
    }
    for why, plan in wrong.items():
        with pytest.raises(InputError, match=why):
            bundle.write(plan, tmp_path / "e")
    for name in ("2nd", "a-b", "int", ""):
        with pytest.raises(InputError, match="is no valid name of C functions"):
            bundle.write(chain(), tmp_path / "e", name)
    assert not (tmp_path / "e").exists()
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="cannot be written"):
        bundle.write(chain(), tmp_path / "file")


def test_on_the_command_line(built, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    built(small_cnn(size=12).SerializeToString(), shapes={"x": "1..2..8x3x12x12"}).save("net.pelton")
    assert main(["export", "net.pelton", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == said["name"] == "net" and "pelton.h" in said["files"] and Path("net/net.h").exists()
    assert main(["export", "net.pelton", "-o", "my-net", "--shapes", "x=2x3x12x12"]) == 0
    assert "my_net.h has its functions" in capsys.readouterr().out and not Path("my-net/pelton.h").exists()
    for shapes, why in (
        ("x=9x3x12x12", "may have 1 to 8, got 9"),
        ("x=2x3x12x13", "must be 12"),
        ("z=2", "there is no input 'z'"),
        ("x=1..4x3x12x12", "one size of each axis"),
        ("x=2x3", "pass one size per axis"),
    ):
        assert main(["export", "net.pelton", "-o", "other", "--shapes", shapes]) != 0
        assert why in capsys.readouterr().err and not Path("other").exists()


def test_names_are_identifiers():
    names = ["x", "x", "input.1", "2nd", "für", "int", "", "main"]
    plan = replace(chain(), inputs=tuple(replace(chain().inputs[0], name=n) for n in names))
    found = tables.names(plan)[0]
    assert found[:2] == ["x", "x_2"] and len(set(found)) == len(found) and all(n.isidentifier() for n in found)
