"""Probes of `pelton doctor` on made trees of /proc and /sys: whole ones, empty ones, damaged ones."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from pelton.cli.doctor import machine
from pelton.system.probes import bandwidth, containers, cuda, groups, kernel, processors
from pelton.system.probes.tree import FileTree, cpu_list, cpu_ranges

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
GROUP = "sys/fs/cgroup"
SERVER = {
    "etc/os-release": 'PRETTY_NAME="Rocky Linux 9.4"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n',
    "proc/sys/kernel/osrelease": "5.14.0-427\n",
    "proc/sys/vm/memfd_noexec": "2\n",
    "proc/loadavg": "3.25 2.00 1.00 4/500 1234\n",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n",
    "proc/meminfo": "MemTotal:  1000 kB\nMemAvailable:  500 kB\nAnonHugePages:    2048 kB\n",
    "proc/stat": "cpu  100 0 100 700 50 0 0 50 7 7\ncpu0 1 1 1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
    f"{CPU}/online": "0-3\n",
    **{f"{CPU}/cpu{i}/topology/thread_siblings_list": f"{i % 2},{i % 2 + 2}\n" for i in range(4)},
    **{f"{CPU}/cpu{i}/cache/index3/shared_cpu_list": f"{i % 2},{i % 2 + 2}\n" for i in range(4)},
    f"{CPU}/cpufreq/policy0/scaling_governor": "powersave\n",
    f"{CPU}/cpufreq/policy0/affected_cpus": "0 1\n",
    f"{CPU}/cpufreq/policy0/cpuinfo_max_freq": "3500000\n",
    f"{CPU}/cpufreq/policy0/scaling_driver": "intel_pstate\n",
    f"{CPU}/cpufreq/policy2/scaling_governor": "performance\n",
    f"{CPU}/intel_pstate/no_turbo": "1\n",
    f"{NODE}/node0/cpulist": "0,2\n",
    f"{NODE}/node0/meminfo": "Node 0 MemTotal:       4 kB\nNode 0 MemFree: 1 kB\n",
    f"{NODE}/node1/cpulist": "1,3\n",
    "proc/self/cgroup": "0::/a/b\n",
    f"{GROUP}/cgroup.controllers": "cpuset cpu memory\n",
    f"{GROUP}/a/cpu.max": "150000 100000\n",
    f"{GROUP}/a/b/cpu.stat": "usage_usec 5\nnr_periods 200\nnr_throttled 30\n",
    f"{GROUP}/a/b/cpuset.cpus.effective": "0-1\n",
    f"{GROUP}/a/memory.max": "4096\n",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:02:00.0/vendor": "0x8086\n",
    "sys/bus/pci/devices/0000:02:00.0/class": "0x030000\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    "GCC version: gcc version 12.3.0\n",
    "usr/lib64/libcuda.so.580.65.06": "",
    "usr/local/cuda-12.4/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}',
    "usr/local/cuda-12.4/lib64/libcublasLt.so.12.4.5.8": "",
    "usr/local/cuda-9.0/version.txt": "CUDA Version 9.0.176\n",
    "dev/nvidiactl": "",
    "dev/nvidia0": "",
    ".dockerenv": "",
}


@pytest.fixture
def server(tmp_path) -> FileTree:
    for name, text in SERVER.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    os.symlink("../../../../bus/pci/drivers/nvidia", tmp_path / "sys/bus/pci/devices/0000:01:00.0/driver")
    os.symlink("cuda-12.4", tmp_path / "usr/local/cuda")
    for name in ("libcuda.so.1", "libcuda.so"):
        os.symlink("libcuda.so.580.65.06", tmp_path / "usr/lib64" / name)
    return FileTree(str(tmp_path))


def test_system(server):
    known = kernel.operating_system(server)
    assert (known.distribution, known.family, known.version, known.manager) == (
        "Rocky Linux 9.4",
        "rocky",
        "9.4",
        "dnf",
    )
    assert (known.kernel, known.wsl, known.virtual, known.load, known.memfd) == ("5.14.0-427", False, True, 3.25, 2)
    assert kernel.huge_pages(server) == kernel.HugePages("never", "madvise", 2 << 20)


def test_windows_subsystem(tmp_path):
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.15.153.1-microsoft-standard-WSL2")
    assert kernel.operating_system(FileTree(str(tmp_path))).wsl


def test_processors(server):
    assert processors.topology(server, frozenset({0, 1, 2})) == processors.CpuTopology(4, "0-2", 2, 2)
    assert processors.numa(server) == [processors.NumaNode(0, "0,2", 4096), processors.NumaNode(1, "1,3", None)]
    clock = processors.frequency(server)
    assert clock.governors == {"powersave": 2, "performance": 1} and clock.boost is False
    assert (clock.switch, clock.on, clock.highest) == (f"/{CPU}/intel_pstate/no_turbo", 0, 3500.0)
    assert processors.cpu_time(server) == processors.CpuTime(1000, 50)


def test_steal_time_is_a_share():
    before, after = processors.CpuTime(100, 5), processors.CpuTime(200, 25)
    assert processors.stolen(before, after) == 0.2
    assert processors.stolen(None, after) is None and processors.stolen(after, after) is None
    assert processors.stolen(after, processors.CpuTime(300, 5)) == 0  # counters of some hosts go back


def test_control_group_of_version_2(server):
    assert groups.control_group(server) == groups.ControlGroup("2", 1.5, "0-1", 4096, 0.15)


def test_control_groups_of_version_1(tmp_path):
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:cpuset:/x\n1:name=systemd:/\n",
        f"{GROUP}/cpu/x/cpu.cfs_quota_us": "50000",
        f"{GROUP}/cpu/x/cpu.cfs_period_us": "100000",
        f"{GROUP}/cpu/x/cpu.stat": "nr_periods 0\nnr_throttled 0",
        f"{GROUP}/cpuset/x/cpuset.cpus": "2",
        f"{CPU}/online": "0-7",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert groups.control_group(FileTree(str(tmp_path))) == groups.ControlGroup("1", 0.5, "2", None, None)


def test_nvidia(server):
    driver = cuda.driver(server)
    assert driver.gpus == {"0000:01:00.0": "nvidia"} and driver.nodes == ["nvidia0", "nvidiactl"]
    assert (driver.module, driver.open, driver.version, driver.api) == ("580.65.06", True, "580.65.06", "")
    assert driver.library == server.path("usr/lib64/libcuda.so.580.65.06")
    kits = cuda.toolkits(server, {"CUDA_HOME": server.path("usr/local/cuda"), "CUDA_PATH": "/nowhere"})
    assert [(Path(kit.path).name, kit.version) for kit in kits] == [("cuda-12.4", "12.4.1"), ("cuda-9.0", "9.0.176")]
    (cublas,) = cuda.libraries(server, [], {})
    assert (cublas.name, cublas.version, cublas.cuda) == ("cublasLt", "12.4.5.8", 12)


def test_libraries_of_wheels_come_first(server, tmp_path):
    site = tmp_path / "site"
    (site / "nvidia/cudnn/lib").mkdir(parents=True)
    (site / "nvidia/cudnn/lib/libcudnn.so.9").touch()
    (site / "nvidia_cudnn_cu13-9.10.2.dist-info").mkdir()
    (site / "nvidia_cudnn_cu13-9.10.2.dist-info/METADATA").write_text("Name: nvidia-cudnn-cu13\nVersion: 9.10.2\n")
    found = {library.name: library for library in cuda.libraries(server, [str(site)], {})}
    assert (found["cudnn"].version, found["cudnn"].cuda) == ("9.10.2", 13) and found["cublasLt"].cuda == 12


@pytest.mark.parametrize(
    "file, environment, inside",
    [
        (".dockerenv", {}, "docker"),
        ("run/.containerenv", {}, "podman"),
        ("proc/1/cgroup", {}, "containerd"),
        ("x", {"container": "lxc"}, "lxc"),
        (".dockerenv", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ("x", {}, ""),
    ],
)
def test_containers(tmp_path, file, environment, inside):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("0::/system.slice/containerd.service/x")
    for name in ("podman", "docker"):
        (tmp_path / name).write_text("")
    (tmp_path / "podman").chmod(0o755)
    known = containers.containers(FileTree(str(tmp_path)), environment, str(tmp_path))
    assert known.inside == inside and known.installed == {"podman": str(tmp_path / "podman")}


def test_bandwidth_is_of_more_memory_than_caches_hold(server):
    assert bandwidth.cache_bytes(server, [0, 1, 2, 3], 32 << 20) == 64 << 20
    assert bandwidth.cache_bytes(FileTree("/nowhere"), [0, 1], 32 << 20) == 32 << 20
    assert bandwidth.size_for(64 << 20, None) == 256 << 20
    assert bandwidth.size_for(1 << 20, 8 << 30) == bandwidth.LEAST
    assert bandwidth.size_for(64 << 20, 1 << 30) is None
    rate = bandwidth.measure(1 << 20, 2, None, seconds=0.01)
    assert rate is not None and rate.threads == 2 and 0.5 < rate.rate < 10_000
    assert bandwidth.measure(1 << 20, 1, 1 << 20) is None


def read(tree: FileTree) -> machine.MachineFacts:
    facts = machine.read(tree, {}, timed=False)
    machine.advise(facts)
    machine.plain(facts)
    return facts


def test_nothing_is_there():
    facts = read(FileTree("/nowhere"))
    assert facts.numa == [] and facts.clock.governors == {} and facts.pages.mode == "" and facts.interval is None
    assert facts.group == groups.ControlGroup("", None, "", None, None) and facts.driver.module == ""


def test_another_system(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "confstr", raising=False)
    assert read(FileTree("/nowhere")).topology.allowed.startswith("0")


JUNK = (
    "",
    "\n",
    "-1",
    "99999999999999999999999999",
    "0-99999999999",
    "[",
    "[]",
    ":",
    "=",
    "a b c",
    "nan",
    "0x10de",
    "1" * 9999,
)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files(server, seed):
    """Each file is left, removed, made a folder, a pipe, unreadable, or filled with junk."""
    rng = random.Random(seed)
    for name in SERVER:
        path = Path(server.path(name))
        how = rng.choice(("left", "removed", "folder", "pipe", "forbidden", "bytes", "junk", "lines"))
        if how in ("removed", "folder", "pipe"):
            path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "pipe":
            os.mkfifo(path)
        elif how == "forbidden":
            path.chmod(0)
        elif how == "bytes":
            path.write_bytes(rng.randbytes(200))
        elif how == "junk":
            path.write_text(rng.choice(JUNK))
        elif how == "lines":
            path.write_text(SERVER[name].replace(rng.choice("0123 :=,"), rng.choice(JUNK)))
    read(server)


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "f")
    assert stat.S_ISFIFO(os.stat(tmp_path / "f").st_mode) and FileTree(str(tmp_path)).text("f") == ""


@pytest.mark.parametrize(
    "text, cpus",
    [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("3-1", set()), ("a,2", {2}), ("0-999999", set())],
)
def test_lists_of_cpus(text, cpus):
    assert cpu_list(text) == cpus
    assert cpu_list(cpu_ranges(frozenset(cpus))) == cpus
