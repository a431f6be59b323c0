"""Engines for micro-controllers: `pelton export` and `pelton check` with --target cortex-m4 and others."""

import itertools
import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import pelton
from benchmarks.mcu import board, results
from benchmarks.mcu.networks import NETWORKS, sample
from pelton import mcu
from pelton.cli import main
from pelton.codegen.c.toolchain import zig
from pelton.engine.memory import Lifetime
from pelton.errors import InputError
from pelton.mcu import elf
from pelton.mcu.memory import ALIGN, lay_out, lifetimes, shared
from pelton.targets import MICRO_CONTROLLERS

CIFAR = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
TEXTS = {
    *("CMakeLists.txt", "README.md", "library.json", "platformio_link.py", "pelton_kernel.h", "pelton_mcu.h"),
    *("zephyr/CMakeLists.txt", "zephyr/Kconfig", "zephyr/module.yml"),
    *("qemu/Makefile", "qemu/board.ld", "qemu/main.c", "qemu/semihosting.h", "qemu/start.c"),
}
emulated = pytest.mark.skipif(
    not os.environ.get("PELTON_TEST_MCU"), reason="make test-mcu runs it, with qemu-system-arm"
)


def network() -> pelton.Network:
    """Floats and bytes: two inputs, a residual, an index of 64 bits and an awkward size."""
    net, rng = pelton.Network("mixed"), np.random.default_rng(0)
    x, gain = net.input("x", "f32[1, 3, 11, 13]"), net.input("gain", "f32[1, 5, 1, 1]")
    w = [rng.standard_normal((5, c, 3, 3)).astype(np.float32) for c in (3, 5)]
    y = net.relu(net.convolution(x, w[0], rng.standard_normal(5).astype(np.float32), padding=1))
    y = net.add(y, net.mul(net.convolution(y, w[1], padding=1), gain))
    flat = net.flatten(net.global_average_pool(y))
    net.output(net.softmax(flat, axis=1), "shares")
    net.output(net.arg_max(flat, axis=1, keepdims=False), "best")
    return net


def built(net: pelton.Network, core: str = "cortex-m4"):
    return pelton.build(net, level=0, threads=1, target=f"cpu:{MICRO_CONTROLLERS[core]}").plain


@pytest.fixture(scope="module")
def plan():
    return built(network())


