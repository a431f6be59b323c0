"""Progress of long work on stderr: bars on a terminal with rich, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
STAGES = {
    "import": "reading the model",
    "optimize": "optimizing",
    "compile": "compiling kernels",
    "tune": "timing kernels",
    "refine": "timing the best ones' kin",
    "check": "checking kernels",
    "link": "linking",
}
PATIENCE = 5.0  # seconds between two plain lines of one stage


def is_visible() -> bool:
    """Whether somebody sees what goes to stderr as it comes: on a terminal, or under the cell of a notebook."""
    return (
        sys.stderr.isatty()
        or "ipykernel" in sys.modules
        and "IPython" in sys.modules
        and sys.modules["IPython"].get_ipython() is not None
    )


@contextmanager
def show_progress(wanted: bool = True) -> Iterator[Progress]:
    """A function (stage, done, total) for `pelton.build`. Bars are gone from the terminal when the work is done."""
    if not wanted:
        yield lambda stage, done, total: None
        return
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars
        except ImportError:
            pass  # part of pelton[build]; without it lines do
        else:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            with Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bars:
                yield _bar(bars)
            return
    yield _lines()


def _bar(bars) -> Progress:
    shown: dict[str, int] = {}  # the stage at work and its bar

    def tell(stage: str, done: int, total: int) -> None:
        if stage == "done":
            return
        if stage not in shown:
            for earlier in shown.values():
                bars.remove_task(earlier)
            shown.clear()
            shown[stage] = bars.add_task(STAGES.get(stage, stage), total=total)
        bars.update(shown[stage], completed=done, total=total)

    return tell


def _lines() -> Progress:
    said: dict[str, float] = {}  # the stage at work and when it was spoken of

    def tell(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage == "done" or (stage in said and (now - said[stage] < PATIENCE or done == total)):
            return
        said.clear()
        said[stage] = now
        print(
            STAGES.get(stage, stage) + (f", {done} of {total}" if total > 1 else "") + " …", file=sys.stderr, flush=True
        )

    return tell
