"""Colours: where they are shown, help texts and tables that have some, by rich where it is installed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TextIO


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


def table(rows: Sequence[Sequence[str]], align: str, indent: str, styles: Mapping[int, str], width: int) -> str | None:
    """A table in colours, one line for each row, cut to `width` columns; None where rich is not installed. See
    `text.table`."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    found = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, side in zip(rows[0], align):  # texts give way to numbers
        found.add_column(Text(name), justify="left" if side == "l" else "right", no_wrap=side == "r")
    for i, row in enumerate(rows[1:], 1):
        found.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row), style=styles.get(i))
    console = Console(force_terminal=True, width=max(width - len(indent), 20), highlight=False, color_system="standard")
    with console.capture() as said:
        console.print(found)
    return "\n".join(indent + line.rstrip() for line in said.get().rstrip("\n").split("\n"))
