"""Unpacks QEMU's emulators of user programs from Debian's stable release, whatever release this system has.

    python scripts/qemu.py FOLDER

QEMU 7 of Debian 12 fails on vectors of RISC-V. The package is linked statically, so it runs on older systems, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from arm_root import apt


def main(folder: Path) -> None:
    work = folder.with_name(f"{folder.name}.apt")
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"], capture_output=True, text=True, check=True
    )
    mirror = next(uri for name, uri in map(str.split, targets.stdout.splitlines()) if "-" not in name)
    sources = work / "sources.list"
    work.mkdir(parents=True, exist_ok=True)
    sources.write_text(f"deb {mirror} stable main\n")
    command = apt(work, **{"Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null"})
    subprocess.run([*command, "update"], check=True)
    subprocess.run([*command, "download", "qemu-user"], check=True, cwd=work)
    (package,) = work.glob("qemu-user_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
