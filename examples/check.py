#!/usr/bin/env python3
"""Runs the examples and the notebooks (`make examples`), and compares what the former print with README.md beside it.

    python examples/check.py [--write] [name …]

Times (numbers before ms or µs) may differ, other numbers by one in their last place: CPUs sum in other orders.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
EXAMPLES = sorted(p for p in HERE.glob("*.py") if p.name != Path(__file__).name)
NOTEBOOKS = sorted((HERE / "notebooks").glob("*.ipynb"))
OF_USERS = ("darknet.py",)  # needs weights of theirs; tests/test_detections.py runs it
# "## NAME", what is said of it, and the block of what it prints
SECTION = re.compile(
    r"(?P<head>^## (?P<name>\S+)\n(?:(?!## |```).*\n)*```text\n)(?P<printed>(?:(?!```).*\n)*)(?=```$)", re.M
)
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(\s*(?:ms|µs)\b)?")


def printed(page: str) -> dict[str, str]:
    """Example → what it prints, as the page says."""
    return {found["name"]: found["printed"] for found in SECTION.finditer(page)}


def differences(want: str, got: str) -> list[str]:
    """What differs by more than times and last places, a text for each line."""
    wanted, given = want.strip().splitlines(), got.strip().splitlines()
    if len(wanted) != len(given):
        return [f"{len(given)} lines, expected {len(wanted)}"]
    return [f"{b!r}, expected {a!r}" for a, b in zip(wanted, given) if not alike(a, b)]


def alike(want: str, got: str) -> bool:
    """Whether two lines have the same words and units, and numbers that are the same but for one in the last place."""
    words, numbers = zip(*((NUMBER.sub(r"#\2", line).split(), NUMBER.findall(line)) for line in (want, got)))
    return words[0] == words[1] and all(
        unit or abs(float(a) - float(b)) <= 1.001 / 10 ** len(a.partition(".")[2])
        for (a, unit), (b, _) in zip(*numbers)
    )


def run(example: Path, folder: str) -> str:
    """What an example prints; RuntimeError with the last lines of its complaints if it fails."""
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-5:]))
    return done.stdout


def run_notebook(path: Path, folder: str) -> None:
    """Runs all cells of a notebook in a kernel of its own; RuntimeError with the cell that fails."""
    import nbclient
    import nbformat

    cells = nbformat.read(path, as_version=4)
    quiet = ["--IPKernelApp.log_level=ERROR"]
    options = {"timeout": 600, "resources": {"metadata": {"path": folder}}, "extra_arguments": quiet}
    try:
        nbclient.NotebookClient(cells, **options).execute()
    except nbclient.exceptions.CellExecutionError as e:
        raise RuntimeError(str(e)) from None


def problems(path: Path, pages: dict[str, str], folder: str) -> list[str]:
    """What is wrong with an example or a notebook. Notes in `pages` what an example prints."""
    try:
        if path.suffix == ".ipynb":
            run_notebook(path, folder)
            return []
        got = run(path, folder)
    except RuntimeError as e:
        return str(e).splitlines()
    want = pages.get(path.name)
    pages[path.name] = got
    return ["README.md does not say what it prints"] if want is None else differences(want, got)


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("names", nargs="*", metavar="name", help="of examples and notebooks (default: all)")
    ask.add_argument("--write", action="store_true", help="put what examples print into README.md")
    args = ask.parse_args()
    paths = {p.name: p for p in (*EXAMPLES, *NOTEBOOKS) if p.name not in OF_USERS}
    if unknown := [name for name in args.names if name not in paths]:
        ask.error(f"{unknown[0]!r} is none of {', '.join(paths)}")
    pages, wrong = printed(PAGE.read_text(encoding="utf-8")), 0
    for name in args.names or paths:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="pelton-examples-") as folder:
            found = problems(paths[name], pages, folder)
        wrong += bool(found)
        print(f"{name:22} {'WRONG' if found else 'right'}, {time.monotonic() - start:.0f} s", flush=True)
        print("".join(f"    {line}\n" for line in found), end="")
    if args.write:
        page = SECTION.sub(lambda m: m["head"] + pages[m["name"]], PAGE.read_text(encoding="utf-8"))
        PAGE.write_text(page, encoding="utf-8")
    count = len(args.names or paths)
    print(f"{count - wrong} right, {wrong} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
