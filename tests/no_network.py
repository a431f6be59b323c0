"""Runs a program that the kernel kills if it, or a child, accesses a network.

    python no_network.py PROGRAM.py ARGS…      after `forbid`, which programs may also call themselves

A seccomp filter raises SIGSYS at `socket` of any family but AF_UNIX, at `connect`, `sendto` to an address, `sendmsg`,
`sendmmsg`, `bind` and `listen`, and at io_uring, which provides all of these. Children inherit it. Socket pairs within
the process, which wake asyncio's loop, are allowed.
"""

import ctypes
import runpy
import struct
import sys

SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
KILL, ALLOW = 0x80000000, 0x7FFF0000
X86_64 = 0xC000003E
SOCKET, AF_UNIX = 41, 1
FORBIDDEN = {"connect": 42, "sendmsg": 46, "bind": 49, "listen": 50, "sendmmsg": 307, "io_uring_setup": 425}
SENDTO = 44
LOAD, EQUAL, GREATER, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, ADDRESS = 0, 4, 16, (48, 52)  # places in struct seccomp_data


def program() -> bytes:
    """The filter: of (code, jump if true, jump if false, constant)."""
    steps = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, X86_64), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    for number in FORBIDDEN.values():
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, KILL)]
    steps += [(GREATER, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]  # the calls of the x32 ABI
    steps += [(EQUAL, 0, 6, SENDTO), (LOAD, 0, 0, ADDRESS[0]), (EQUAL, 0, 3, 0), (LOAD, 0, 0, ADDRESS[1])]
    steps += [(EQUAL, 0, 1, 0), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, KILL)]
    steps += [(EQUAL, 1, 0, SOCKET), (RETURN, 0, 0, ALLOW)]
    steps += [(LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, AF_UNIX), (RETURN, 0, 0, KILL), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def forbid() -> None:
    """Forbids it for this process and all that it starts. OSError where the system does not let it."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = program()
    held = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    for words in ((SET_NO_NEW_PRIVS, 1, 0, 0, 0), (SET_SECCOMP, FILTER, fprog, 0, 0)):
        if libc.prctl(*words):
            raise OSError(ctypes.get_errno(), "this system takes no seccomp filter")


if __name__ == "__main__":
    forbid()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
