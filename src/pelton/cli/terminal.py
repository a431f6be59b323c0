"""Colours: where they are shown, help texts that have some, by rich where it is installed, and lines in one."""

from __future__ import annotations

import argparse
import os
from typing import TextIO

STYLES = {"bold": 1, "red": 31, "yellow": 33}  # of ECMA-48


def colored(stream: TextIO) -> bool:
    """Whether a stream shows colours: a terminal does, unless NO_COLOR is set (no-color.org) or TERM is "dumb";
    everything does with FORCE_COLOR (force-color.org). Empty variables count as unset, and NO_COLOR counts first."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty() and os.environ.get("TERM") != "dumb"


def help_formatter() -> type[argparse.HelpFormatter]:
    """What lays out help texts in colours, by rich-argparse; the plain one where that is not installed."""
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
    """A line in one of `STYLES`, or as it is."""
    return f"\x1b[{STYLES[style]}m{line}\x1b[0m" if style else line