@pytest.fixture(scope="module")
def exported(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcu") / "net"
    return folder, mcu.write(plan, folder)


def test_a_folder_is_complete(exported):
    folder, written = exported
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert names == TEXTS | {"mixed.h", "mixed.c", "mixed_weights.c", "libmixed_kernels.a"}
    assert {str(p.relative_to(folder)) for p in written.files} == names
    header = (folder / "mixed.h").read_text()
    assert "MIXED_X_ELEMENTS = 429," in header and "float *mixed_input_x(void);" in header
    assert "const int64_t *mixed_output_best(void);" in header
    assert json.loads((folder / "library.json").read_text())["headers"] == "mixed.h"
    every = "".join((folder / name).read_text() for name in names if not name.endswith(".a"))
    assert not re.search(r"MODEL|NAME_[A-Z]|\b(malloc|printf|fopen)\b", every)


def test_sizes_are_those_of_the_objects(exported, plan):
    """Printed sizes against the program that a linker makes of the folder."""
    folder, written = exported
    of, header = written.footprint, (folder / "mixed.h").read_text()
    assert f"MIXED_ARENA = {of.ram}," in header and f"MIXED_WEIGHTS = {of.weights} " in header
    assert set(of.needs) <= {"memset", "memcpy"}
    program = board.compile_example(folder, "mixed", "cortex-m4").read_bytes()
    symbols = {name: size for name, size, *_ in elf._symbols(program, elf._sections(program))}
    assert symbols["arena"] == of.ram and symbols["mixed_weights"] == of.weights
    functions = elf.functions(program)
    kernels = sum(functions[s] for s in {s.symbol for s in plan.steps})
    assert 0.9 * of.kernels < kernels <= of.kernels  # besides functions, tables of constants
    assert of.flash == of.kernels + of.tables + of.weights
    text = (folder / "README.md").read_text()
    assert f"| **flash** | {of.flash:,} |" in text and f"| {of.ram:,} |" in text


@pytest.mark.parametrize("core", MICRO_CONTROLLERS)
def test_memory_is_shared_only_where_it_may_be(core):
    """What overlaps is never alive at once, or is a sum in place of its operand, for all of MLPerf Tiny's networks."""
    for name in ("image_classification", "keyword_spotting"):
        plan = built(NETWORKS[name].build(True), core)
        memory, lives = mcu.static_memory(plan), lifetimes(plan)
        pairs = set(shared(plan, lives))
        place = {key: memory.at[key] if key >= 0 else memory.scratch[-1 - key] for key in lives}
        for a, x in lives.items():
            assert place[a] % ALIGN == 0 and place[a] + x.size <= memory.arena
            for b, y in lives.items():
                together = a < b and x.first <= y.last and y.first <= x.last
                if together and place[a] < place[b] + y.size and place[b] < place[a] + x.size:
                    assert {(a, b), (b, a)} & pairs and place[a] == place[b]
        ports = [*plan.inputs, *plan.outputs]
        assert all(at + p.nbytes <= memory.arena for at, p in zip(memory.ports, ports, strict=True))


def test_sums_take_the_place_of_an_operand():
    plan = built(NETWORKS["image_classification"].build(True))
    assert len(shared(plan, lifetimes(plan))) >= 1
    assert mcu.static_memory(plan).arena < 3 * 16 * 32 * 32  # two images, not three


def test_arenas_are_small():
    draw = random.Random()
    for _ in range(50):
        firsts = [draw.randrange(12) for _ in range(draw.randrange(1, 14))]
        lives = [Lifetime(ALIGN * draw.randrange(1, 40), f, f + draw.randrange(4)) for f in firsts]
        offsets, arena = lay_out(lives)
        least = max(sum(x.size for x in lives if x.first <= t <= x.last) for t in range(16))
        assert least <= arena <= 1.5 * least
        for (a, x), (b, y) in itertools.combinations(zip(offsets, lives), 2):
            assert x.last < y.first or y.last < x.first or a + x.size <= b or b + y.size <= a


@pytest.mark.parametrize("name", NETWORKS)
def test_mlperf_tiny_is_within_its_bounds(name):
    """All but what needs an emulator, or the peer."""
    of, bounds = mcu.budget(built(NETWORKS[name].build(True))), NETWORKS[name]
    assert bounds.ram is None or of.footprint.ram <= bounds.ram
    assert bounds.code is None or of.footprint.kernels <= bounds.code
    assert sum(layer.code for layer in of.layers) <= of.footprint.kernels
    assert max(layer.live for layer in of.layers) == of.layers[of.peak].live <= of.footprint.ram


def test_two_engines_are_in_one_program(exported, plan, tmp_path):
    """Both define the same kernels."""
    folder, _ = exported
    mcu.write(plan, tmp_path / "other", "other")
    program = board.compile_example(folder, "mixed", "cortex-m4")
    board.compile_example(tmp_path / "other", "other", "cortex-m4")
    objects = [*(tmp_path / "other" / "qemu").glob("other*.o"), tmp_path / "other" / "libother_kernels.a"]
    mine = [p for p in (folder / "qemu").glob("*.o")] + [folder / "libmixed_kernels.a"]
    command = [
        zig(),
        "ld.lld",
        "-T",
        "memory.ld",
        "--undefined=other_run",
        *map(str, [*mine, *objects]),
        "-o",
        "both.elf",
    ]
    done = subprocess.run(command, cwd=folder / "qemu", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = set(elf.functions((folder / "qemu" / "both.elf").read_bytes()))
    assert program.exists() and {"mixed_run", "other_run"} <= names


def test_objects_suit_any_convention(plan):
    code, neutral = bytes(plan.code), elf.for_programs(bytes(plan.code))
    (at, size) = next((at, size) for name, _, _, at, size, _ in elf._sections(code) if name == elf.ATTRIBUTES)
    before = {tag: code[place] for place, tag in elf._attributes(code, at, at + size)}
    after = {tag: neutral[place] for place, tag in elf._attributes(neutral, at, at + size)}
    assert before[28] == 1 and {**before, **elf.NEUTRAL} == after
    weak = {
        name: info >> 4 for name, _, info, section in elf._symbols(neutral, elf._sections(neutral)) if section and name
    }
    assert all(weak[s.symbol] == elf.WEAK for s in plan.steps)
    with pytest.raises(pelton.Error, match="no object of a 32-bit Arm core"):
        elf.sizes(b"\x7fELF\x02\x01\x01" + bytes(100))


def test_the_command_prints_flash_and_ram(tmp_path, capsys):
    folder = tmp_path / "net"
    given = ["export", str(CIFAR), "-o", str(folder), "--target", "cortex-m7", "--shapes", "image=1x3x32x32"]
    assert not main(given)
    said = capsys.readouterr().out
    ram = re.search(r"NET_ARENA = (\d+),", (folder / "net.h").read_text())
    assert f"RAM {int(ram[1]):,} " in " ".join(said.split()) and "net.h has its functions" in said
    assert not main([*given, "--json"])
    facts = json.loads(capsys.readouterr().out)["footprint"]
    assert facts["ram"] == int(ram[1]) and facts["flash"] == sum(facts[k] for k in ("kernels", "tables", "weights"))
    assert f"flash {facts['flash']:,} " in " ".join(said.split())


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "has dynamic shapes, and memory of a micro-controller is laid out at build time; give one size"),
        (["--shapes", "image=1x3x32x32", "--name", "2nd"], "'2nd' is no valid name of C functions"),
        (["--profile", "one:batch=1", "--profile", "two:batch=2"], "has profiles"),
    ],
)
def test_what_cannot_be_exported(arguments, message, tmp_path, capsys):
    given = ["export", str(CIFAR), "-o", str(tmp_path / "net"), "--target", "cortex-m4", *arguments]
    assert main(given) and message in capsys.readouterr().err
    assert not (tmp_path / "net").exists()


