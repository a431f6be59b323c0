"""Unpacks the Debian packages of another architecture that Python needs, as a root for an emulator.

    python scripts/arm_root.py FOLDER [ARCHITECTURE]

ARCHITECTURE is Debian's name, arm64 by default. The packages come from the sources that this system's apt knows. Nothing
is installed on this system, and no script of a package runs: apt resolves and downloads, dpkg-deb unpacks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# coreutils and dash: what `make` of a package or a script of `pip` may call. libstdc++6: wheels with C++.
PACKAGES = ("python3", "python3-distutils", "libstdc++6", "coreutils", "dash")


def main(root: Path, architecture: str = "arm64") -> None:
    work = root.with_name(f"{root.name}.apt")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    status = work / "status"  # of an empty system
    status.touch()
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
        "Dir::State": work / "state",
        "Dir::State::status": status,
        "Dir::Cache": work / "cache",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    # sources that have no such packages are an error of `update`, but of no importance
    subprocess.run([*apt, "update"], stderr=subprocess.DEVNULL)
    subprocess.run([*apt, "install", "--yes", "--download-only", *PACKAGES], check=True, stdout=subprocess.DEVNULL)
    root.mkdir(parents=True, exist_ok=True)
    packages = sorted((work / "cache" / "archives").glob("*.deb"))
    for package in packages:
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    for folder in ("tmp", "proc", "dev", "sys"):
        (root / folder).mkdir(exist_ok=True)
    shell = root / "bin" / "sh"  # a link that a package's script makes
    if not shell.exists():
        shell.symlink_to("dash")
    print(f"{root}: {len(packages)} packages of {architecture}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), *sys.argv[2:])
