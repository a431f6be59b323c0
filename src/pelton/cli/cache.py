"""`pelton cache`: how much compiled kernels, times and engines of sessions take on disk, and how they go."""

from __future__ import annotations

import argparse
import json
import time

from pelton.system import cache
from pelton.errors import InputError
from pelton.options import Options

from . import arguments, text

EXAMPLES = """examples:
  pelton cache info                     where it is, what it holds, and its limit
  pelton cache prune --limit 500MB      removes the least recently used until no more is left
  pelton cache prune --unused 30        removes what nobody has used for 30 days
  pelton cache clear                    removes everything

It is ~/.cache/pelton, or what PELTON_CACHE_DIR says. Builds and sessions keep it below PELTON_CACHE_LIMIT (4GB if not given) by themselves. What was removed
is made again when it is asked for; programs that use an engine go on with it."""
WHAT = {
    "objects": "compiled kernels",
    "cubins": "compiled kernels of GPUs",
    "times": "times of kernels",
    "sessions": "engines of sessions",
}


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "cache",
        help="say what the cache directory holds, or make it smaller",
        epilog=EXAMPLES,
        description="Says what the cache directory holds, or makes it smaller.",
    )
    command.add_argument(
        "action",
        choices=("info", "prune", "clear"),
        metavar="info|prune|clear",
        help="look, remove what is old or too much, remove all",
    )
    command.add_argument(
        "--limit",
        type=size,
        metavar="SIZE",
        help="prune: leave no more than this, such as 500MB (the limit of builds, if not given)",
    )
    command.add_argument(
        "--unused",
        type=arguments.whole(0, 36500, "days"),
        metavar="DAYS",
        help=f"prune: remove what nobody has used for so many days ({cache.KEPT // cache.DAY} if not given)",
    )
    command.add_argument("--cache-dir", metavar="DIR", help="another directory")
    command.add_argument("--json", action="store_true", help="info: print one JSON object")
    return command


def size(given: str) -> int:
    """A number of bytes as the command line has it."""
    try:
        return cache.size(given)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"expected {e}") from None


def main(args: argparse.Namespace) -> None:
    if args.action != "prune" and (args.limit is not None or args.unused is not None):
        raise InputError(
            f"--limit and --unused say what `pelton cache prune` leaves; `pelton cache {args.action}` takes neither"
        )
    if args.json and args.action != "info":
        raise InputError(f"--json is for `pelton cache info`, not for `pelton cache {args.action}`")
    found = cache.opened(Options(cache_dir=args.cache_dir, cache_limit=args.limit))
    if found.home is None:
        raise InputError(
            "there is no cache directory, for this user has no home; name one with --cache-dir or PELTON_CACHE_DIR"
        )
    try:
        if args.action == "info":
            print(json.dumps(facts(found), indent=1) if args.json else told(found))
            return
        gone = (
            found.clear()
            if args.action == "clear"
            else found.trim(found.limit, kept=cache.KEPT if args.unused is None else args.unused * cache.DAY)
        )
        rest = found.entries()
    except OSError as e:
        raise InputError(
            f"the cache {found.home} cannot be looked at: {e.strerror or e}; name another with --cache-dir or"
            " PELTON_CACHE_DIR"
        ) from None
    if not args.quiet:
        print(f"{found.home}: {holds(gone)} removed, {holds(rest)} left")


def holds(entries: list[cache.Entry]) -> str:
    return f"{text.count(len(entries), 'file')} ({text.size(sum(e.size for e in entries))})"


def facts(found: cache.Cache) -> dict:
    """The directory, its limit, and for each part files, bytes and when one was last used (seconds since 1970)."""
    entries = found.entries()
    of = {part: [e for e in entries if e.part == part] for part in cache.PARTS}
    return {
        "directory": str(found.home),
        "limit": found.limit,
        "files": len(entries),
        "bytes": sum(e.size for e in entries),
        "parts": {
            part: {"files": len(es), "bytes": sum(e.size for e in es), "used": max((e.used for e in es), default=None)}
            for part, es in of.items()
        },
    }


def told(found: cache.Cache) -> str:
    """The same for people."""
    known = facts(found)
    rows = [
        (WHAT[part], text.count(of["files"], "file"), text.size(of["bytes"]), f"last used {ago(of['used'])}")
        for part, of in known["parts"].items()
        if of["files"]
    ]
    head = f"{found.home}: {text.size(known['bytes'])} of at most {text.size(found.limit)}"
    return "\n".join([head, text.table(rows, "lrrl", indent="  ")] if rows else [f"{head}, nothing yet"])


def ago(when: float) -> str:
    days = int(time.time() - when) // cache.DAY
    return f"{text.count(days, 'day')} ago" if days else "today"
