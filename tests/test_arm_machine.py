"""The wheel, the library and engines for AArch64, in a Debian of that architecture under QEMU: `make test-arm`.

Outputs are compared with those of engines for x86-64, on the CPU that there is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from models import small_cnn
from native_models import MODELS
from native_programs import HERE as PROGRAMS
from quantized_models import qdq_cnn
from script_models import detector

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.arm import emulation  # noqa: E402

import pelton  # noqa: E402
from pelton.backends.cpu.machine import identity  # noqa: E402
from pelton.targets import fits  # noqa: E402

ROOT = os.environ.get("PELTON_ARM_ROOT")
MODEL = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
LEVELS = ("aarch64", "aarch64_dotprod", "aarch64_i8mm")
VNNI = "x86_64_v4_vnni"  # INT8 weights have as many bits as for AArch64
pytestmark = pytest.mark.skipif(ROOT is None, reason="`make test-arm` makes the root, and runs this")


@dataclass(frozen=True)
class Case:
    """A model, engines of it for AArch64 by level, and what the one for x86-64 gives."""

    engines: dict[str, Path]
    x: np.ndarray
    want: np.ndarray

    def check(self, got: np.ndarray, exact: bool) -> None:
        if exact:
            assert got.tobytes() == self.want.tobytes()
        assert emulation.difference(got, self.want) <= 1e-5


@pytest.fixture(scope="session")
def root() -> Path:
    path = Path(str(ROOT)).absolute()
    assert (path / "usr/local/bin/pelton").exists(), "the wheel is not installed in the root"
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("arm")


@pytest.fixture(scope="session")
def cases(folder, kernel_cache) -> dict[str, Case]:
    """FP32 and INT8 by calibration, and a model that is quantized."""
    random = np.random.default_rng(0)
    pictures = random.standard_normal((16, 3, 32, 32)).astype(np.float32)
    made = {
        "fp32": (MODEL, "x86_64_v3", pictures[:1], {}),
        "qdq": (
            qdq_cnn().SerializeToString(),
            "x86_64_v3",
            random.standard_normal((1, 3, 13, 11)).astype(np.float32),
            {},
        ),
    }
    if fits(VNNI, identity()):
        calibrated = {"precision": "int8", "calibration": {"image": pictures}, "shapes": {"image": (1, 3, 32, 32)}}
        made["int8"] = (MODEL, VNNI, pictures[:1], calibrated)
    found = {}
    for name, (model, level, x, options) in made.items():
        here = pelton.build(model, level=0, target=f"cpu:{level}", cache_dir=kernel_cache, **options)
        (want,) = here.run({here.inputs[0].name: x}).values()
        engines = {}
        for arm in LEVELS:
            engines[arm] = folder / f"{name}-{arm}.pelton"
            pelton.build(model, level=0, target=f"cpu:{arm}", cache_dir=kernel_cache, **options).save(engines[arm])
        np.save(folder / f"{name}.npy", x)
        found[name] = Case(engines, x, want)
    return found


@pytest.fixture(scope="session")
def inside(root, folder):
    """Runs a command in the root, where /engines is the folder of engines, and returns what it prints."""

    def run(*command: object, cpu: str = "max", status: int = 0) -> str:
        done = subprocess.run(
            emulation.guest(root, *command, binds={folder: "/engines"}, cpu=cpu),
            capture_output=True,
            text=True,
            env=emulation.environment(),
        )
        assert done.returncode == status, (done.stdout + done.stderr)[-4000:]
        return done.stdout + (done.stderr if status else "")

    return run


RUN_ALL = """
import sys
import numpy as np
import pelton
for name in sys.argv[1:]:
    case = name.partition("-")[0]
    engine = pelton.load(f"/engines/{name}.pelton")
    (y,) = engine.run({engine.inputs[0].name: np.load(f"/engines/{case}.npy")}).values()
    np.save(f"/engines/{name}.out.npy", y)
"""


def test_the_command_runs(inside):
    assert inside("pelton", "--version") == f"pelton {pelton.__version__}\n"


def test_the_machine_is_known_by_its_own_registers(inside):
    """Features come from the kernel's words, not from files that describe the CPU below the emulator."""
    for cpu, level in (("cortex-a72", "aarch64"), ("neoverse-n1", "aarch64_dotprod"), ("max", "aarch64_i8mm")):
        report = json.loads(inside("pelton", "doctor", "--json", cpu=cpu))
        assert report["cpu"]["isa"] == level and report["cpu"]["target"] == f"cpu:{level}"
        assert ("dotprod" in report["cpu"]["features"]) == (level != "aarch64")
        assert not {"avx2", "sse3"} & set(report["cpu"]["features"])
        model = {"cortex-a72": "Arm Cortex-A72", "neoverse-n1": "Arm Neoverse-N1"}.get(cpu)
        assert report["cpu"]["model"] == model if model else report["cpu"]["model"].startswith("AArch64 0x")


