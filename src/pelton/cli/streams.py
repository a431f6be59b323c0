"""Makes standard streams printable: characters missing in an encoding become ASCII; closed streams accept all."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper

REPLACEMENTS = {"→": "->", "…": "...", "–": "-", "×": "x", "·": "*", "−": "-", "µ": "u", "∞": "inf"}
NAME = "pelton.ascii"
# Python's defaults, which are replaced; a handler chosen by the user stays
DEFAULTS = ("strict", "surrogateescape", "backslashreplace")


def _replace(e: UnicodeError) -> tuple[str | bytes, int]:
    """Handles errors of codecs: ASCII of the same meaning, the original bytes of undecodable file names, and escapes
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
    """Context manager that makes every character printable to stdout and stderr. Output to a closed stream, as daemons
    may have, is dropped."""
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
