"""Writes the page of kernels' cases for WebAssembly, from what pytest recorded of them.

    python -m benchmarks.web.kernels FOLDER [--page benchmarks/web/kernels.md]

FOLDER has a folder for each level, with the JUnit XML files of `pytest --junitxml`. A case that several files have
counts as the latest of them says; files of tests without a result are listed. `make test-web` runs all cases and then
this; the exit status is 1 if a case failed, or if there is none.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

from pelton.tuning import measure_wasm
from pelton.version import VERSION

TESTS = Path(__file__).parents[2] / "tests"
LINE_END = "\n"
OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}
ABOUT = """Each case is a region of a program: an operator at awkward sizes, with what follows it. Kernels of several
tactics run in node, in dense memory and with gaps between rows, tile by tile and all at once. Results are compared with
a float64 reference, integers bit for bit; memory around outputs must stay unchanged. Reads outside of operands are
found by the tests of other levels: all memory of a module can be read."""


@dataclass(frozen=True)
class CaseResult:
    """One test: its file's name, its own, passed, skipped or failed, and the reason."""

    file: str
    name: str
    outcome: str
    reason: str


def read(folder: Path) -> list[CaseResult]:
    """Reads all cases of a level, each once."""
    found: dict[tuple[str, str], CaseResult] = {}
    for path in sorted(folder.glob("*.xml"), key=lambda p: p.stat().st_mtime):
        for case in ElementTree.parse(path).iter("testcase"):
            file, name = case.get("classname", "").rpartition(".")[2], case.get("name", "")
            outcome, reason = "passed", ""
            for part in case:
                if part.tag in OUTCOMES:
                    outcome, reason = OUTCOMES[part.tag], re.sub(r"(/\S*)+/", "", part.get("message", ""))
            found[file, name] = CaseResult(file, name, outcome, reason)
    return sorted(found.values(), key=lambda c: (c.file, c.name))


def page(levels: dict[str, list[CaseResult]]) -> str:
    """Returns the page, in Markdown."""
    files = sorted({c.file for cases in levels.values() for c in cases})
    counts = {level: Counter((c.file, c.outcome) for c in cases) for level, cases in levels.items()}
    heads = " | ".join(f"{level}: {outcome}" for level in levels for outcome in ("passed", "skipped", "failed"))

    def row(title: str, of: Iterable[str]) -> str:
        inside = list(of)
        cells = (
            sum(counts[level][file, outcome] for file in inside)
            for level in levels
            for outcome in ("passed", "skipped", "failed")
        )
        return f"| {title} | {' | '.join(map(str, cells))} |"

    rows = [row(f"`{file}`", [file]) for file in files]
    return f"""# Kernels' cases for WebAssembly

Written by `make test-web` on {date.today()}: Pelton {VERSION}, node and V8 {measure_wasm.version()}.

{ABOUT}

| cases | {heads} |
| --- |{" ---: |" * 3 * len(levels)}
{chr(10).join(rows)}
{row("**all**", files)}

## Skipped

{_reasons(levels, "skipped")}
{_failures(levels)}{_missing(levels)}"""


def _missing(levels: dict[str, list[CaseResult]]) -> str:
    """Returns the files of tests that the results of a level are without."""
    lines = []
    for level, cases in levels.items():
        done = {c.file for c in cases}
        if left := [p.stem for p in sorted(TESTS.glob("test_kernels*.py")) if p.stem not in done]:
            lines.append(f"- {level}: {', '.join(f'`{name}`' for name in left)}")
    return "\n## Not run\n\n" + "\n".join(lines) + "\n" if lines else ""


def _reasons(levels: dict[str, list[CaseResult]], outcome: str) -> str:
    reasons = Counter(
        (c.reason.replace(level, "the level"), level)
        for level, cases in levels.items()
        for c in cases
        if c.outcome == outcome
    )
    lines = [
        f"| {reason} | {' | '.join(str(reasons[reason, level]) for level in levels)} |"
        for reason in sorted({reason for reason, _ in reasons})
    ]
    if not lines:
        return "None."
    return "\n".join([f"| reason | {' | '.join(levels)} |", f"| --- |{' ---: |' * len(levels)}", *lines])


def _failures(levels: dict[str, list[CaseResult]]) -> str:
    lines = [
        f"- {level}, `{c.file}.{c.name}`: {c.reason.partition(LINE_END)[0]}"
        for level, cases in levels.items()
        for c in cases
        if c.outcome == "failed"
    ]
    return "\n## Failed\n\n" + "\n".join(lines) + "\n" if lines else ""


def main(arguments: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(
        prog="benchmarks.web.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("folder", type=Path)
    ask.add_argument("--page", type=Path, help="write the page to this file")
    a = ask.parse_args(arguments)
    levels = (
        {each.name: read(each) for each in sorted(a.folder.iterdir()) if each.is_dir()} if a.folder.is_dir() else {}
    )
    if not any(levels.values()):
        print(f"{a.folder} has no results: run `make test-web`", file=sys.stderr)
        return 1
    text = page(levels)
    if a.page:
        a.page.write_text(text, "utf-8")
    else:
        print(text)
    return int(any(c.outcome == "failed" for cases in levels.values() for c in cases))


if __name__ == "__main__":
    sys.exit(main())
