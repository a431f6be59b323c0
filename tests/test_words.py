"""Words that make a sentence be read twice: none in pages, messages, docstrings, comments and names."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [p for p in sorted((ROOT / "src" / "pelton").rglob("*")) if p.suffix in (".py", ".c", ".h", ".hpp")]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")])
# → what to write instead
BANNED = {
    "told": "describe, report, or the noun",
    "spelled": "written, explicit",
    "nobody": "no, not, never",
    "amid": "among",
    "shelf": "cache, table",
}
WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(BANNED)})(?![a-z])", re.I)


def banned(text: str) -> list[str]:
    """A line for each banned word, between any two of a sentence or of a name."""
    return [
        f"line {i}: {m[1]} ({BANNED[m[1].lower()]})"
        for i, line in enumerate(text.splitlines(), 1)
        for m in WORD.finditer(line)
    ]


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_words_are_read_once(path):
    assert not (found := banned(path.read_text())), "\n".join(found)


def test_banned_words_would_be_noticed():
    assert len(banned("as told\nNobody's\nspelled_out = _told\n")) == 4
    assert banned("retold misspelled shelves amide") == []


@pytest.mark.parametrize("length, status", [(72, 0), (73, 1)])
def test_subjects_of_commits_have_a_length(length, status, tmp_path):
    (tmp_path / "message").write_text("x" * length + "\n\n" + "y" * 100)
    command = ["bash", str(ROOT / ".ci" / "subjects"), str(tmp_path / "message")]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == status
