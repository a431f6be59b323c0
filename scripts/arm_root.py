"""Unpacks the packages for AArch64 that Pelton needs, Debian's and Python's, as a root for an emulator.

    python scripts/arm_root.py FOLDER

The packages come from the sources that this system's apt and pip know. Nothing is installed on this system, and no
script of a package runs: apt resolves and downloads, dpkg-deb unpacks, pip unpacks wheels.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ARCHITECTURE = "arm64"  # Debian's name
PACKAGES = ("python3", "python3-distutils", "libstdc++6", "coreutils", "dash")
# What reads models and compiles kernels is not needed to run engines; a session asks onnx for a model's inputs.
WHEELS = ("pip", "numpy", "onnx>=1.17", "protobuf>=4.25.1", "ml_dtypes>=0.5")
PLATFORMS = tuple(f"manylinux_2_{minor}_aarch64" for minor in (17, 26, 27, 28, 31, 34, 35))


def main(root: Path) -> None:
    unpack_debian(root, root.with_name(f"{root.name}.apt"))
    (version,) = (p.name.removeprefix("python") for p in (root / "usr" / "lib").glob("python3.*"))
    platforms = [word for p in ("manylinux2014_aarch64", *PLATFORMS) for word in ("--platform", p)]
    target = root / "usr" / "lib" / "python3" / "dist-packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=:all:"]
    subprocess.run([*pip, *platforms, "--python-version", version, "--target", target, *WHEELS], check=True)


def apt(work: Path, **more: object) -> list[str]:
    """Returns the command of an apt that knows of no installed package, and keeps all its files in a folder."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    status = work / "status"
    status.touch()
    settings = {
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
        "Dir::State": work / "state",
        "Dir::State::status": status,
        "Dir::Cache": work / "cache",
        **more,
    }
    return ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]


def unpack_debian(root: Path, work: Path) -> None:
    """Unpacks PACKAGES and what they depend on; `work` keeps downloads."""
    command = apt(work, **{"APT::Architecture": ARCHITECTURE, "APT::Architectures": ARCHITECTURE})
    # sources that have no such packages are an error of `update`, but of no importance
    subprocess.run([*command, "update"], stderr=subprocess.DEVNULL)
    subprocess.run([*command, "install", "--yes", "--download-only", *PACKAGES], check=True, stdout=subprocess.DEVNULL)
    root.mkdir(parents=True, exist_ok=True)
    packages = sorted((work / "cache" / "archives").glob("*.deb"))
    for package in packages:
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    for folder in ("tmp", "proc", "dev", "sys"):
        (root / folder).mkdir(exist_ok=True)
    shell = root / "bin" / "sh"  # a link that a package's script makes
    if not shell.exists():
        shell.symlink_to("dash")
    print(f"{root}: {len(packages)} packages of {ARCHITECTURE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
