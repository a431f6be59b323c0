"""`pelton formats`: the buildable formats of models, and for each the export and further requirements."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pelton.errors import InputError, near

from . import output

if TYPE_CHECKING:
    from pelton.importers.registry import Format

EXAMPLES = """examples:
  pelton formats                        all of them
  pelton formats keras paddle           those whose names or files have one of these words
  pelton formats --json                 for programs

`pelton build` detects formats by the contents of files, and by their names only where these are ambiguous."""
HEADINGS = {
    "files": "files",
    "export": "how to export",
    "extra": "needs besides",
    "covers": "covered",
    "checked": "checked against",
}
WAY_AROUND = {"files": "files", "export": "way around"}  # of formats without an importer
NOTHING = "nothing"
WIDTH = 110  # columns


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "formats",
        help="list supported model formats",
        epilog=EXAMPLES,
        description="Lists supported model formats, and alternatives for other formats.",
    )
    command.add_argument("words", nargs="*", metavar="WORD", help="only formats with this word in their name or files")
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    known = facts()
    if args.words:
        known = {n: known[n] for n in _named(args.words, known)}
    if args.json:
        output.emit(args, known)
    else:
        print("\n\n".join(block(n, f) for n, f in known.items()))


def _named(words: Sequence[str], known: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns the formats with one of the words in their names or files. Raises InputError for an unknown word."""
    text = {n: f"{n} {f['files']}".lower() for n, f in known.items()}
    for word in words:
        if not any(word.lower() in t for t in text.values()):
            raise InputError(
                f"no format has {word!r} in its name or files{near(word, known)}; there are {', '.join(known)}"
            )
    return [n for n, t in text.items() if any(word.lower() in t for word in words)]


def formats() -> list[Format]:
    """Returns every format, in the order of recognition, those without an importer last."""
    import pelton.importers  # noqa: F401  (registers all)
    from pelton.importers.registry import FORMATS

    return sorted(FORMATS, key=lambda f: not f.about.covers)


def facts() -> dict[str, dict[str, str]]:
    """Returns every format's own description: name → field of `About` → text."""
    return {f.name: asdict(f.about) for f in formats()}


def block(name: str, of: dict[str, str]) -> str:
    """Formats one format for people."""
    lines = [name + ("" if of["covers"] else " (not read)")]
    for field, heading in (HEADINGS if of["covers"] else WAY_AROUND).items():
        entry = of[field] or (NOTHING if field == "extra" else "")
        if entry:
            first, *more = textwrap.wrap(entry, WIDTH - 19, break_long_words=False, break_on_hyphens=False)
            lines += [f"  {heading + ':':<17}{first}", *(" " * 19 + line for line in more)]
    return "\n".join(lines)


def markdown() -> str:
    """Formats the same as the tables of docs/formats.md."""

    def row(*cells: str) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    read = {n: f for n, f in facts().items() if f["covers"]}
    lines = [row("format", *HEADINGS.values()), row(*["---"] * (1 + len(HEADINGS)))]
    lines += [row(n, *(f[x] or NOTHING for x in HEADINGS)) for n, f in read.items()]
    lines += ["", row("not read", "files", "the way around"), row(*["---"] * 3)]
    lines += [row(n, f["files"], f["export"]) for n, f in facts().items() if n not in read]
    return "\n".join(lines)
