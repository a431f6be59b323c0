"""Starts the Triton server that the package nvidia-pytriton holds, without a GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from .served import NotServing

WHERE = """
import os, sys, pytriton
print(os.path.dirname(pytriton.__file__), "%d.%d" % sys.version_info[:2], sys.prefix, sep="\\n")
"""


@contextlib.contextmanager
def triton(
    python: str, models: Path, folder: Path, ports: tuple[int, int, int], *options: str, wait: float = 120
) -> Iterator[None]:
    """Serves a repository, and yields once all its models are ready. python: in whose environment nvidia-pytriton is.
    folder: for the backend's files and the log. ports: of HTTP, gRPC and metrics. Raises NotServing."""
    found = subprocess.run([python, "-c", WHERE], capture_output=True, text=True)
    if found.returncode:
        raise NotServing(f"{python} has no nvidia-pytriton: {found.stderr.strip().splitlines()[-1]}")
    package, version, prefix = found.stdout.splitlines()
    server = Path(package) / "tritonserver"
    backends = folder / "backends"
    if not backends.exists():
        shutil.copytree(server / "backends", backends)
        shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    log = folder / "triton.log"
    named = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports)]
    command = [str(server / "bin" / "tritonserver"), f"--model-repository={models}", f"--backend-directory={backends}"]
    environment = {
        **os.environ,
        "PATH": f"{prefix}/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(Path(package).parent / "nvidia_pytriton.libs"),
    }
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *named, *options], stdout=out, stderr=out, env=environment)
    try:
        _await(process, f"http://127.0.0.1:{ports[0]}/v2/health/ready", log, wait)
        yield
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], address: str, log: Path, wait: float) -> None:
    end = time.monotonic() + wait
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=5).close()
            return
        time.sleep(0.2)
    raise NotServing(f"Triton did not start:\n{log.read_text(errors='replace')[-2000:]}")
