#!/usr/bin/env python3
"""Runs programs of libraries that import onnxruntime, with ONNX Runtime and with Pelton in its place, and compares
their answers and times.

    make clients            # which makes the venv for it, or:
    build/clients/bin/python clients/run.py [PROGRAM …] [--page docs/clients.md] [--level N]

Each program of clients/programs runs in a process of its own: with ONNX Runtime, by `python -m pelton.onnxruntime` with
an empty cache (the engines are built), and by the same with the engines that are kept by then. It ends with 1 where a
program failed, or where answers differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pelton
from pelton.backends.cpu import default_threads, describe
from pelton.cli.text import count

HERE = Path(__file__).parent
PROGRAMS = sorted(p.stem for p in (HERE / "programs").glob("*.py"))
# floating numbers are equal when they are no further apart, by this plus as much of the larger
NEAR = 2e-3
TOGETHER = "pelton.onnxruntime"
HEAD = """# Libraries written for ONNX Runtime, as they are

Written by `make clients`. Each program of `clients/programs` runs with ONNX Runtime and by `python -m
pelton.onnxruntime`. The table shows whether the answers are the same (strings and integers exactly, floats to 2e-3),
the seconds until the first answer (object constructed, models loaded; Pelton builds engines if the cache is empty, and
loads them from it afterwards), and the milliseconds of later answers, the library's own work included.
"""


class Failed(Exception):
    """A program ended without an answer."""


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument(
        "programs", nargs="*", metavar="PROGRAM", help=f"one of {', '.join(PROGRAMS)}; all of them without"
    )
    ask.add_argument("--page", type=Path, help="write the table here")
    ask.add_argument("--level", type=int, default=3)
    a = ask.parse_args()
    unknown = [name for name in a.programs if name not in PROGRAMS]
    if unknown:
        ask.error(f"there is no program {unknown[0]}; there are {', '.join(PROGRAMS)}")
    rows, failed = [], False
    for name in a.programs or PROGRAMS:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            row, equal = compared(name, a.level)
        except Failed as e:
            print(f"{name}: {e}", file=sys.stderr)
            row, equal = f"| {said(name)} | – | failed: {str(e).splitlines()[-1]} | – | – | – | – | – | – |", False
        failed |= not equal
        rows.append(row)
        print(row, flush=True)
    text = (
        f"{HEAD}\n{describe()['model']}, {count(default_threads(), 'thread')}, level {a.level}, Pelton"
        f" {pelton.__version__}.\n\n| what is done | library | answers | ONNX Runtime, first s | Pelton, building s |"
        " Pelton, kept s | ONNX Runtime ms | Pelton ms | times as fast |\n| --- | --- | --- | ---: | ---: | ---: |"
        " ---: | ---: | ---: |\n" + "\n".join(rows) + "\n"
    )
    if a.page is not None:
        a.page.write_text(text)
    return int(failed)


def said(name: str) -> str:
    """What a program says of itself in its first line."""
    return (HERE / "programs" / f"{name}.py").read_text().partition('"""')[2].partition("\n")[0].rstrip('."')


def compared(name: str, level: int) -> tuple[str, bool]:
    """A row of the table, and whether the answers are equal."""
    with tempfile.TemporaryDirectory(prefix="pelton-clients-") as folder:
        out, cache = Path(folder) / "told.json", Path(folder) / "cache"
        theirs = told(name, [], out, {})
        if "skipped" in theirs:
            return f"| {said(name)} | – | not run: {theirs['skipped']} | – | – | – | – | – | – |", True
        ours = [
            told(name, ["-m", TOGETHER], out, {"PELTON_CACHE_DIR": str(cache), "PELTON_LEVEL": str(level)})
            for _ in range(2)
        ]
    for one, runtime in ((theirs, "onnxruntime"), *((o, TOGETHER) for o in ours)):
        if one["runtime"] != runtime:
            raise Failed(f"{name} was to run on {runtime}, but imported {one['runtime']}")
    apart = [
        problem
        for other in (*ours, {"answers": ours[0]["again"]})
        for problem in differences(theirs["answers"], other["answers"])
    ]
    for problem in dict.fromkeys(apart):
        print(f"{name}: {problem}", file=sys.stderr)
    answers = "equal" if not apart else f"{len(dict.fromkeys(apart))} differ: {apart[0]}"
    kept = ours[1]
    return (
        (
            f"| {said(name)} | {theirs['package']} {theirs['version']} | {answers} | {theirs['first']:.2f} |"
            f" {ours[0]['first']:.2f} | {kept['first']:.2f} | {1e3 * theirs['later']:.2f} | {1e3 * kept['later']:.2f} |"
            f" {theirs['later'] / kept['later']:.2f} |"
        ),
        not apart,
    )


def told(name: str, before: list[str], out: Path, more: dict[str, str]) -> dict[str, Any]:
    """What a program tells; Failed with the end of what it printed, where it does not come to that."""
    out.unlink(missing_ok=True)
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **more, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *before, str(HERE / "programs" / f"{name}.py"), str(out)],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode or not out.exists():
        raise Failed(
            "\n".join((done.stderr.strip() or f"it ended with {done.returncode} and said nothing").splitlines()[-40:])
        )
    return json.loads(out.read_text())


def differences(a: Any, b: Any, where: str = "answers") -> Iterator[str]:
    """Where two answers differ: in what they are made of, in texts and whole numbers at all, in floating ones by more
    than NEAR."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from differences(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)):
            yield from differences(x, y, f"{where}[{i}]")
    elif isinstance(a, float) and isinstance(b, (int, float)) and not isinstance(b, bool):
        if not abs(a - b) <= NEAR * (1 + max(abs(a), abs(b))) and not (a != a and b != b):
            yield f"{where} is {b:.6g} instead of {a:.6g}"
    elif type(a) is not type(b) or a != b:
        yield f"{where} is {str(b):.80} instead of {str(a):.80}"


if __name__ == "__main__":
    sys.exit(main())
