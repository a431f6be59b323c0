"""Advice of `pelton doctor`: each case with the command that mends it, and silence where nothing is wrong."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from importlib import metadata

import pytest

from pelton.cli import main
from pelton.cli.doctor import advice, fits, machine
from pelton.system.probes import containers, cuda, groups, kernel, processors

SYSTEM = kernel.OperatingSystem("Debian 12", "debian", "12", "apt", "6.1", "glibc 2.36", False, False, 0.1, 0)
TOPOLOGY = processors.CpuTopology(8, "0-7", 4, 2)
GROUP = groups.ControlGroup("2", None, "", None, None)
PAGES = kernel.HugePages("madvise", "madvise", 0)
CLOCK = processors.ClockFrequency("acpi-cpufreq", {"performance": 8}, True, "/sys/boost", 1, 3500.0)
OUTSIDE = containers.ContainerRuntime("", {"docker": "/usr/bin/docker", "nvidia-ctk": "/usr/bin/nvidia-ctk"}, True)
DRIVER = cuda.CudaDriver(
    {"0000:01:00.0": "nvidia"},
    "580.65.06",
    True,
    "/l/libcuda.so.580.65.06",
    "580.65.06",
    "13.0",
    ["nvidia0", "nvidiactl"],
)
NONE = cuda.CudaDriver({}, "", False, "", "", "", [])
FACTS = machine.MachineFacts(
    SYSTEM, TOPOLOGY, GROUP, [], PAGES, CLOCK, OUTSIDE, NONE, [], [], None, None, None, 0.0, 0.0
)


def mends(**changes) -> dict[str, str | None]:
    """What the advice says about a machine with these changes → its command."""
    found = machine.advise(replace(FACTS, **changes))
    for item in found:
        assert item.about in ("cpu", "memory", "system", "gpu", "versions") and item.place in ("here", "host")
        assert not item.mend or shlex.split(item.mend)
    return {item.what: item.mend for item in found}


def one(**changes) -> tuple[str, str | None]:
    (found,) = mends(**changes).items()
    return found


def test_a_good_machine_needs_nothing():
    assert mends() == {} and mends(driver=DRIVER) == {}


def test_quota():
    what, mend = one(group=replace(GROUP, quota=2.0))
    assert "allows 2 of 8 CPUs" in what and mend == "pelton build model.onnx --threads 2"
    what, mend = one(group=replace(GROUP, quota=1.5))
    assert "stop 25% of the time" in what and mend == "docker update --cpus 2 CONTAINER"
    assert mends(group=replace(GROUP, quota=8.0)) == {}
    what, mend = one(group=replace(GROUP, throttled=0.3))
    assert "30% of the periods" in what and mend.startswith("export OMP_NUM_THREADS=")


def test_huge_pages():
    what, mend = one(pages=replace(PAGES, mode="never"))
    assert mend == "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    inside = replace(OUTSIDE, inside="docker")
    (item,) = machine.advise(replace(FACTS, pages=replace(PAGES, mode="never"), container=inside))
    assert item.place == "host"


@pytest.mark.parametrize(
    "family, manager, install",
    [
        ("debian", "apt", "sudo apt-get install linux-cpupower && "),
        ("ubuntu", "apt", "sudo apt-get install linux-tools-common linux-tools-$(uname -r) && "),
        ("rocky", "dnf", "sudo dnf install kernel-tools && "),
        ("other", "", ""),
    ],
)
def test_governor(monkeypatch, family, manager, install):
    slow = replace(CLOCK, governors={"powersave": 6, "performance": 2})
    system = replace(SYSTEM, family=family, manager=manager)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    what, mend = one(clock=slow, system=system)
    assert "powersave on 6" in what and mend == f"{install}sudo cpupower frequency-set -g performance"
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/usr/bin/" + name)
    assert one(clock=slow, system=system)[1] == "sudo cpupower frequency-set -g performance"


def test_boost_steal_and_nodes():
    off = replace(CLOCK, boost=False, switch="/sys/devices/system/cpu/intel_pstate/no_turbo", on=0)
    assert one(clock=off)[1] == "echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    assert "take 7% of the CPU time" in one(interval=0.07)[0] and "take 4%" in one(boot=0.04)[0]
    nodes = [processors.NumaNode(0, "0-3", 1), processors.NumaNode(1, "4-7", 1)]
    assert one(numa=nodes)[1].startswith("numactl --cpunodebind=0 --membind=0 ")
    assert mends(numa=nodes, topology=replace(TOPOLOGY, allowed="4-7")) == {}


def test_bandwidth():
    assert not advice.bandwidth(100, None, None, 8) and not advice.bandwidth(70, 100, None, 8)
    assert not advice.bandwidth(20, 100, 6.0, 8)  # others use the machine
    assert advice.bandwidth(20, 100, 0.5, 8)[0].mend == "sudo dmidecode --type memory"


def test_code_in_memory():
    assert one(system=replace(SYSTEM, memfd=2))[1] == "sudo sysctl vm.memfd_noexec=1"
    inside = replace(OUTSIDE, inside="docker")
    assert one(system=replace(SYSTEM, memfd=2), container=inside)[1] == "docker run --tmpfs /tmp:exec IMAGE"


def test_gpus():
    bare = replace(NONE, gpus={"0000:01:00.0": "nouveau"})
    what, mend = one(driver=bare)
    assert "nouveau" in what and mend == "sudo apt-get install nvidia-open"
    assert one(driver=bare, system=replace(SYSTEM, manager=""))[1] is None
    what, mend = one(driver=replace(DRIVER, version="590.48.01"))
    assert "580.65.06" in what and "590.48.01" in what and mend == "sudo reboot"
    what, mend = one(driver=DRIVER, container=replace(OUTSIDE, installed={"podman": "/usr/bin/podman"}))
    assert mend == "sudo apt-get install nvidia-container-toolkit"
    hidden = replace(DRIVER, nodes=[])
    assert one(driver=hidden, container=replace(OUTSIDE, inside="docker"))[1] == "docker run --gpus all IMAGE"
    podman = replace(OUTSIDE, inside="podman")
    assert one(driver=hidden, container=podman)[1] == "podman run --device nvidia.com/gpu=all IMAGE"


def test_gpus_in_windows():
    wsl = replace(SYSTEM, wsl=True)
    driver = replace(NONE, nodes=["dxg"])
    assert "driver in Windows" in one(driver=driver, system=wsl)[0]
    assert mends(driver=replace(driver, library="/usr/lib/wsl/lib/libcuda.so.1.1", api="13.0"), system=wsl) == {}
    what, mend = one(driver=replace(driver, library="/usr/lib/x86_64-linux-gnu/libcuda.so.535.1"), system=wsl)
    assert mend == "sudo apt-get purge $(dpkg -S /usr/lib/x86_64-linux-gnu/libcuda.so.535.1 | cut -d: -f1)"


@pytest.mark.parametrize(
    "driver, users, mend",
    [
        ({"module": "580.65.06"}, {"cuda-bindings": "13.0.2", "torch": "12.8"}, []),
        ({"module": "550.54.15"}, {"cuda-bindings": "13.0.2"}, ['pip install "cuda-bindings<13"']),
        ({"module": "550.54.15"}, {"cuda-bindings": "12.9.4", "torch": "12.8"}, []),
        ({"module": "470.82.01"}, {"cuda-bindings": "13.0.2", "torch": "12.8"}, ["update", "update"]),
        ({"module": "", "api": "12.4"}, {"torch": "13.0"}, ["update"]),
        ({"module": "", "api": "13.1"}, {"torch": "13.0", "cuda-bindings": "12.9"}, []),
        ({"module": "", "api": ""}, {"torch": "13.0"}, []),
        ({"module": "550.54.15"}, {"torch": None, "the toolkit in /c": "junk"}, []),
    ],
)
def test_drivers(driver, users, mend):
    found = fits.drivers(replace(DRIVER, **{"api": "", **driver}), users, "update")
    assert [item.mend for item in found] == mend
    assert all(user in " ".join(i.what for i in found) for user in list(users)[: len(mend)])


def test_the_table_of_drivers():
    """From new to old, both columns; each major version begins where its oldest driver says."""
    versions, needed = list(fits.DRIVERS), list(fits.DRIVERS.values())
    assert versions == sorted(versions, key=fits.numbers, reverse=True)
    assert needed == sorted(needed, key=fits.numbers, reverse=True)
    for major in (12, 13):
        assert fits.DRIVERS[f"{major}.0"] == fits.OLDEST[major]
    assert fits.newest("575.60") == "12.9" and fits.newest("1.0") is None and fits.newest("9999.0") == versions[0]


def test_libraries_of_two_versions_of_cuda():
    cudnn = cuda.CudaLibrary("cudnn", "/a", "9.10.2", 13)
    assert fits.library_pairs([cudnn, cuda.CudaLibrary("cublasLt", "/b", "13.1.0", 13)]) == []
    (item,) = fits.library_pairs([cudnn, cuda.CudaLibrary("cublasLt", "/b", "12.8.4", 12)])
    assert item.mend == "pip install nvidia-cublas"
    assert fits.library_pairs([cudnn]) == [] and fits.library_pairs([replace(cudnn, cuda=None)]) == []


SPECIFIERS = (
    *((">=1.17", v) for v in ("1.17", "1.17.0", "1.20.1", "2", "1.16.9", "1.17rc1")),
    *((">=0.16,<0.18", v) for v in ("0.16", "0.17.1", "0.18", "0.18.0")),
    *(("~=1.4", v) for v in ("1.4", "1.9", "2.0", "1.3")),
    *(("~=1.4.2", v) for v in ("1.4.2", "1.4.9", "1.5", "1.4.1")),
    *(("==1.2.*", v) for v in ("1.2", "1.2.3", "1.3")),
    *(("!=1.5,>1.0", v) for v in ("1.5.0", "1.6", "1.0", "1.0.1")),
    *(("<=2", v) for v in ("2.0.0", "2.0.1")),
)


@pytest.mark.parametrize("specifier, version", SPECIFIERS)
def test_requirements_are_those_of_packaging(specifier, version):
    """The reference is the package that pip uses; previews count as their releases here."""
    specifiers = pytest.importorskip("packaging.specifiers")
    release = version.removesuffix("rc1")
    assert fits.satisfies(version, specifier) == specifiers.SpecifierSet(specifier).contains(release)


def test_packages_that_reject_each_other(tmp_path, monkeypatch):
    for name, text in {
        "alpha-1.0": "Requires-Dist: beta>=2,<3\nRequires-Dist: gamma (>=1) ; extra == 'fast'\n"
        "Requires-Dist: beta==9; python_version < '3'\nRequires-Dist: delta",
        "beta-1.5": "",
        "gamma-0.5": "",
    }.items():
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        package, version = name.split("-")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{text}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert metadata.version("alpha") == "1.0"
    (item,) = fits.packages(["alpha", "nothing"], {})
    assert item.what == "alpha needs beta>=2,<3; 1.5 is installed" and item.mend == 'pip install "beta>=2,<3"'
    assert len(fits.packages(["alpha"], {"alpha": ["fast"]})) == 2


def test_torch_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "torch-2.9.0.dist-info").mkdir()
    (tmp_path / "torch-2.9.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    (tmp_path / "torch").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert fits.torch_cuda() is None
    for text, cuda_version in (
        ("cuda: Optional[str] = '12.8'", "12.8"),
        ("cuda = None", None),
        ("cuda='13.0'", "13.0"),
    ):
        (tmp_path / "torch/version.py").write_text(f"__version__ = '2.9.0'\n{text}\nhip = None\n")
        assert fits.torch_cuda() == cuda_version


def test_the_report_shows_advice(capsys, monkeypatch):
    found = [
        advice.Advice("gpu", "it is\nold", "sudo new", "host"),
        advice.Advice("cpu", "it is slow"),
    ]
    monkeypatch.setattr(machine, "advise", lambda facts: found)
    assert main(["doctor"]) == 0
    assert "\ngpu: it is\\nold\n  on the host: sudo new\ncpu: it is slow\n" in capsys.readouterr().out


def test_a_probe_that_fails_leaves_the_rest(capsys, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(machine, "read", fails)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "machine: RuntimeError: no such thing" in shown and re.search(r"^system +Linux", shown, re.M)
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"] == {"problem": "RuntimeError: no such thing"}