def test_engines_of_other_targets_and_scripts_are_rejected(tmp_path, capsys):
    engine = pelton.build(network(), level=0, threads=1)
    with pytest.raises(InputError, match="micro-controllers are cortex-m4"):
        mcu.write(engine.plain, tmp_path / "net")
    engine.save(tmp_path / "net.pelton")
    assert main(["export", str(tmp_path / "net.pelton"), "--target", "cortex-m4", "-o", str(tmp_path / "net")])
    assert "needs the model that it was built from" in capsys.readouterr().err
    ports = [helper.make_tensor_value_info("x", 1, (3, 4)), helper.make_tensor_value_info("y", 7, (2, "n"))]
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "script", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "script.onnx")
    assert main(["export", str(tmp_path / "script.onnx"), "--target", "cortex-m4", "-o", str(tmp_path / "net")])
    assert "has data-dependent control flow" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "script.onnx"), "--target", "cortex-m4"]) == 1
    assert "a micro-controller has no Python" in capsys.readouterr().out


def test_saved_engines_are_exported(exported, plan, tmp_path, capsys):
    pelton.build(network(), level=0, target="cpu:thumb_m4").save(tmp_path / "net.pelton")
    assert not main(["export", str(tmp_path / "net.pelton"), "-o", str(tmp_path / "net"), "--name", "mixed"])
    assert (tmp_path / "net" / "mixed.c").read_bytes() == (exported[0] / "mixed.c").read_bytes()
    assert "RAM" in capsys.readouterr().out


def checked(capsys, *limits: str, status: int) -> str:
    given = ["check", str(CIFAR), "--shapes", "image=1x3x32x32", "--target", "cortex-m4", *limits]
    assert main(given) == status
    return capsys.readouterr().out


