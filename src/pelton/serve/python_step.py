"""A Python step of a pipeline: a function of a file, in a process of its own."""

from __future__ import annotations

import logging
import multiprocessing
import runpy
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pelton.errors import InputError

from .requests import RequestError

log = logging.getLogger("pelton.serve")
START = 60.0  # seconds that importing the file may take


class PythonStep:
    """A function from arrays by name to arrays by name, which a process runs; the process starts again if it ends or
    takes too long. seconds: limit of a call. Raises InputError if the file or the function cannot be loaded."""

    def __init__(self, path: Path, function: str, seconds: float):
        self.path, self.function, self.seconds = path, function, seconds
        self._lock = threading.Lock()
        self._closed = False
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, str(self.path), self.function)
        self._process = context.Process(target=_work, args=arguments, name="pelton-step", daemon=True)
        self._process.start()
        theirs.close()
        try:
            problem = self._pipe.recv() if self._pipe.poll(START) else f"it takes longer than {START:g} s"
        except (EOFError, OSError):
            problem = "its process ended"
        if problem:
            self._end()
            raise InputError(f"the step {self.function!r} of {self.path} cannot be loaded: {problem}")

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls the function. Raises RequestError if it fails, or takes longer than its limit."""
        with self._lock:
            if self._closed:
                raise RequestError(f"the step {self.function!r} is closed", "closed")
            try:
                if not self._process.is_alive():
                    self._restart()
                self._pipe.send(dict(inputs))
                if not self._pipe.poll(self.seconds):
                    self._restart()
                    raise RequestError(f"the step {self.function!r} took longer than {self.seconds:g} s", "late")
                failed, result = self._pipe.recv()
            except (EOFError, OSError):
                self._restart()
                raise RequestError(f"the process of the step {self.function!r} ended", "internal") from None
            except InputError as e:
                raise RequestError(str(e), "internal") from None
        if failed:
            raise RequestError(f"the step {self.function!r} failed: {result}", "internal")
        outputs: dict[str, np.ndarray] = result
        return outputs

    def _restart(self) -> None:
        log.warning("the process of the step %r starts again", self.function)
        self._end()
        self._start()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def close(self) -> None:
        """Waits for the call under way, and ends the process."""
        with self._lock:
            self._closed = True
            self._end()


def _work(pipe: Any, path: str, name: str) -> None:
    """Answers calls until the other end of the pipe closes: (False, outputs), or (True, the text of an error)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    try:
        function = runpy.run_path(path)[name]
        pipe.send("")
    except BaseException as e:
        pipe.send(f"{type(e).__name__}: {e}")
        return
    while True:
        try:
            inputs = pipe.recv()
        except EOFError:
            return
        try:
            result = function(inputs)
            if not isinstance(result, dict):
                raise TypeError(f"it returns a dict of arrays, got {type(result).__name__}")
            pipe.send((False, {str(k): np.ascontiguousarray(v) for k, v in result.items()}))
        except Exception as e:
            pipe.send((True, f"{type(e).__name__}: {e}"))
