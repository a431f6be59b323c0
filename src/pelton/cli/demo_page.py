"""The answers of `pelton demo`: colour blocks on terminals, words everywhere, and pictures for the page."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from pelton.errors import InputError

from . import text

SIDE = 16  # columns of a picture on a terminal; a character holds two pixels
GAP = 2
HALF = "▀"


@dataclass(frozen=True)
class Answers:
    """A network's answers on pictures: uint8 [n, 32, 32, 3], their classes [n], its probabilities [n, 10]."""

    pictures: np.ndarray
    classes: np.ndarray
    probabilities: np.ndarray
    labels: tuple[str, ...]

    @property
    def said(self) -> np.ndarray:
        return self.probabilities.argmax(1)

    @property
    def right(self) -> np.ndarray:
        return self.said == self.classes


def caption(answers: Answers, i: int) -> list[str]:
    """Returns two lines below a picture: the answer, and the true class if it differs."""
    guess, is_right = answers.said[i], answers.right[i]
    first = f"{answers.labels[guess]} {answers.probabilities[i, guess]:.0%}"
    return [first, "" if is_right else f"no: {answers.labels[answers.classes[i]]}"]


def telling(answers: Answers) -> list[int]:
    """Selects pictures for little room: one of each class, then wrong answers."""
    firsts = np.unique(answers.classes, return_index=True)[1].tolist()
    return [*firsts, *(i for i in np.flatnonzero(~answers.right).tolist() if i not in firsts)]


def in_words(answers: Answers) -> list[str]:
    """Describes the number of correct answers, in total and by class, and the wrong ones."""
    rows = [("class", "right", "called")]
    for c, label in enumerate(answers.labels):
        of = answers.classes == c
        wrong = [answers.labels[s] for s in answers.said[of & ~answers.right]]
        rows.append((label, f"{answers.right[of].sum()} of {of.sum()}", ", ".join(wrong)))
    right, count = int(answers.right.sum()), len(answers.right)
    return [
        f"{right} of {count} pictures right, {right / count:.0%}; they are of CIFAR-10's test set, not trained on:",
        text.table(rows, "lrl", indent="  "),
    ]


def show_in_terminal(pictures: Sequence[tuple[np.ndarray, Sequence[str]]]) -> None:
    """Prints pictures, uint8 [32, 32, 3], with lines below each, in rows; nothing without colours."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return
    console = Console(highlight=False)
    encoding = (sys.stdout.encoding or "").lower()
    if (
        not console.is_terminal
        or console.no_color
        or console.color_system in (None, "standard")
        or "utf" not in encoding
    ):
        return
    per_row = max(1, (console.width + GAP) // (SIDE + GAP))
    for start in range(0, len(pictures), per_row):
        row = pictures[start : start + per_row]
        console.print()
        for y in range(SIDE // 2):
            line = Text()
            for picture, _ in row:
                small = picture.reshape(SIDE, 32 // SIDE, SIDE, 32 // SIDE, 3).mean((1, 3)).astype(int)
                for (r, g, b), (r2, g2, b2) in zip(small[2 * y], small[2 * y + 1]):
                    line.append(HALF, f"rgb({r},{g},{b}) on rgb({r2},{g2},{b2})")
                line.append(" " * GAP)
            line.rstrip()
            console.print(line)
        for i in range(max(len(lines) for _, lines in row)):
            console.print(Text((" " * GAP).join(f"{lines[i][:SIDE]:{SIDE}}" for _, lines in row).rstrip()))


CREDIT = "Pictures: CIFAR-10, Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009."


def sample(answers: Answers, speed: str) -> dict[str, Any]:
    """Returns the answers for the explorer's page. Raises InputError without Pillow, which writes the pictures."""
    pictures = [
        {
            "src": f"data:image/png;base64,{_png(picture)}",
            "alt": answers.labels[answers.classes[i]],
            "caption": " – ".join(line for line in caption(answers, i) if line),
            "right": bool(answers.right[i]),
        }
        for i, picture in enumerate(answers.pictures)
    ]
    first, table = in_words(answers)
    return {"title": first.rstrip(":"), "lines": [table, speed, CREDIT], "pictures": pictures}


def pillow() -> ModuleType:
    """Returns Pillow's module of images; raises InputError without it."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("the page's pictures are written by Pillow: pip install 'pelton[image]'") from None
    return Image


def _png(picture: np.ndarray) -> str:
    """Encodes a picture as the base64 of a PNG file."""
    buffer = io.BytesIO()
    pillow().fromarray(picture).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
