"""What comparisons of language models with transformers share: rows of results, and the loop over models."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.serve.page import replace_part

LIMIT = 1e-4  # of the largest number


@dataclass
class ComparedModel:
    """The result of one model. errors: by part. fault: why it could not be run."""

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    fault: str = ""

    @property
    def worst(self) -> float:
        return float("inf") if self.fault else max(self.errors.values())

    @property
    def fails(self) -> bool:
        return self.worst > LIMIT

    def note(self, part: str, got: np.ndarray, want: np.ndarray) -> None:
        """Notes the error of numbers, the largest difference by the largest number; infinity for other shapes and
        NaN."""
        error = float("inf")
        if got.shape == want.shape and np.isfinite(got).all():
            error = float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())
        self.errors[part] = max(self.errors.get(part, 0.0), error)

    def note_fault(self, error: Exception) -> None:
        """Notes why the model could not be run."""
        self.fault = f"{type(error).__name__}: {error}".replace("|", "\\|")

    def line(self, parts: Sequence[str], *more: str) -> str:
        """Returns the line of a table: the errors of parts, more cells, and the fault."""
        cells = [f"{self.errors[part]:.1e}" if part in self.errors else "" for part in parts]
        return f"| {' | '.join([self.name, *cells, *more, self.fault])} |"


Result = TypeVar("Result", bound=ComparedModel)


def head(first: str, parts: Sequence[str], *more: str) -> list[str]:
    """Returns the head of a table of `ComparedModel.line`."""
    return [f"| {' | '.join([first, *parts, *more])} | |", f"|---|{'--:|' * (len(parts) + len(more))}---|"]


def add_arguments(parser: argparse.ArgumentParser, folder: str) -> None:
    """Adds the arguments of comparisons. folder: where the peer makes models."""
    parser.add_argument("--peer", metavar="PYTHON", help="makes the models")
    parser.add_argument("--folder", type=Path, default=Path(folder))
    parser.add_argument("--only", default="", help="a part of the names of models")
    parser.add_argument("--page", type=Path)


def compare(
    args: argparse.Namespace, peer: Path, check: Callable[[Path, str], Result], more: Sequence[str] = ()
) -> list[Result]:
    """Has the peer make its models, and checks each of them. check: takes the folder of a model, and one for
    engines."""
    if args.peer:
        subprocess.run([args.peer, str(peer), str(args.folder), *more], check=True)
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for answers in sorted(args.folder.glob("*/answers.npz")):
            if args.only in answers.parent.name:
                rows.append(check(answers.parent, cache))
                print(f"{rows[-1].name}: {rows[-1].worst:.1e} {rows[-1].fault}", flush=True)
    return rows


def report(rows: Sequence[ComparedModel], lines: list[str], page: Path | None, begin: str, end: str) -> str | None:
    """Prints the lines, writes them between marks of a page, and returns why the comparison fails."""
    print("\n".join(lines))
    if page:
        replace_part(page, begin, end, lines)
    wrong = sum(row.fails for row in rows)
    return f"{wrong} of {len(rows)} models fail" if wrong or not rows else None
