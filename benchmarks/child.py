"""An object in a child process, driven by lines of JSON: a crash or a lost GPU ends only that process.

python -m benchmarks.child MODULE CLASS ARGUMENTS creates it, then calls its methods:
{"call": NAME, "with": {…}} → {"gave": …}
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ANSWER = b'{"gave": '


class Failed(Exception):
    """A process ended where an answer was due, or took too long; with the last thing that it said."""


class Child:
    """The object in the other process.

    `before`: a prefix of the command, for a program that watches over it. `said`: the file to which the process's other
    output is appended. `python`: that of another venv, which has the module's requirements.
    """

    def __init__(
        self,
        module: str,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        said: Path | None = None,
        python: str = sys.executable,
    ):
        self._said = (
            tempfile.TemporaryFile("w+", errors="replace") if said is None else said.open("a+", errors="replace")
        )
        self._begun = self._said.seek(0, os.SEEK_END)
        paths = [str(ROOT), str(ROOT / "src"), *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
        self._process = subprocess.Popen(
            [*before, python, "-m", "benchmarks.child", module, kind, json.dumps(dict(arguments))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        )
        self._left = b""

    def ask(self, name: str, seconds: float, /, **given: Any) -> Any:
        """What a method gives; Failed where the process ends instead, or has not answered after that time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"call": name, "with": given}).encode() + b"\n")
            self._process.stdin.flush()
            said = self._line(time.monotonic() + seconds)
        except BrokenPipeError:
            said = b""
        if not said:
            raise Failed(self.last_words())
        return json.loads(said)["gave"]

    def _line(self, end: float) -> bytes:
        """The next answer, or nothing at the end; a program that watches the process may write lines in between."""
        assert self._process.stdout is not None
        line = b""
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while not line.startswith(ANSWER):
                while b"\n" not in self._left:
                    if not ready.select(max(0.0, end - time.monotonic())):
                        self._kill()
                        raise Failed(f"no answer in time; {self.last_words()}")
                    piece = os.read(self._process.stdout.fileno(), 1 << 16)
                    if not piece:
                        return b""
                    self._left += piece
                line, _, self._left = self._left.partition(b"\n")
        return line

    def _kill(self) -> None:
        """Kills all processes that it started, which would slow down what is measured next."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        status = self._process.wait()
        self._said.seek(self._begun)
        lines = [line.strip() for line in self._said.read().splitlines() if line.strip()]
        ended = f"it ended with status {status}"
        if not lines:
            return ended
        return lines[-1][:400] if status == 1 else f"{ended}; {lines[-1][:400]}"

    def end(self, seconds: float = 0.0) -> int | None:
        """Its exit status, None where it had to be killed after that time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended before
        try:
            status: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            status = None
        self._kill()
        self._process.stdout.close()
        self._said.close()
        return status

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def main(module: str, kind: str, arguments: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print by themselves is no answer
    try:
        thing: Any = getattr(importlib.import_module(module), kind)(**json.loads(arguments))
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps({"gave": getattr(thing, asked["call"])(**asked["with"])}), file=out, flush=True)
    except Exception as e:
        traceback.print_exc()
        sys.exit(" ".join(f"{type(e).__name__}: {e}".split()))  # in one line, the last: some end with advice


if __name__ == "__main__":
    main(*sys.argv[1:])
