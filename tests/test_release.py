"""The artifacts of `make wheels`: wheels for any Linux with glibc 2.17, and sources that reproduce them."""

import os
import platform
import re
import struct
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIST = os.environ.get("PELTON_DIST")
MACHINES = {"x86_64": 62, "aarch64": 183}  # as ELF numbers them (e_machine)
UNSHIPPED = (".git",)  # what concerns the repository, not its sources
pytestmark = pytest.mark.skipif(DIST is None, reason="`make wheels` makes the files, and runs this")


def made(pattern: str) -> Path:
    (path,) = (ROOT / str(DIST)).glob(pattern)
    return path.absolute()


def version() -> str:
    (found,) = re.findall(r'^VERSION = "(.*)"$', (ROOT / "src/pelton/version.py").read_text(), re.M)
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_the_wheel_is_for_any_python_and_old_systems(machine):
    wheel = made(f"*_{machine}.whl")
    assert wheel.name == f"pelton-{version()}-py3-none-manylinux_2_17_{machine}.whl"
    audit = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True
    ).stdout
    tag = rf'consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"manylinux_2_17_{machine}"'
    assert re.search(tag, audit), audit


@pytest.mark.parametrize("machine", MACHINES)
def test_the_library_is_for_the_machine_of_the_wheel(machine):
    library = zipfile.ZipFile(made(f"*_{machine}.whl")).read("pelton/native/libpelton.so")
    assert library[:5] == b"\x7fELF\2" and struct.unpack_from("<H", library, 18) == (MACHINES[machine],)
    versions = [tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_([0-9.]+)\0", library)]
    assert versions and max(versions) <= (2, 17)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_wheel_holds_the_package_and_nothing_else(machine):
    inside = set(zipfile.ZipFile(made(f"*_{machine}.whl")).namelist())
    package = {n for n in inside if not n.startswith(f"pelton-{version()}.dist-info/")}
    sources = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/pelton").rglob("*.py")}
    assert sources <= package and all(n.startswith("pelton/") for n in package)
    assert "pelton/native/libpelton.so" in package and "pelton/py.typed" in package
    assert any(n.endswith("/licenses/LICENSE") for n in inside)


def test_the_sources_hold_all_that_is_kept():
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    with tarfile.open(made("*.tar.gz")) as sources:
        inside = {name.partition("/")[2] for name in sources.getnames()}
    assert not {f for f in kept if f and not f.startswith(UNSHIPPED)} - inside


@pytest.mark.parametrize("kind", [f"*_{platform.machine()}.whl", "*.tar.gz"])
def test_it_installs_and_runs_with_numpy_alone(kind, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    quiet = {"check": True, "cwd": tmp_path, "capture_output": True, "text": True}
    subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", made(kind)], **quiet)
    packages = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], **quiet).stdout
    assert {line.partition("==")[0] for line in packages.split()} <= {"pelton", "numpy", "pip", "setuptools"}
    said = subprocess.run([tmp_path / "venv/bin/pelton", "--version"], **quiet).stdout
    assert said == f"pelton {version()}\n"
    subprocess.run([python, "-c", "import pelton.backends.cpu as cpu; cpu.describe()"], **quiet)
