#!/usr/bin/env python3
"""Runs programs of libraries that import onnxruntime, with ONNX Runtime and with Pelton in its place, and compares
their answers and times.

    make clients            # which makes the venv for it, or:
    build/clients/bin/python clients/run.py [PROGRAM …] [--page docs/clients.md] [--level N]

Each program of clients/programs runs in its own process: with ONNX Runtime, by `python -m pelton.onnxruntime` with an
empty cache (engines are built), and by the same with the cached engines. The exit status is 1 if a program failed or
answers differ.
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
# floats are equal if they differ by no more than this, absolute plus relative to the larger
NEAR = 2e-3
STAND_IN = "pelton.onnxruntime"
HEAD = """# Libraries written for ONNX Runtime, as they are

Written by `make clients`. Each program of `clients/programs` runs with ONNX Runtime and with
`python -m pelton.onnxruntime`. Answers must agree: strings and integers exactly, floats to 2e-3. `first`, `building`
and `kept` are seconds until the first answer, models loaded, with an empty and with a filled cache of engines. The
other times are milliseconds of later answers, the library's own work included.
"""


class Failed(Exception):
    """A program ended without an answer."""


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"one of {', '.join(PROGRAMS)} (default: all)")
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
            row, equal = compare(name, a.level)
        except Failed as e:
            print(f"{name}: {e}", file=sys.stderr)
            row, equal = f"| {title(name)} | – | failed: {str(e).splitlines()[-1]} | – | – | – | – | – | – |", False
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


def title(name: str) -> str:
    """The first line of a program's docstring."""
    return (HERE / "programs" / f"{name}.py").read_text().partition('"""')[2].partition("\n")[0].rstrip('."')


def compare(name: str, level: int) -> tuple[str, bool]:
    """A row of the table, and whether the answers are equal."""
    with tempfile.TemporaryDirectory(prefix="pelton-clients-") as folder:
        out, cache = Path(folder) / "report.json", Path(folder) / "cache"
        theirs = run_program(name, [], out, {})
        if "skipped" in theirs:
            return f"| {title(name)} | – | not run: {theirs['skipped']} | – | – | – | – | – | – |", True
        ours = [
            run_program(name, ["-m", STAND_IN], out, {"PELTON_CACHE_DIR": str(cache), "PELTON_LEVEL": str(level)})
            for _ in range(2)
        ]
    for one, runtime in ((theirs, "onnxruntime"), *((o, STAND_IN) for o in ours)):
        if one["runtime"] != runtime:
            raise Failed(f"{name} should run on {runtime}, but imported {one['runtime']}")
    found = [
        problem
        for other in (*ours, {"answers": ours[0]["again"]})
        for problem in differences(theirs["answers"], other["answers"])
    ]
    for problem in dict.fromkeys(found):
        print(f"{name}: {problem}", file=sys.stderr)
    answers = "equal" if not found else f"{len(dict.fromkeys(found))} differ: {found[0]}"
    cached = ours[1]
    row = (
        f"| {title(name)} | {theirs['package']} {theirs['version']} | {answers} | {theirs['first']:.2f} |"
        f" {ours[0]['first']:.2f} | {cached['first']:.2f} | {1e3 * theirs['later']:.2f} |"
        f" {1e3 * cached['later']:.2f} | {theirs['later'] / cached['later']:.2f} |"
    )
    return row, not found


def run_program(name: str, before: list[str], out: Path, more: dict[str, str]) -> dict[str, Any]:
    """The report of a program. Raises Failed with the end of its error output if it does not write one."""
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
    """Where two answers differ: in structure, in strings and integers, and in floats by more than NEAR."""
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