def test_engines_built_on_x86_give_the_same_in_python(cases, inside, folder):
    names = [path.stem for case in cases.values() for path in case.engines.values()]
    inside("/usr/bin/python3", "-c", RUN_ALL, *names)
    for name in names:
        kind = name.partition("-")[0]
        cases[kind].check(np.load(folder / f"{name}.out.npy"), exact=kind != "fp32")


def test_engines_built_on_x86_give_the_same_in_c(cases, root, folder):
    program = emulation.runner(folder)
    for kind, case in cases.items():
        for path in case.engines.values():
            (raw,) = emulation.run_file(root, program, path, [case.x], folder / "c")
            case.check(np.frombuffer(raw, np.float32).reshape(case.want.shape), exact=kind != "fp32")


@pytest.fixture(scope="session")
def engines(folder, kernel_cache) -> dict[str, Path]:
    """Engines of several kinds, of fixed and dynamic sizes, and a script; `carrying` has several kernels per step."""
    static, cnn = small_cnn(size=12).SerializeToString(), MODELS["cnn"]
    models = {"static": (static, {"x": (1, 3, 12, 12)}, 0), "carrying": (cnn[0](), cnn[1], 3)}
    models |= {name: (model(), shapes, 0) for name, (model, shapes) in MODELS.items()}
    models["detector"] = (detector()[0], {}, 0)
    found = {}
    for name, (model, shapes, level) in models.items():
        found[name] = folder / f"{name}.pelton"
        options = {"level": level, "cache_dir": kernel_cache, "shapes": shapes or None}
        pelton.build(model, target="cpu:aarch64_dotprod", **options).save(found[name])
    return found


def test_the_interface_of_the_library_keeps_its_promises(engines, root, folder):
    program = emulation.compile_with_library(PROGRAMS / "interface.c", folder)
    arguments = engines["static"], engines["cnn"], engines["carrying"]
    assert emulation.run_program(root, program, *arguments).strip() == "right"


def test_threads_get_what_one_thread_gets(engines, root, folder):
    program = emulation.compile_with_library(PROGRAMS / "threads.c", folder)
    files = [path for name, path in engines.items() if name != "carrying"]
    assert emulation.run_program(root, program, 2, *files).strip() == "all equal"


def test_altered_files_are_refused_or_harmless(engines, root, folder):
    program = emulation.compile_with_library(PROGRAMS / "mutate.c", folder)
    refused, _, taken, _ = emulation.run_program(root, program, engines["static"], 100, 1).split()
    assert int(refused) > 20 and int(refused) + int(taken) == 100


@pytest.mark.parametrize("level", [*LEVELS, "riscv64_v"])
def test_exported_engines_give_the_same(cases, kernel_cache, level, tmp_path):
    if why := emulation.lacking(f"qemu-{level.partition('_')[0]}"):
        pytest.skip(why)
    engine = pelton.build(MODEL, level=0, target=f"cpu:{level}", cache_dir=kernel_cache)
    (raw,) = emulation.run_bundle(engine.plain, [cases["fp32"].x], tmp_path)
    cases["fp32"].check(np.frombuffer(raw, np.float32).reshape(cases["fp32"].want.shape), exact=False)


def test_an_engine_for_a_better_cpu_is_rejected(cases, inside):
    said = inside("pelton", "bench", "/engines/qdq-aarch64_dotprod.pelton", cpu="cortex-a72", status=2)
    assert "needs a CPU with dotprod, fullfp16 (level aarch64_dotprod), this one (Arm Cortex-A72)" in said
    assert "build it for the target cpu:aarch64" in said


def test_commands_about_engines(cases, inside):
    said = inside("pelton", "inspect", "/engines/fp32-aarch64_dotprod.pelton")
    assert "aarch64_dotprod" in said and "logits" in said
    said = inside("pelton", "bench", "/engines/fp32-aarch64_dotprod.pelton", "--iterations", 3)
    assert "ms" in said


SESSION = """
import numpy as np
import pelton
x = np.load("/engines/fp32.npy")
session = pelton.InferenceSession("/engines/fp32-aarch64_dotprod.pelton")
assert [i.name for i in session.get_inputs()] == ["image"]
(y,) = session.run(None, {"image": x})
np.save("/engines/session.npy", y)
"""


def test_a_session_runs_an_engine(cases, inside, folder):
    inside("/usr/bin/python3", "-c", SESSION)
    cases["fp32"].check(np.load(folder / "session.npy"), exact=False)


HASHES = """
import ctypes, hashlib, random
from pelton.native import library
out = ctypes.create_string_buffer(32)
for size in (*range(130), 4096, 100_003):
    data = random.Random(size).randbytes(size)
    library().pelton_sha256(data, size, False, out)
    assert out.raw == hashlib.sha256(data).digest(), size
print("right")
"""


@pytest.mark.parametrize("cpu", ["max", "cortex-a72"])
def test_hashes_by_instructions(inside, cpu):
    assert inside("/usr/bin/python3", "-c", HASHES, cpu=cpu) == "right\n"
