"""Progress of long work on stderr: one bar on a terminal or in a notebook with rich, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .errors import InputError

Progress = Callable[[str, int, int], None]
Course = Sequence[tuple[str, float]]  # stages in their order, with their shares of the time

STAGES = {
    "environment": "installing packages",
    "import": "reading the model",
    "optimize": "optimizing",
    "calibrate": "calibrating",
    "accuracy": "measuring accuracy",
    "layout": "timing layouts",
    "compile": "compiling kernels",
    "tune": "timing kernels",
    "refine": "timing variants of the best",
    "race": "comparing whole engines",
    "check": "checking kernels",
    "link": "linking",
}
# Measured on builds of small convolutional networks, with empty caches. Only the bar and the estimate depend on it.
UNTIMED: Course = (("import", 0.1), ("optimize", 0.1), ("compile", 0.75), ("link", 0.05))
TIMED: Course = (
    ("import", 0.01),
    ("optimize", 0.02),
    ("layout", 0.08),
    ("compile", 0.42),
    ("tune", 0.05),
    ("compile", 0.17),
    ("refine", 0.22),
    ("link", 0.03),
)
# The parts of a build with calibration, relative to one timed build of the same networks. The engine without integers
# is built first, then the one with integers, which shares some kernels, and that again where layers revert. Without
# timing, all of their kernels exist when they are built.
TO_CALIBRATE, CALIBRATE, ACCURACY, RACE = 0.5, 0.1, 0.6, 0.2
TIMED_BUILDS, UNTIMED_BUILDS = (1.0, 0.6, 0.3), (0.05, 0.05)
INTERVAL = 5.0  # seconds between two plain lines of one stage
VARIABLE, FLAGS = "PELTON_PROGRESS", {"0": False, "false": False, "1": True, "true": True}
_bar = threading.Lock()  # held by the thread that shows a bar: a terminal has room for one


def course(level: int, calibrated: bool = False) -> Course:
    """Returns the stages of a build at a level of effort; calibrated: with data for INT8, for several engines."""
    if not calibrated:
        return TIMED if level else UNTIMED
    stages, builds = (TIMED, TIMED_BUILDS) if level else (UNTIMED, UNTIMED_BUILDS)
    shares = [(name, share * TO_CALIBRATE) for name, share in UNTIMED]
    shares += [("calibrate", CALIBRATE), ("accuracy", ACCURACY)]
    shares += [(name, share * whole) for whole in builds for name, share in stages if name != "import"]
    return [*shares, ("race", RACE)] if level else shares


def is_notebook() -> bool:
    """Returns True if output appears below the cell of a notebook."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def is_visible() -> bool:
    """Returns True if a user sees stderr as it is written: on a terminal, or below the cell of a notebook."""
    return sys.stderr.isatty() or is_notebook()


def is_wanted() -> bool:
    """Returns True if builds called from Python show their progress by default: PELTON_PROGRESS decides, else
    `is_visible`. Raises InputError for values of PELTON_PROGRESS that are neither 0 nor 1."""
    text = os.environ.get(VARIABLE, "").lower()
    if text not in ("", *FLAGS):
        raise InputError(f"{VARIABLE} must be 0 or 1, got {text!r}")
    return FLAGS[text] if text else is_visible()


class Position:
    """Progress of the whole work, 0 to 1, by its stages; it never decreases.

    Stages outside the course change nothing; without a course, every stage counts as the whole work. ("program", i, n)
    starts the i-th of n equal courses.
    """

    def __init__(self, of: Course):
        self._course, self._at = of, 0
        self._program, self._programs = 0, 1
        self.fraction: float | None = 0.0  # None if unknown

    def move(self, stage: str, done: int, total: int) -> None:
        """Moves to a place in a stage; `total` is 0 if unknown."""
        if not self._course:
            self.fraction = done / total if total else None
            return
        if stage == "program":
            self._program, self._programs, self._at = done, total, 0
            return
        ahead = [i for i, (name, _) in enumerate(self._course) if name == stage and i >= self._at]
        if ahead:
            self._at = ahead[0]
            shares = [share for _, share in self._course]
            here = sum(shares[: self._at]) + shares[self._at] * (done / total if total else 0.0)
            self.fraction = max(self.fraction or 0.0, (self._program + here / sum(shares)) / self._programs)


@contextmanager
def show_progress(enabled: bool = True, of: Course = ()) -> Iterator[Progress]:
    """Context manager: a callback (stage, done, total) for the option `progress`, whose bar disappears when the work is
    done. of: the coming stages, see `course`; without it, each stage counts as the whole work."""
    if not enabled:
        yield lambda stage, done, total: None
        return
    bars = _bars() if is_visible() else None
    if bars is None:
        yield _report_by_lines(Position(of))
        return
    if not _bar.acquire(blocking=False):  # another thread shows one
        yield lambda stage, done, total: None
        return
    try:
        with bars:
            yield _report_by_bar(bars, Position(of))
    finally:
        _bar.release()


def _bars():
    """Creates the display; None without rich (of pelton[build]), or in a notebook without ipywidgets."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
        from rich.progress import TimeElapsedColumn, TimeRemainingColumn

        if is_notebook():
            import ipywidgets  # noqa: F401
    except ImportError:
        return None
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    return Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
        redirect_stdout=sys.stdout.isatty(),  # printed text still goes to its own stream
    )


def _report_by_bar(bars, position: Position) -> Progress:
    bar = bars.add_task("", total=None)

    def report(stage: str, done: int, total: int) -> None:
        position.move(stage, done, total)
        if stage in STAGES:
            bars.update(bar, description=_say(stage, done, total))
        # of unknown length until it begins to move
        known = {} if position.fraction is None else {"completed": position.fraction, "total": 1.0}
        bars.update(bar, **known)

    return report


def _report_by_lines(position: Position) -> Progress:
    printed: dict[str, float] = {}  # the current stage → time of its last line, in seconds
    start = time.monotonic()

    def report(stage: str, done: int, total: int) -> None:
        position.move(stage, done, total)
        now = time.monotonic()
        if stage not in STAGES or (stage in printed and (now - printed[stage] < INTERVAL or done == total)):
            return
        printed.clear()
        printed[stage] = now
        left = _estimate(now - start, position.fraction)
        print(f"{_say(stage, done, total)}{left} …", file=sys.stderr, flush=True)

    return report


def _say(stage: str, done: int, total: int) -> str:
    """Describes a stage and its progress in words."""
    count = f", {done} of {total}" if total > 1 else f", {done}" * (total == 0 < done)
    return STAGES[stage] + count


def _estimate(passed: float, fraction: float | None) -> str:
    """Returns the remaining time in words, once enough time has passed for an estimate."""
    if passed < INTERVAL or not fraction or fraction < 0.05:
        return ""
    left = passed * (1 - fraction) / fraction
    if left < 1:
        return ""
    return f", about {f'{left:.0f} s' if left < 90 else f'{left / 60:.0f} min'} left"
