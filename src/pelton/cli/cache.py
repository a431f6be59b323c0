"""`pelton cache`: shows and removes compiled kernels, kernel times and session engines on disk."""

from __future__ import annotations

import argparse
import time

from pelton.system import cache
from pelton.errors import InputError
from pelton.options import Options

from . import output, parsers, text

EXAMPLES = """examples:
  pelton cache info                     path, contents and limit
  pelton cache prune --limit 500MB      removes the least recently used files above 500 MB
  pelton cache prune --unused 30        removes files unused for 30 days
  pelton cache clear                    removes everything

The cache directory is ~/.cache/pelton, or PELTON_CACHE_DIR. Builds keep it below PELTON_CACHE_LIMIT (default 4GB).
Later builds recreate removed files; running programs are not affected. `pelton import-env --remove` removes
environments, `pelton cache` does not."""
WHAT = {
    "objects": "compiled kernels",
    "cubins": "compiled kernels of GPUs",
    "times": "times of kernels",
    "guarded": "kernels of plugins that ran between canaries",
    "sessions": "engines of sessions",
    "imports": "models converted to ONNX",
}


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "cache",
        help="show or prune the cache directory",
        epilog=EXAMPLES,
        description="Shows, prunes or clears the cache directory.",
    )
    command.add_argument(
        "action",
        choices=("info", "prune", "clear"),
        metavar="info|prune|clear",
        help="info: show sizes; prune: remove old files, and files above the limit; clear: remove all",
    )
    command.add_argument(
        "--limit",
        type=parsers.size,
        metavar="SIZE",
        help="prune: maximum size, such as 500MB (default: the limit of builds)",
    )
    command.add_argument(
        "--unused",
        type=parsers.int_in_range(0, 36500, "days"),
        metavar="DAYS",
        help=f"prune: remove files unused for this many days (default {cache.KEPT // cache.DAY})",
    )
    command.add_argument(
        "--cache-dir", metavar="DIR", help="the cache directory (default: PELTON_CACHE_DIR, else ~/.cache/pelton)"
    )
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    if args.action != "prune" and (args.limit is not None or args.unused is not None):
        raise InputError(
            f"--limit and --unused are options of `pelton cache prune`, not of `pelton cache {args.action}`"
        )
    store = cache.open_cache(Options(cache_dir=args.cache_dir, cache_limit=args.limit))
    if store.home is None:
        raise InputError(
            "there is no cache directory, as this user has no home; name one with --cache-dir or PELTON_CACHE_DIR"
        )
    try:
        if args.action == "info":
            if args.json:
                output.emit(args, facts(store))
            else:
                print(format_facts(store))
            return
        if args.action == "clear":
            gone = store.clear()
        else:
            gone = store.trim(store.limit, kept=cache.KEPT if args.unused is None else args.unused * cache.DAY)
        rest = store.entries()
    except OSError as e:
        raise InputError(
            f"the cache {store.home} cannot be read: {e.strerror or e}; name another with --cache-dir or"
            " PELTON_CACHE_DIR"
        ) from None
    if args.json:
        output.emit(args, {"directory": str(store.home), "removed": total(gone), "left": total(rest)})
    elif not args.quiet:
        print(f"{store.home}: {holds(gone)} removed, {holds(rest)} left")


def holds(entries: list[cache.Entry]) -> str:
    return f"{text.count(len(entries), 'file')} ({text.size(sum(e.size for e in entries))})"


def total(entries: list[cache.Entry]) -> dict[str, int]:
    return {"files": len(entries), "bytes": sum(e.size for e in entries)}


def facts(found: cache.Cache) -> dict:
    """Returns the directory, its limit, the reason why it cannot be used (if so), and for each part files, bytes and
    the time of last use (seconds since 1970)."""
    entries = found.entries()
    of = {part: [e for e in entries if e.part == part] for part in cache.PARTS}
    return {
        "directory": str(found.home),
        "limit": found.limit,
        "problem": found.problem(),
        **total(entries),
        "parts": {part: {**total(es), "used": max((e.used for e in es), default=None)} for part, es in of.items()},
    }


def format_facts(found: cache.Cache) -> str:
    """Formats the same as a table."""
    known = facts(found)
    rows = [
        (WHAT[part], text.count(of["files"], "file"), text.size(of["bytes"]), f"last used {ago(of['used'])}")
        for part, of in known["parts"].items()
        if of["files"]
    ]
    head = f"{found.home}: {text.size(known['bytes'])} of at most {text.size(found.limit)}"
    lines = [head, text.table(rows, "lrrl", indent="  ", heading=False)] if rows else []
    if known["problem"] is not None:
        lines.append(known["problem"])
    return "\n".join(lines or [f"{head}, nothing yet"])


def ago(when: float) -> str:
    days = int(time.time() - when) // cache.DAY
    return f"{text.count(days, 'day')} ago" if days else "today"
