"""Versions that do not fit together: CUDA and drivers, NVIDIA's libraries, torch, and the packages that Pelton uses.

Sources: docs.nvidia.com/cuda/archive/13.2.2/cuda-toolkit-release-notes, tables 2 and 3; nvidia.github.io/cuda-python/
cuda-bindings/latest/install.html and 12.9.11/install.html, "Runtime Requirements"; requirements of packages are their
own metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from pelton.system.probes.cuda import CudaDriver, CudaLibrary

from .advice import Advice

# First release of each CUDA → the driver for Linux on x86-64 that came with it (table 3).
DRIVERS = {
    "13.2": "595.45.04",
    "13.1": "590.44.01",
    "13.0": "580.65.06",
    "12.9": "575.51.03",
    "12.8": "570.26",
    "12.6": "560.28.03",
    "12.5": "555.42.02",
    "12.4": "550.54.14",
    "12.3": "545.23.06",
    "12.2": "535.54.03",
    "12.1": "530.30.02",
    "12.0": "525.60.13",
    "11.8": "520.61.05",
    "11.7": "515.43.04",
    "11.6": "510.39.01",
    "11.5": "495.29.05",
    "11.4": "470.42.01",
    "11.3": "465.19.01",
    "11.2": "460.27.03",
    "11.1": "455.23",
    "11.0": "450.51.05",
}
# Major version of CUDA → the oldest driver for programs of any of its minor versions (table 2; cuda-bindings asks for
# the same drivers, to their last number).
OLDEST = {13: "580.65.06", 12: "525.60.13", 11: "450.80.02"}
COMPARED = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([0-9][0-9A-Za-z.!+*-]*)")


def numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release: 13.0.2+cu130 → (13, 0, 2). Labels of previews are left out."""
    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", version.strip())
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def older(version: str, other: str) -> bool:
    """True if a version comes before another one."""
    return _compare(numbers(version), numbers(other)) < 0


def _compare(a: Sequence[int], b: Sequence[int]) -> int:
    width = max(len(a), len(b))
    first, second = ([*x, *[0] * (width - len(x))] for x in (a, b))
    return (first > second) - (first < second)


def satisfies(version: str, requirement: str) -> bool:
    """True if a version is among those of a requirement (PEP 440), by the numbers of releases alone."""
    here = numbers(version)
    for sign, bound in COMPARED.findall(requirement):
        there = numbers(bound)
        order = _compare(here, there)
        if bound.endswith("*"):
            order = _compare(here[: len(there)], there)
        good = {
            "==": order == 0,
            "!=": order != 0,
            "<": order < 0,
            "<=": order <= 0,
            ">": order > 0,
            ">=": order >= 0,
            "~=": order >= 0 and here[: len(there) - 1] == there[:-1],
        }
        if not good[sign]:
            return False
    return True


def packages(names: Iterable[str], extras: Mapping[str, Iterable[str]]) -> list[Advice]:
    """Returns a problem for each installed package that another one rejects. names: those whose requirements count,
    and extras of theirs. Requirements with other conditions are left out."""
    found = {}
    for name in names:
        for requirement in _requirements(name, extras.get(name, ())):
            needed, bounds = requirement
            version = installed(needed)
            if version is not None and not satisfies(version, bounds):
                found[needed, bounds] = Advice(
                    "versions",
                    f"{name} needs {needed}{bounds}; {version} is installed",
                    f'pip install "{needed}{bounds}"',
                )
    return list(found.values())


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements(name: str, extras: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the (package, bounds) that an installed package requires, always or for its extras."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        wanted, _, condition = (part.strip() for part in line.partition(";"))
        extra = re.fullmatch(r"extra\s*==\s*[\"']([\w-]+)[\"']", condition)
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*\(?([^)]*)\)?$", wanted)
        if match and (not condition or extra and extra[1] in [*extras]):
            found.append((match[1], match[2].replace(" ", "")))
    return found


def torch_cuda() -> str | None:
    """Returns the CUDA that the installed torch is built for, as 12.8, without an import; None for CPUs or without
    torch."""
    try:
        folder = metadata.distribution("torch").locate_file("torch/version.py")
        match = re.search(r"^cuda\b[^=]*=\s*[\"'](\d+\.\d+)", Path(str(folder)).read_text("utf-8"), re.M)
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return match[1] if match else None


def drivers(driver: CudaDriver, users: Mapping[str, str | None], update: str | None) -> list[Advice]:
    """Returns a problem for each user of CUDA that the driver is too old for. users: the version of CUDA that each is
    for, None if it is missing; update: the command that brings a new driver."""
    found = []
    for user, cuda in users.items():
        major = (numbers(cuda or "") or (0,))[0]
        if major not in OLDEST or not _lacks(driver, major):
            continue
        latest = driver.api or newest(driver.module)
        here = " ".join(filter(None, (driver.module, f"(CUDA {latest})" if latest else "")))
        # its wheels for CUDA 12 have the same functions that Pelton calls
        older_wheel = user == "cuda-bindings" and major == 13 and not _lacks(driver, 12)
        found.append(
            Advice(
                "versions",
                f"{user} is for CUDA {major}, which needs driver {OLDEST[major]} or newer; {here} is installed",
                'pip install "cuda-bindings<13"' if older_wheel else update,
            )
        )
    return found


def _lacks(driver: CudaDriver, major: int) -> bool:
    """True if a driver is known to be too old for programs of a major version of CUDA."""
    if driver.module:
        return older(driver.module, OLDEST[major])
    return bool(driver.api) and older(driver.api, str(major))


def newest(driver: str) -> str | None:
    """Returns the newest CUDA in the table whose first driver is not newer than this one."""
    return next((cuda for cuda, needed in DRIVERS.items() if not older(driver, needed)), None)


def library_pairs(libraries: Sequence[CudaLibrary]) -> list[Advice]:
    """Returns a problem if cuDNN is for another CUDA than the cuBLASLt that would be loaded with it: it ends the
    process then, so Pelton leaves cuDNN out."""
    first = dict[str, CudaLibrary]()
    for library in libraries:
        first.setdefault(library.name, library)
    cudnn, cublas = first.get("cudnn"), first.get("cublasLt")
    if cudnn is None or cublas is None or None in (cudnn.cuda, cublas.cuda) or cudnn.cuda == cublas.cuda:
        return []
    wheel = "nvidia-cublas" if cudnn.cuda == 13 else f"nvidia-cublas-cu{cudnn.cuda}"
    return [
        Advice(
            "versions",
            f"cuDNN {cudnn.version} is for CUDA {cudnn.cuda}, cuBLASLt {cublas.version} for CUDA {cublas.cuda}: "
            "engines run without cuDNN",
            f"pip install {wheel}",
        )
    ]
