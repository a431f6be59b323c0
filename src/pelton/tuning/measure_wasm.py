"""Times kernels for WebAssembly in node: weights cold, activations in the caches, one thread, candidates in turns."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from pelton.codegen.c.toolchain import ClangCompiler
from pelton.codegen.template import Kernel
from pelton.errors import BuildError
from pelton.plan.placed import Task
from pelton.system.temporary import temporary_folder

from .measure import CLOSE, DROPS, FINAL_NS, FINAL_TURNS
from .operands import Operand, TimedOperands, is_weights

RACE = Path(__file__).parent / "wasm" / "race.mjs"
# V8 compiles a function twice: these have it optimize at once, so that no run is timed before.
OPTIMIZED = ("--no-liftoff", "--no-wasm-lazy-compilation")
POOL = 512 << 20  # the most bytes of weights in a module, whose memory ends at 4 GB


@cache
def node() -> str | None:
    """Returns the path of node, or None where it is not installed."""
    return shutil.which("node")


@cache
def version() -> str:
    """Returns node's version and that of its engine, a part of cache keys."""
    asked = [node() or "node", "-p", "process.version + ' ' + process.versions.v8"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as e:
        raise BuildError(f"node does not run ({e}); build with level=0, which times nothing") from None


def command(*flags: str) -> list[str]:
    """Returns the command that runs node, with relaxed SIMD, which node 20 and older have behind a flag."""
    major = int(version().lstrip("v").partition(".")[0])
    relaxed = ["--experimental-wasm-relaxed-simd"] if major <= 20 else []
    return [node() or "node", *relaxed, *flags]


class WasmBench:
    """See `search.Bench`: kernels in a module of WebAssembly, in a process of node."""

    def __init__(self, compiler: ClangCompiler, weight_traffic: int):
        self.compiler, self.pool = compiler, min(weight_traffic, POOL)

    @contextmanager
    def ready(self, sources: Mapping[str, str], progress: Callable[[int], None]) -> Iterator[_Racer]:
        objects = self.compiler.objects(sources, progress)
        with temporary_folder() as folder:
            module = Path(folder, "kernels.wasm")
            module.write_bytes(self.compiler.module(objects, [*sources, "__heap_base"]))
            pipe, program = subprocess.PIPE, command(*OPTIMIZED, str(RACE), str(module))
            with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe) as child:
                try:
                    yield _Racer(child, folder)
                finally:
                    child.kill()

    def race(
        self,
        tasks: Sequence[Task],
        programs: Sequence[Sequence[Kernel]],
        loaded: _Racer,
        rounds: int,
        deadline: float | None = None,
    ) -> list[int]:
        largest = max((x.bytes for p in programs for k in p for x in k.operands if is_weights(x)), default=0)
        operands = TimedOperands(tasks, programs)
        with tempfile.NamedTemporaryFile(dir=loaded.folder) as file:
            request = {
                "pool": max(self.pool, largest),
                "file": file.name,
                "arrays": _write(file, operands),
                "programs": [[_described(k, operands) for k in program] for program in programs],
                "inputs": [[operands.number(x) for x in operands.inputs_of(program[0])] for program in programs],
                "rounds": rounds,
                "drops": DROPS,
                "close": CLOSE,
                "finalNs": FINAL_NS,
                "finalTurns": FINAL_TURNS,
                "seconds": None if deadline is None else max(0.0, deadline - time.monotonic()),
            }
            return loaded.ask(request)


class _Racer:
    """A process of node with kernels. folder: for files that it reads."""

    def __init__(self, child: subprocess.Popen[bytes], folder: str):
        self.folder, self._child = folder, child

    def ask(self, request: Mapping[str, Any]) -> list[int]:
        """Sends a request, and returns the answer; BuildError if the process has ended."""
        asked, answers, errors = self._child.stdin, self._child.stdout, self._child.stderr
        assert asked and answers and errors
        try:
            asked.write(json.dumps(request).encode() + b"\n")
            asked.flush()
        except BrokenPipeError:
            pass  # the reason is what it wrote
        line = answers.readline()
        if not line:
            raise BuildError(f"node ended while it timed kernels: {errors.read().decode(errors='replace')[-1000:]}")
        return json.loads(line)


def _write(file: IO[bytes], operands: TimedOperands) -> list[dict[str, int]]:
    """Writes the arrays of operands to a file; returns their places."""
    places, at = [], 0
    for array in operands.arrays:
        data = np.ascontiguousarray(array)
        file.write(data.tobytes())
        places.append({"at": at, "bytes": data.nbytes})
        at += data.nbytes
    file.flush()
    return places


def _described(k: Kernel, operands: TimedOperands) -> dict[str, Any]:
    def place(x: Operand) -> dict[str, int]:
        return {"weights": x.bytes} if is_weights(x) else {"at": operands.number(x), "offset": operands.first_byte(x)}

    return {
        "symbol": k.symbol,
        "operands": [place(x) for x in k.operands],
        "dims": list(k.dims),
        "tiles": k.tiles,
        "phases": k.phases,
        "scratch": k.scratch,
    }
