"""Parallel compile processes: the death of one affects no other."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from pelton.errors import BuildError  # noqa: E402
from pelton.codegen.triton import workers  # noqa: E402


def work(name: str, number: int) -> int:
    """The square; it ends its process on 3, as an assembler that crashes does, and fails on 5."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 5:
        raise BuildError(f"{name} has no square")
    return number * number


def test_a_crash_takes_one_job_with_it(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    with workers.pool(1, work) as submit:
        jobs = [submit(f"job {n}", n) for n in range(8)]
        for n, job in enumerate(jobs):
            if n in (3, 5):
                with pytest.raises(
                    BuildError, match=r"ended \(status -11\) while it had job 3" if n == 3 else "job 5 has no square"
                ):
                    job.result()
            else:
                assert job.result() == n * n


def test_all_end_with_the_block(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    with pytest.raises(KeyError), workers.pool(2, os.getpid) as submit:
        ids = [submit().result() for _ in range(4)]
        raise KeyError
    for process in set(ids):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
