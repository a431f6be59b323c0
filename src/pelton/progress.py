"""Progress of long work on stderr: bars on a terminal with rich, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
STAGES = {
    "environment": "installing packages",
    "import": "reading the model",
    "optimize": "optimizing",
    "calibrate": "calibrating",
    "compile": "compiling kernels",
    "tune": "timing kernels",
    "refine": "timing the best ones' kin",
    "check": "checking kernels",
    "link": "linking",
}
INTERVAL = 5.0  # seconds between two plain lines of one stage


def is_visible() -> bool:
    """Whether a user sees stderr as it is written: on a terminal, or below the cell of a notebook."""
    return (
        sys.stderr.isatty()
        or "ipykernel" in sys.modules
        and "IPython" in sys.modules
        and sys.modules["IPython"].get_ipython() is not None
    )


@contextmanager
def show_progress(enabled: bool = True) -> Iterator[Progress]:
    """A callback (stage, done, total) for the option `progress`, whose bars disappear when the work is done."""
    if not enabled:
        yield lambda stage, done, total: None
        return
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars
        except ImportError:
            pass  # part of pelton[build]; plain lines otherwise
        else:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            with Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bars:
                yield _report_by_bar(bars)
            return
    yield _report_by_lines()


def _report_by_bar(bars) -> Progress:
    shown: dict[str, int] = {}  # the current stage → its bar

    def report(stage: str, done: int, total: int) -> None:
        if stage == "done":
            return
        if stage not in shown:
            for earlier in shown.values():
                bars.remove_task(earlier)
            shown.clear()
            shown[stage] = bars.add_task(STAGES.get(stage, stage), total=total or None)
        bars.update(shown[stage], completed=done, total=total or None)

    return report


def _report_by_lines() -> Progress:
    printed: dict[str, float] = {}  # the current stage → time of its last line, in seconds

    def report(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage == "done" or (stage in printed and (now - printed[stage] < INTERVAL or done == total)):
            return
        printed.clear()
        printed[stage] = now
        count = f", {done} of {total}" if total > 1 else f", {done}" * (total == 0 < done)
        print(f"{STAGES.get(stage, stage)}{count} …", file=sys.stderr, flush=True)

    return report
