"""Makes standard streams printable: characters that an encoding lacks become ASCII, and closed streams take all."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper

REPLACEMENTS = {"→": "->", "…": "...", "–": "-", "×": "x", "·": "*", "−": "-", "µ": "u", "∞": "inf"}
NAME = "pelton.spelled"
# Python's defaults, which are replaced; a handler that the user chose stays
DEFAULTS = ("strict", "surrogateescape", "backslashreplace")


def _replace(e: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler of codecs: ASCII of the same meaning, the original bytes of undecodable file names, and escapes
    for all other characters that the encoding lacks."""
    if not isinstance(e, UnicodeEncodeError):
        raise e
    c = e.object[e.start]
    if "\udc80" <= c <= "\udcff":
        return bytes([ord(c) - 0xDC00]), e.start + 1
    return REPLACEMENTS.get(c) or c.encode("ascii", "backslashreplace").decode(), e.start + 1


codecs.register_error(NAME, _replace)


@contextmanager
def printable() -> Iterator[None]:
    """A context in which every character can be printed to stdout and stderr. What is printed to one that is closed, as
    daemons may leave it, is dropped."""
    with ExitStack() as after:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                after.callback(setattr, sys, name, None)
                setattr(sys, name, after.enter_context(open(os.devnull, "w")))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper) and stream.errors in DEFAULTS:
                after.callback(_restore, stream, stream.errors)
                stream.reconfigure(errors=NAME)
        yield


def _restore(stream: TextIOWrapper, errors: str) -> None:
    if not stream.closed:
        stream.reconfigure(errors=errors)
