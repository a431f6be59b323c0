"""Pelton opens no network socket: neither building, loading, running, timing, sessions and queues, nor the native
library or kernels."""

import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import model, small_cnn
from onnx import helper

import pelton

HERE = Path(__file__).parent
KILLED = -signal.SIGSYS
x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is one of x86-64")

# All that a program does with Pelton, by its interface and by its commands.
EVERYTHING = """
import os, sys
import numpy as np

started = []
sys.addaudithook(lambda event, args: started.append(os.path.basename(os.fsdecode(args[0] or args[1][0])))
                 if event == "subprocess.Popen" else None)
import pelton
from pelton import cli

assert [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]] == ["lo"] or not NAMESPACE
source, engine = "model.onnx", "model.pelton"
x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
want = pelton.build(source, level=1, check=True).run({"x": x})
assert cli.main(["build", source, "-o", engine, "--level", "0", "-q"]) == 0
loaded = pelton.load(engine)
np.testing.assert_allclose(loaded.run({"x": x})["y"], want["y"], rtol=1e-4, atol=1e-5)
with pelton.AsyncQueue(loaded, jobs=2) as queue:
    queue.run_async({"x": x}).result()
session = pelton.InferenceSession(source)
np.testing.assert_allclose(session.run(None, {"x": x})[0], want["y"], rtol=1e-4, atol=1e-5)
np.save("x.npy", x)
for command in (
    ["run", engine, "--input", "x.npy"], ["bench", engine, "--seconds", "0.1", "--layers"],
    ["bench", engine, "--seconds", "0.1", "--hint", "throughput"], ["inspect", engine], ["view", engine, "--time"],
    ["check", source], ["explain", source], ["compare", source, engine], ["doctor"], ["cache", "info"], ["formats"],
):
    assert cli.main(command) in (0, None), command
assert set(started) <= {"python", os.path.basename(sys.executable), "zig", "uname"}, started
print("all of it, with", len(started), "processes")
"""
REACHES = {
    "socket": "import socket\ntry: socket.socket(socket.AF_INET)\nexcept OSError: pass",
    "IPv6": "import socket\nsocket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "connect": "import socket\nsocket.socket(socket.AF_UNIX).connect('none')",
    "sendto": "import socket\na, b = socket.socketpair()\na.sendto(b'x', 'none')",
    "sendto by address": "import socket\na, b = socket.socketpair(type=socket.SOCK_DGRAM)\na.sendto(b'x', '/none')",
    "URL": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')",
    "thread": "import socket, threading\nt = threading.Thread(target=socket.socket)\nt.start()\nt.join()",
    "native": "import ctypes\nctypes.CDLL(None).syscall(41, 2, 1, 0)",
    "child": "import os, subprocess, sys\n"
    "found = subprocess.run([sys.executable, '-c', 'import socket; socket.socket()'])\n"
    "os.kill(os.getpid(), -found.returncode)",
}


@pytest.fixture
def run(tmp_path):
    """Runs a program under the filter, in a network namespace without devices where the system allows one."""
    unshare = [shutil.which("unshare") or "", "-r", "-n"]
    if not unshare[0] or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        unshare = []
    allowed = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r}); import no_network;"
                              "no_network.forbid()"], capture_output=True, text=True)  # fmt: skip
    if allowed.returncode:
        pytest.skip(f"this system takes no seccomp filter: {allowed.stderr.splitlines()[-1]}")

    def go(program: str) -> subprocess.CompletedProcess:
        (tmp_path / "program.py").write_text(program.replace("NAMESPACE", str(bool(unshare))))
        command = [*unshare, sys.executable, str(HERE / "no_network.py"), "program.py"]
        more = {"PELTON_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path), "PELTON_LEVEL": "1"}
        return subprocess.run(command, cwd=tmp_path, env={**os.environ, **more}, capture_output=True, text=True)

    return go


@x86_64
def test_nothing_that_users_do_opens_a_network_socket(run, tmp_path):
    weights = {"w": np.ones((8, 6), np.float32)}
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (4, 8)}, {"y": (4, 6)}, weights)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    found = run(EVERYTHING)
    assert not found.returncode and "all of it, with" in found.stdout, found.stdout[-2000:] + found.stderr[-2000:]


@x86_64
@pytest.mark.parametrize("how", REACHES)
def test_a_program_that_opens_one_is_killed(run, how):
    """The test above could fail."""
    found = run(REACHES[how] + "\nprint('it went on')")
    assert found.returncode == KILLED and not found.stdout, found


def test_a_program_that_opens_none_goes_on(run):
    found = run("import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1))")
    assert (found.returncode, found.stdout) == (0, "b'x'\n"), found


# --- what code could reach a network

CALLS = set(
    "socket socketpair connect bind listen accept accept4 send sendto sendmsg sendmmsg recvfrom recvmsg getaddrinfo"
    " gethostbyname getnameinfo inet_pton res_query system popen fork execve posix_spawn".split()
)


def undefined_symbols(data: bytes) -> set[str]:
    """The names that an ELF shared object asks of others."""
    assert data[:5] == b"\x7fELF\x02"
    (at,), (size, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]
    found = set()
    for _, kind, _, _, offset, length, link, _, _, each in headers:
        if kind != 11:  # SHT_DYNSYM
            continue
        strings = data[headers[link][4] :]
        for symbol in range(offset + each, offset + length, each):
            name, _, _, section = struct.unpack_from("<IBBH", data, symbol)
            if not section:
                found.add(strings[name : strings.index(b"\0", name)].decode())
    return found


def test_the_native_library_imports_no_call_of_networks():
    path = Path(pelton.__file__).parent / "native" / "libpelton.so"
    found = undefined_symbols(path.read_bytes())
    assert "pthread_create" in found and not found & CALLS


def test_raw_system_calls_of_the_native_library_are_those_of_threads():
    import re

    folder = Path(pelton.__file__).parent / "native"
    calls = set(re.findall(r"\bsyscall\((\w+)", "".join(p.read_text() for p in folder.glob("*.c"))))
    assert calls <= {"SYS_futex", "SYS_membarrier", "SYS_gettid", "SYS_memfd_create"}, calls


def test_kernels_ask_nothing_of_others():
    code = pelton.build(small_cnn(size=12).SerializeToString(), level=0).plain.code
    assert undefined_symbols(code) == set() and b"NEEDED" not in code[:64]


def test_symbols_are_found_where_there_are_some():
    """The tests above could fail: a library of Python's that opens sockets."""
    import _socket

    path = getattr(_socket, "__file__", None)
    if path is None:
        pytest.skip("this Python has sockets built in")
    assert {"socket", "connect", "sendto"} <= undefined_symbols(Path(path).read_bytes())
