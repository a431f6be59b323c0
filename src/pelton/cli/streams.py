"""What commands print, on streams of any encoding: characters that it lacks are spelled in others, and a disk that is
full is one sentence."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper

SPELLED = {"→": "->", "…": "...", "–": "-", "×": "x", "·": "*", "−": "-", "µ": "u", "∞": "inf"}
NAME = "pelton.spelled"
# what Python does where the user did not ask for something else
ANY = ("strict", "surrogateescape", "backslashreplace")


def _spelled(e: UnicodeError) -> tuple[str | bytes, int]:
    """For what an encoding lacks: ASCII that says the same, the bytes of file names that are no text as they are, and
    escapes for the rest."""
    if not isinstance(e, UnicodeEncodeError):
        raise e
    c = e.object[e.start]
    if "\udc80" <= c <= "\udcff":
        return bytes([ord(c) - 0xDC00]), e.start + 1
    return SPELLED.get(c) or c.encode("ascii", "backslashreplace").decode(), e.start + 1


codecs.register_error(NAME, _spelled)


@contextmanager
def printable() -> Iterator[None]:
    """A block in which whatever is printed can be."""
    with ExitStack() as after:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper) and stream.errors in ANY:
                after.callback(_again, stream, stream.errors)
                stream.reconfigure(errors=NAME)
        yield


def _again(stream: TextIOWrapper, errors: str) -> None:
    if not stream.closed:
        stream.reconfigure(errors=errors)
