"""Loads and unloads machine code given as bytes, and looks up its symbols."""

from __future__ import annotations

import ctypes
import struct

from pelton.errors import EngineError

from pelton.native import library

from .machine import describe

# e_machine of ELF headers, by `uname -m`'s names
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 40: "arm", 3: "x86"}


class LoadedCode:
    """A loaded shared object. Addresses of its symbols are valid until `close`."""

    def __init__(self, handle: int | None):
        self._handle = handle

    def symbol(self, name: str) -> int:
        """Returns the address of a function; raises EngineError if the code has no function of this name."""
        if self._handle is None:
            raise EngineError(f"the machine code with kernel {name!r} is closed")
        address = library().pelton_code_symbol(self._handle, name.encode())
        if not address:
            raise EngineError(
                f"the engine's machine code has no kernel {name!r}; the engine is damaged, build it again"
            )
        return address

    def close(self) -> None:
        """Unloads the code; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            library().pelton_code_unload(handle)

    def __enter__(self) -> LoadedCode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_code(code: bytes, *, in_memory: bool = True) -> LoadedCode:
    """Loads an ELF shared object given as bytes: from memory, or from a temporary file if the system forbids that.

    Raises EngineError for anything but such an object for this machine, or if the system permits neither.
    """
    check_object(code)
    lib, error = library(), ctypes.create_string_buffer(512)
    handle = lib.pelton_code_load(code, len(code), None, error, len(error)) if in_memory else None
    if handle:
        return LoadedCode(handle)
    from tempfile import gettempdir  # rarely needed, and slow to import

    errors = [error.value.decode(errors="replace")] if in_memory else []
    folder = "a temporary folder"
    try:
        folder = gettempdir()
        handle = lib.pelton_code_load(code, len(code), folder.encode(), error, len(error))
        if handle:
            return LoadedCode(handle)
        errors.append(error.value.decode(errors="replace"))
    except FileNotFoundError as e:  # no temporary directory is writable
        errors.append(e.strerror or str(e))
    raise EngineError(
        f"the engine's machine code cannot be loaded, neither from memory nor from {folder}: {'; '.join(errors)}. "
        "If this system forbids executing temporary files, set TMPDIR to a directory that allows it"
    )


def check_object(code: bytes) -> None:
    """Raises EngineError unless the bytes are a complete shared object for this architecture, by its headers.

    The system's loader trusts these fields: a segment beyond the end would be a crash, not an error. The code itself is
    trusted like a program.
    """
    if len(code) < 64 or code[:7] != b"\x7fELF\x02\x01\x01":
        raise EngineError("the engine's machine code is no 64-bit ELF object; the engine is damaged, build it again")
    kind, machine = struct.unpack_from("<HH", code, 16)
    (table,) = struct.unpack_from("<Q", code, 32)
    entry, count = struct.unpack_from("<HH", code, 54)
    arch = _MACHINES.get(machine, f"ELF machine {machine}")
    if arch != describe()["arch"]:
        raise EngineError(
            f"the engine's machine code is for {arch}, this machine runs {describe()['arch']}; build the engine for it"
        )
    if kind != 3 or entry != 56 or not count or table + count * entry > len(code):
        raise EngineError("the engine's machine code is no whole shared object; the engine is damaged, build it again")
    for i in range(count):
        segment, _, offset, _, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", code, table + i * entry)
        if segment in (1, 2) and (offset + in_file > len(code) or in_file > in_memory or in_memory > 1 << 32):
            raise EngineError("the engine is damaged: a segment of its machine code is beyond the end; build it again")