def test_check_says_what_would_help(capsys):
    said = checked(capsys, "--ram", "64K", "--flash", "512K", status=1)
    assert "does not fit into cortex-m4" in said
    assert re.search(r"RAM: [\d,]+ bytes of 65,536, [\d,]+ too many", said)
    assert re.search(r"flash: [\d,]+ bytes of 524,288, [\d,]+ too many", said)
    advice = re.search(r"--precision int8 .* about ([\d,]+) bytes of flash and ([\d,]+) of RAM", said)
    flash, ram = (int(x.replace(",", "")) for x in advice.groups())
    assert flash < 512 << 10 and ram <= 64 << 10
    assert re.search(r"layer \d+, \S+, takes the most RAM", said) and "has the most weights" in said
    assert "fits into cortex-m4" in checked(capsys, "--ram", "1M", "--flash", "2M", status=0)


def test_check_tells_programs(capsys):
    facts = json.loads(checked(capsys, "--ram", "64K", "--json", status=1))
    of = facts["budget"]
    assert facts["ok"] and not of["fits"] and of["limits"] == {"ram": 65536, "flash": None}
    assert of["layers"][of["peak"]]["live"] == max(x["live"] for x in of["layers"]) <= of["footprint"]["ram"]
    assert sum(x["weights"] for x in of["layers"]) <= of["footprint"]["weights"] + 16 * 2 * len(of["layers"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--ram", "64K"], "--ram: only for micro-controllers; add --target"),
        (["--target", "cortex-m4", "--ram", "lots"], "expected a size above 0, such as 256K or 1M, got 'lots'"),
        (["--target", "cortex-m4", "--flash", "0"], "expected a size above 0"),
    ],
)
def test_check_rejects_other_limits(arguments, message, capsys):
    try:
        status = main(["check", str(CIFAR), *arguments])
    except SystemExit as e:  # of the parser
        status = e.code
    assert status == 2 and message in capsys.readouterr().err


def test_bounds_are_noticed():
    zero = mcu.Footprint(kernels=0, tables=0, weights=0, ram=0)
    figures = results.Figures("image_classification", "cortex-m4", zero, 0, 0, 3, 3, 1)
    assert not list(results.wrong(figures))
    for change in (dict(equal=2), dict(instructions=26_000_001), dict(footprint=mcu.Footprint(0, 0, 0, 2))):
        assert len(list(results.wrong(results.Figures(**{**vars(figures), **change})))) == 1
    assert "| cortex-m4 | 3 of 3 |" in results.page([figures], {}, 3)


@emulated
@pytest.mark.parametrize("core", MICRO_CONTROLLERS)
def test_boards_run_it(core, tmp_path):
    """Floats, several ports, and results of 64 bits."""
    plan, rng = built(network(), core), np.random.default_rng()
    mcu.write(plan, tmp_path / "net")
    program = board.compile_example(tmp_path / "net", "mixed", core, Path("build/mcu/zig"))
    feeds = [rng.standard_normal(p.numbers, np.float32) for p in plan.inputs]
    run = board.run_example(program, plan, feeds)
    shares, best = pelton.build(network(), level=0, threads=1)(*feeds)
    assert np.allclose(run.outputs[0], shares, rtol=1e-4, atol=1e-6) and np.array_equal(run.outputs[1], best)
    assert 0 < run.stack < 4096 and run.instructions > 1000


@emulated
@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="apt install gcc-arm-none-eabi")
@pytest.mark.parametrize("core", MICRO_CONTROLLERS)
def test_gcc_links_it(core, tmp_path):
    """The folder's own Makefile, without a warning, for hard and for soft arguments of functions."""
    plan = built(NETWORKS["anomaly_detection"].build(True), core)
    mcu.write(plan, tmp_path / "net", "net")
    feed = sample(plan.inputs[0].numbers, np.random.default_rng())
    feed.tofile(tmp_path / "net" / "qemu" / "input0.bin")
    want = pelton.build(NETWORKS["anomaly_detection"].build(True), level=0, threads=1)(feed)[0]
    for options in ([], ["-B", "CC=arm-none-eabi-gcc -Wall -Wextra -Wno-unused-function"]):
        done = subprocess.run(
            ["make", "-s", *options, "run"], cwd=tmp_path / "net" / "qemu", capture_output=True, text=True
        )
        assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
        assert (tmp_path / "net" / "qemu" / "output0.bin").read_bytes() == want.tobytes()
