"""The house: who imports whom, how long files are, what every file says first, and what has no place in it."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pelton"
FILES = sorted(PACKAGE.rglob("*.py"))
ALL_FILES = sorted(p for d in ("src", "tests", "benchmarks", "clients", "docs", "examples", ".ci") for p in (ROOT / d).rglob("*")
                   if p.suffix in (".py", ".c", ".h", ".md", "") and p.is_file() and not any(part.startswith(".") for part in p.relative_to(ROOT / d).parts))
LONGEST = 450

# room → the rooms it may import from, itself and `errors` aside. Files beside the rooms are rooms of their own.
MAY_IMPORT = {
    "errors": set(),
    "ir": {"ops"},                                # the meaning of a program is its ops' references; and texts name ops: both inside functions
    "ops": {"ir"},
    "importers": {"ir", "ops", "engine"},         # engine: scripts and ports, plain data
    "passes": {"ir", "ops"},
    "host": {"ir", "ops", "importers"},           # importers: inside a function, for nodes that are read when their data is there
    "plan": {"ir", "ops", "engine"},
    "kernels": {"ir", "ops", "plan", "engine", "backends", "cache"},     # backends: what the code of a CUDA engine is made of
    "tune": {"ir", "ops", "plan", "kernels", "engine", "backends"},
    "engine": set(),
    "backends": {"engine"},
    "runtime": {"engine", "backends", "host"},    # host: inside a function, for engines that have host steps
    "session": {"runtime", "engine", "backends", "options", "cache", "progress", "__init__",
                "importers", "build", "ops", "ir"},   # these four: inside functions, for models that it meets first
    "onnxruntime": {"session", "engine", "__init__"},
    "options": {"pictures"},
    "cache": {"engine"},
    "pictures": set(), "progress": set(),
    "check": {"*"}, "build": {"*"}, "targets": {"*"}, "compare": {"*"}, "explain": {"*"}, "coverage": {"*"}, "operators": {"*"}, "cli": {"*"},
    "fitted": {"build", "importers", "options", "runtime"},
    "onnx_backend": {"fitted", "options"}, "__main__": {"cli"},
    "__init__": {"build", "options", "runtime", "session"},
}
LAZY = {("ir", "ops"), ("runtime", "host"), ("host", "importers"), ("session", "importers"), ("session", "build"), ("session", "ops"),
        ("session", "ir"), ("options", "pictures"), ("__init__", "build"), ("__init__", "options"), ("__init__", "runtime")}
RUNTIME = ("errors", "engine", "backends", "runtime", "pictures", "cli", "__init__", "__main__", "options", "progress",
           "cache", "session", "onnxruntime")              # what runs where only numpy is installed
FOREIGN = {"numpy"}                               # packages that these may import at the head of a file


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, whether it is imported inside a function) for every import that happens when the program runs."""
    package = ["pelton", *path.relative_to(PACKAGE).parts[:-1]]

    def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from (found for other in child.orelse for found in walk(ast.Module([other], []), lazy))
            elif isinstance(child, ast.Import):
                yield from ((a.name, lazy) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[:len(package) - child.level + 1] if child.level else []
                module = ".".join([*base, *([child.module] if child.module else [])])
                if module == "pelton" or (child.level and not child.module):
                    yield from ((f"{module}.{a.name}", lazy) for a in child.names)
                else:
                    yield module, lazy
            else:
                yield from walk(child, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
    return walk(ast.parse(path.read_text()), False)


def crossings(path: Path) -> Iterator[tuple[str, bool]]:
    """(room, whether lazily) for every import from another room."""
    for module, lazy in imports(path):
        parts = module.split(".")
        if parts[0] == "pelton":
            room = parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"
            if room not in (room_of(path), "errors"):
                yield room, lazy


def test_every_room_is_in_the_table():
    assert {room_of(p) for p in FILES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    room = room_of(path)
    for other, lazy in crossings(path):
        assert other in MAY_IMPORT[room] or "*" in MAY_IMPORT[room], f"{room} may not import {other}"
        if (room, other) in LAZY:
            assert lazy, f"{room} imports {other} only where it needs it, inside a function"


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in RUNTIME], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_what_runs_engines_needs_numpy_alone(path):
    import sys
    for module, lazy in imports(path):
        top = module.split(".")[0]
        known = top in sys.stdlib_module_names or top == "pelton" or top in FOREIGN
        assert lazy or known, f"{module} is not part of the runtime install"
        if room_of(path) == "cli" and top == "pelton":
            assert lazy or module.split(".")[1] in (*RUNTIME, "pictures", "__version__"), f"a command that needs no compiler must not load {module}"


def test_the_table_would_notice(tmp_path):
    """The reader of imports sees plain, relative, lazy and conditional ones, and leaves out those for type checkers."""
    module = PACKAGE / "runtime" / "example.py"
    text = ("import pelton.ops\nfrom ..ir import graph\nfrom .context import Context\nfrom typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from pelton.plan import fuse\n"
            "def f():\n    from pelton import tune\n    try:\n        import onnx\n    except ImportError:\n        pass\n")

    class Example(type(module)):
        def read_text(self, *args, **kw):
            return text
    found = set(imports(Example(module)))
    assert found == {("pelton.ops", False), ("pelton.ir", False), ("pelton.runtime.context", False), ("typing", False), ("pelton.tune", True), ("onnx", True)}
    assert {r for r, _ in crossings(Example(module))} == {"ops", "ir", "tune"}


@pytest.mark.parametrize("path", [p for p in ALL_FILES if p.suffix in (".py", ".c", ".h")], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_have_one_job_and_say_it_first(path):
    text = path.read_text()
    assert text.count("\n") <= LONGEST, f"{path.name} has {text.count(chr(10))} lines: it has more than one job"
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
        first = said.splitlines()[0] if said else ""
        assert len(first) > 10 and len(said.split("\n\n")[0]) < 600, f"{path.name} does not say in its first line what it is for"
    else:
        assert re.match(r"\s*(//|/\*) ?\w", text), f"{path.name} does not say in its first line what it is for"


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_paths_of_machines_and_no_unfinished_work(path):
    if path == Path(__file__):
        return
    text = path.read_text()
    for pattern in (r"/home/\w", r"/Users/\w", r"(?<![\w.}])/work/", r"(?<![\w.}\"'])/tmp/\w", r"\b(TODO|FIXME|XXX|HACK)\b"):
        found = re.search(pattern, text)
        assert not found, f"{path.relative_to(ROOT)} has {found.group()!r}"
