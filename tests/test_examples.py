"""The examples: each is short and on the page; those without requirements print the page's output; notebooks run."""

import ast
import json
import os
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
CHECK = runpy.run_path(str(FOLDER / "check.py"))
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
LONGEST = 59
CHEAP = {"classify.py": "PIL", "threads.py": "numpy", "plugin.py": "onnx"}  # what they need; `make examples` runs all


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch, kernel_cache):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    monkeypatch.setattr(sys, "argv", ["example"])


@pytest.mark.parametrize("path", CHECK["EXAMPLES"], ids=lambda p: p.name)
def test_each_is_short_and_says_how_it_is_run(path):
    text = path.read_text(encoding="utf-8")
    said = ast.get_docstring(compile_tree(text, path))
    assert text.count("\n") <= LONGEST
    assert f"python examples/{path.name}" in said and ("pip install 'pelton[" in said or "pelton[demo]" in said)
    assert f"[{path.name}](#{path.name.replace('.', '')})" in PAGE
    assert path.name in CHECK["OF_USERS"] or CHECK["printed"](PAGE)[path.name].strip()


def compile_tree(text, path):
    compile(text, path, "exec")
    return ast.parse(text)


def test_the_page_names_examples_that_there_are():
    names = {p.name for p in CHECK["EXAMPLES"]}
    assert set(CHECK["printed"](PAGE)) == names - set(CHECK["OF_USERS"])


@pytest.mark.parametrize("name", CHEAP)
def test_what_they_print_is_on_the_page(name, capsys, own_plugins):
    pytest.importorskip(CHEAP[name])
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert CHECK["differences"](CHECK["printed"](PAGE)[name], capsys.readouterr().out) == []


@pytest.mark.parametrize("path", CHECK["NOTEBOOKS"], ids=lambda p: p.stem)
def test_notebooks_run(path, capsys):
    """Their cells of code, one after the other; what they gave when they were written is not kept."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert all(not c.get("outputs") and c.get("execution_count") is None for c in cells)
    assert len({c["id"] for c in cells}) == len(cells)
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert capsys.readouterr().out.strip() and set(os.listdir()) <= {"quickstart.pelton"}


def test_there_are_as_many_as_were_promised():
    assert len(CHECK["EXAMPLES"]) == 13 and [p.stem for p in CHECK["NOTEBOOKS"]] == ["compare", "profile", "quickstart"]


@pytest.mark.parametrize(
    "want, got, same",
    [
        ("cat 0.63, in 2.1 ms", "cat  0.64, in 17 ms", True),
        ("cat 0.63", "cat 0.65", False),
        ("cat 0.63", "dog 0.63", False),
        ("0.5 ms", "0.5 µs", False),
        ("0.5 ms", "0.5", False),
        ("[10, -3] of 5", "[11, -3] of 5", True),
        ("[10, -3] of 5", "[10, 3] of 5", False),
        ("a 1\nb 2", "a 1", False),
        ("right: True", "right: False", False),
        ("1.5 s", "7.5 s", False),
    ],
)
def test_what_counts_as_the_same(want, got, same):
    assert (CHECK["differences"](want, got) == []) == same
