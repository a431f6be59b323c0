"""Rewrites parts of docs/formats.md: tables of formats from the registry, and differences from frameworks from the last
`make test-importers` in build/importers/frameworks.
"""

import json
import re
import sys
from pathlib import Path

from pelton.cli import formats

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "formats.md", ROOT / "build" / "importers" / "frameworks"


def replaced(page: str, section: str, text: str) -> str:
    """The page with another text between the comments that mark a section."""
    begin, end = (f"<!-- {section}: {word} -->" for word in ("begin", "end"))
    pattern = re.compile(rf"(?<={re.escape(begin)}\n).*?(?={re.escape(end)})", re.S)
    assert pattern.search(page), f"docs/formats.md has no section {section}"
    return pattern.sub(lambda _: text + "\n", page)


def results() -> str:
    """A table for every set of versions."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = []
    for versions in dict.fromkeys(r["versions"] for r in found):
        rows = sorted((r for r in found if r["versions"] == versions), key=lambda r: (r["format"], r["model"]))
        lines += [
            f"{versions}; {max(r['date'] for r in rows)}:",
            "",
            "| format | model | off by at most | first import, s |",
            "| --- | --- | ---: | ---: |",
            *(f"| {r['format']} | {r['model']} | {r['far']:.1e} | {r['seconds']:.1f} |" for r in rows),
            "",
        ]
    return "\n".join(lines).rstrip()


def main() -> None:
    page = replaced(PAGE.read_text(), "formats", formats.markdown())
    if RESULTS.is_dir():
        page = replaced(page, "frameworks", results())
    PAGE.write_text(page)


if __name__ == "__main__":
    sys.exit(main())
