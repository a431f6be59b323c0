"""Compiles the native library of the runtime when a wheel, an editable install or `build_ext --inplace` asks for it;
the rest is in pyproject.toml.

`bdist_wheel --plat-name linux-aarch64` makes the wheel of another machine: zig compiles for all of them.
"""

from __future__ import annotations

import atexit
import os
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info

HERE = Path(__file__).parent
NATIVE = Path("src/pelton/native")
# the oldest C library to run with: manylinux2014, and the first one of a machine
GLIBC = {"x86_64": (2, 17), "aarch64": (2, 17), "riscv64": (2, 27)}
FLAGS = runpy.run_path(str(HERE / NATIVE / "flags.py"))


def architecture(command: Command) -> str:
    """The machine that a command builds for, by `uname -m`'s name: that of a wheel, otherwise this one."""
    _, name = command.distribution.get_option_dict("bdist_wheel").get("plat_name", ("", platform.machine()))
    machine = name.removeprefix("linux-")
    if machine not in GLIBC:
        raise SystemExit(f"Pelton's runtime is made for {', '.join(GLIBC)}, not for {machine}")
    return machine


def scratch() -> str:
    """A directory for what a build leaves behind when the source tree may not be written."""
    path = tempfile.mkdtemp(prefix="pelton-build-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def writable(path: Path) -> bool:
    """Whether files can be made there; asked by making one, for a read-only mount does not show in the permissions."""
    try:
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


class Native(build_ext):
    """A plain shared library, called through ctypes: one for all versions of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        if platform.system() != "Linux":
            raise SystemExit(f"Pelton's runtime is made for Linux, this is {platform.system()}")
        out = Path(self.get_ext_fullpath(ext.name))
        out.parent.mkdir(parents=True, exist_ok=True)
        cache = Path(self.build_temp, "zig").absolute()
        cache.mkdir(parents=True, exist_ok=True)
        machine = architecture(self)
        target = "{}-linux-gnu.{}.{}".format(machine, *GLIBC[machine])
        part = out.with_suffix(f".{os.getpid()}.part")
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            target,
            *FLAGS["COMPILE"],
            *FLAGS["LINK"],
            *sorted(ext.sources),
            "-o",
            str(part),
            "-lpthread",
            "-ldl",
        ]
        try:
            subprocess.run(
                command,
                check=True,
                env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)},
            )
            os.replace(part, out)  # whole or not at all: the old one may be in use
        finally:
            part.unlink(missing_ok=True)


class Wheel(bdist_wheel):
    """Tagged for any Python 3 on this kind of machine."""

    def get_tag(self) -> tuple[str, str, str]:
        machine = architecture(self)
        return "py3", "none", "manylinux_{}_{}_{}".format(*GLIBC[machine], machine)


class Build(build):
    def finalize_options(self) -> None:
        if not writable(HERE):
            self.build_base = scratch()
        super().finalize_options()


class Info(egg_info):
    def finalize_options(self) -> None:
        if self.egg_base is None and not writable(HERE / "src"):
            self.egg_base = scratch()
        super().finalize_options()


if __name__ == "__main__":
    setup(
        ext_modules=[
            Extension(
                "pelton.native.libpelton",
                sources=sorted(map(str, NATIVE.glob("*.c"))),
                depends=sorted(map(str, NATIVE.rglob("*.h"))),
            )
        ],
        cmdclass={"build": Build, "build_ext": Native, "bdist_wheel": Wheel, "egg_info": Info},
    )
