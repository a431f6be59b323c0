"""Writes the reference of all commands in docs/cli.md from the parser: `python -m pelton.cli.manual docs/cli.md`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from pelton.system import files

from . import parser

BEGIN, END = "<!-- commands: written by make cli-docs -->\n", "<!-- end of commands -->\n"
EVERYWHERE = ("help", "verbose", "quiet", "json")  # options explained once on the page


def markdown() -> str:
    """Formats a section for each group, a subsection for each command, a table for each group of its options."""
    all_commands = parser()
    commands = next(a for a in all_commands._actions if isinstance(a, argparse._SubParsersAction))
    lines: list[str] = []
    for title, names in all_commands.groups.items():
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for name in names:
            lines += [f"### pelton {name}", "", f"{commands.choices[name].description}", ""]
            lines += _tables(commands.choices[name])
            lines += ["```text", f"{commands.choices[name].epilog}", "```", ""]
    return "\n".join(lines)


def replaced(page: str) -> str:
    """Returns the page with the current reference."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{markdown()}\n{END}{rest.partition(END)[2]}"


def _tables(command: argparse.ArgumentParser) -> Iterator[str]:
    for group in command._action_groups:
        shown = (a for a in group._group_actions if a.dest not in EVERYWHERE and a.help is not argparse.SUPPRESS)
        rows = [_row(a) for a in shown]
        if rows:
            yield from (f"| {group.title} | |", "| --- | --- |", *rows, "")


def _row(action: argparse.Action) -> str:
    takes = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest)
    if not action.option_strings:
        name = str(takes)
    else:
        name = ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {takes}")
    description = (action.help or "").replace("%%", "%")
    return f"| `{_escape(name)}` | {_escape(description)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*=", "\\*=")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    files.write(path, [replaced(path.read_text("utf-8")).encode()])
