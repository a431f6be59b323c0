"""How Sphinx makes the site (`make docs`).

The root of the sources is the root of the repository, so that links are the same on the site and in the repository."""

import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import pelton  # noqa: E402

project, author, release = "Pelton", "The Pelton developers", pelton.__version__
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["docs/**", "examples/**", "benchmarks/results/**", "benchmarks/*/results.md"]
suppress_warnings = ["myst.header"]  # pages that others include begin with a heading of the second level
include_patterns += ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
exclude_patterns = [".*", "build", "src", "tests", "clients"]

myst_heading_anchors = 4  # the names of GitHub; links to them are checked
default_role = "code"  # docstrings write `name`
smartquotes = False
maximum_signature_line_length = 100
autodoc_member_order = "bysource"
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"Pelton {release}"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["site"]  # index.html, which leads to docs/index.html

# `name: text` or `name(x): text`, where a line of a docstring begins
ITEM = re.compile(r"^(\w+(?:\([^)]*\))?(?:(?: and |, )\w+\([^)]*\))?): (?=\S)")


def parameters(thing: object) -> list[str]:
    try:
        return list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return []


def escape(text: str) -> str:
    """A text in which only what is between backticks is marked."""
    parts = text.split("`")
    parts[::2] = (re.sub(r"[*|]", r"\\\g<0>", part) for part in parts[::2])
    parts[2::2] = (re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2])  # of "`Step`s", the s is no part
    return "`".join(parts)


def pieces(paragraph: str, names: list[str]) -> list[tuple[str, str]]:
    """The texts of a paragraph, each with the name that it explains, or "".

    Lines after the first of an explanation are indented; without indentation, the names separate them."""
    lines, found = paragraph.splitlines(), [("", "")]
    if any(line.startswith(" ") for line in lines):
        for line in lines:
            if item := ITEM.match(line):
                found.append((item[1], line[item.end() :]))
            elif line.startswith(" ") or not found[-1][0]:
                found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}".strip()
            else:
                found.append(("", line))
        return found
    start = re.compile(rf"(?:^|(?<=[.:;] ))({'|'.join(map(re.escape, names)) or '(?!)'}): ")
    text, *after = re.split(r"(?<=[.\w]) (?=Raises [A-Z])", " ".join(lines), maxsplit=1)
    lead, *rest = start.split(text)
    return [("", lead), *zip(rest[::2], rest[1::2]), *(("", text) for text in after)]


def explain(app, what, name, thing, options, lines: list[str]) -> None:
    """Writes a docstring of the house as Sphinx reads it: explanations of names as fields, code as code."""
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip()):
        if paragraph.startswith(">>>"):
            out += [*paragraph.splitlines(), ""]
        elif all(line.startswith("    ") for line in paragraph.splitlines()):
            out += [".. code-block:: python", "", *paragraph.splitlines(), ""]
        else:
            for of, text in pieces(paragraph, parameters(thing)):
                if of:
                    out.append(f":param {escape(of)}: {escape(text)}")
                elif text:
                    out += ["", escape(text), ""]
            out.append("")
    lines[:] = out


def setup(app) -> None:
    app.connect("autodoc-process-docstring", explain)
