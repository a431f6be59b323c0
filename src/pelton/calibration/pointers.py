"""Reads memory at callers' addresses, without crashing on invalid ones."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import numpy as np

from pelton.errors import InputError

MEMORY = "/proc/self/mem"  # Linux: reading it fails for invalid addresses, but does not crash


def read_memory(address: int, nbytes: int, what: str) -> np.ndarray:
    """Copies the bytes at an address, u8[nbytes]; `what`: their name in messages.

    Raises InputError if these are not memory of this process, such as GPU memory.
    """
    buffer = np.empty(nbytes, np.uint8)
    if not 0 < address <= (1 << 63) - 1 - nbytes:
        raise InputError(f"{what} is the address {address:#x}, where there can be no memory")
    try:
        memory = open(MEMORY, "rb", buffering=0)
    except OSError:  # another system: addresses are taken on trust
        ctypes.memmove(buffer.ctypes.data, address, nbytes)
        return buffer
    done = 0
    with memory, suppress(OSError):
        memory.seek(address)
        while done < nbytes and (count := memory.readinto(buffer[done:].data)):
            done += count
    if done < nbytes:
        raise InputError(
            f"{what} is the address {address:#x} of a batch of {nbytes} bytes, but {done} are readable there; it"
            " must be CPU memory of a full batch. For GPU memory, pass a numpy array of the batch instead"
        )
    return buffer
