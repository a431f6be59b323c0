"""NVIDIA's software as files: kernel module, driver library, toolkits, libraries. Nothing of it is started."""

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from .tree import FileTree

PCI = "sys/bus/pci/devices"
NVIDIA, DISPLAYS = "0x10de", ("0x0300", "0x0302")  # vendor; classes of VGA and 3D controllers (pci.ids)
VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){1,4}")
SYSTEM = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/cuda*/lib64",
    "usr/local/cuda*/targets/*/lib",
)
# Libraries that Pelton or its packages can use → the wheels that bring them, with the CUDA of each name.
LIBRARIES: Mapping[str, tuple[str, Mapping[str, int | None]]] = {
    "cublasLt": ("libcublasLt.so", {"nvidia-cublas": None, "nvidia-cublas-cu12": 12}),
    "cudnn": ("libcudnn.so", {"nvidia-cudnn-cu13": 13, "nvidia-cudnn-cu12": 12}),
    "nvrtc": ("libnvrtc.so", {"nvidia-cuda-nvrtc": None, "nvidia-cuda-nvrtc-cu12": 12}),
}


@dataclass(frozen=True)
class CudaDriver:
    """gpus: PCI addresses of NVIDIA's display controllers → the kernel's driver for each, empty without one. module:
    version of NVIDIA's kernel module, empty if it is not loaded. open: True for its open form. library: path and
    version of libcuda. api: newest CUDA that the driver supports, as "13.0". nodes: device files in /dev."""

    gpus: Mapping[str, str]
    module: str
    open: bool
    library: str
    version: str
    api: str
    nodes: Sequence[str]


@dataclass(frozen=True)
class CudaToolkit:
    """A toolkit's folder and version, the latter empty if unknown."""

    path: str
    version: str


@dataclass(frozen=True)
class CudaLibrary:
    """name: as in LIBRARIES. cuda: major version of CUDA that the library is for, None if unknown."""

    name: str
    path: str
    version: str
    cuda: int | None


def driver(tree: FileTree) -> CudaDriver:
    gpus = {}
    for address in tree.names(PCI):
        kind = tree.text(f"{PCI}/{address}/class")
        if tree.text(f"{PCI}/{address}/vendor") == NVIDIA and kind.startswith(DISPLAYS):
            gpus[address] = tree.link(f"{PCI}/{address}/driver")
    about = tree.text("proc/driver/nvidia/version").partition("\n")[0]
    module = VERSION.search(about) or VERSION.search(tree.text("sys/module/nvidia/version"))
    library = next(iter(_files(tree, "libcuda.so", SYSTEM)), "")
    nodes = [name for pattern in ("nvidia*", "dxg") for name in tree.names("dev", pattern)]
    return CudaDriver(
        gpus=gpus,
        module=module[0] if module else "",
        open="Open Kernel Module" in about,
        library=library,
        version=_suffix(library),
        api=_api() if os.path.abspath(tree.root) == os.sep else "",
        nodes=nodes,
    )


def _api() -> str:
    """Asks libcuda, which need not be started for it; empty without one."""
    if not sys.platform.startswith("linux"):
        return ""
    number = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return ""
    return "" if status else f"{number.value // 1000}.{number.value % 1000 // 10}"


def toolkits(tree: FileTree, environment: Mapping[str, str] = os.environ) -> list[CudaToolkit]:
    """Returns the toolkits in /usr/local and of CUDA_HOME and CUDA_PATH, each folder once."""
    folders = [tree.path(f"usr/local/{name}") for name in tree.names("usr/local", "cuda*")]
    folders += [environment[name] for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    found: dict[str, CudaToolkit] = {}
    for folder in folders:
        path = os.path.realpath(folder)
        if os.path.isdir(path) and path not in found:
            found[path] = CudaToolkit(path, _toolkit_version(FileTree(path)))
    return list(found.values())


def _toolkit_version(folder: FileTree) -> str:
    """Reads version.json, or version.txt of older toolkits; else the folder's name has it, as in cuda-13.0."""
    try:
        version = json.loads(folder.text("version.json"))["cuda"]["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = folder.text("version.txt")
    match = VERSION.search(version) if isinstance(version, str) else None
    match = match or VERSION.search(os.path.basename(folder.root))
    return match[0] if match else ""


def libraries(
    tree: FileTree, paths: Sequence[str] = sys.path, environment: Mapping[str, str] = os.environ
) -> list[CudaLibrary]:
    """Returns the libraries of wheels in `paths`, then those of the system: all that a program could load."""
    wheels = [os.path.join(path, part) for path in paths for part in ("nvidia/*/lib", "nvidia/*/lib/x86_64")]
    folders = [p for p in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(p)]
    found = []
    for name, (file, packages) in LIBRARIES.items():
        for path in _files(tree, file, [*wheels, *folders, *SYSTEM]):
            wheel = _wheel(packages, paths) if f"{os.sep}nvidia{os.sep}" in path else ("", None)
            version = wheel[0] or _suffix(path)
            cuda = wheel[1] if name == "cudnn" or wheel[1] else _major(version)
            found.append(CudaLibrary(name, path, version, cuda))
    return found


def _wheel(packages: Mapping[str, int | None], paths: Sequence[str]) -> tuple[str, int | None]:
    for package, cuda in packages.items():
        for distribution in metadata.distributions(name=package, path=[*paths]):
            return distribution.version, cuda
    return "", None


def _major(version: str) -> int | None:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else None


def _files(tree: FileTree, file: str, folders: Sequence[str]) -> Iterator[str]:
    """Yields the files of a library in folders, absolute ones or below the root: once for each file of the disk, by
    its full version."""
    seen = set()
    for folder in folders:
        for path in sorted(glob.glob(os.path.join(tree.path(folder), glob.escape(file) + ".*"))):
            real = os.path.realpath(path)
            if real not in seen and re.search(r"\.so(\.\d+)+$", real) and os.path.isfile(real):
                seen.add(real)
                yield real


def _suffix(path: str) -> str:
    """Returns the version at the end of a library's name: libcuda.so.580.65.06."""
    return os.path.basename(path).partition(".so.")[2]
