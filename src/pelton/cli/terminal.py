"""Colours: their detection, help texts in colour, by rich where installed, and coloured lines."""

from __future__ import annotations

import argparse
import os
from typing import TextIO

STYLES = {"bold": 1, "red": 31, "yellow": 33}  # of ECMA-48


def colored(stream: TextIO) -> bool:
    """Returns True if a stream shows colours: a terminal does, unless NO_COLOR is set (no-color.org) or TERM is "dumb";
    everything does with FORCE_COLOR (force-color.org). Empty variables count as unset, and NO_COLOR wins."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty() and os.environ.get("TERM") != "dumb"


def help_formatter() -> type[argparse.HelpFormatter]:
    """Returns the formatter of help texts in colours, by rich-argparse; the plain one without that."""
    try:
        from rich_argparse import RawDescriptionRichHelpFormatter
    except ImportError:
        return argparse.RawDescriptionHelpFormatter
    return type(
        "HelpFormatter",
        (RawDescriptionRichHelpFormatter,),
        {"help_markup": False, "text_markup": False, "group_name_formatter": str},
    )


def painted(line: str, style: str) -> str:
    """Returns a line in one of `STYLES`, or unchanged."""
    return f"\x1b[{STYLES[style]}m{line}\x1b[0m" if style else line
