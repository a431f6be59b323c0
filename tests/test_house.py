"""The architecture's rules: imports between rooms, file lengths, first docstrings, and banned content."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pelton"
# not those that run on GPUs
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "src" not in p.relative_to(PACKAGE).parts)
ALL_FILES = sorted(
    p
    for d in ("src", "tests", "benchmarks", "clients", "docs", "examples", ".ci")
    for p in (ROOT / d).rglob("*")
    if p.suffix in (".py", ".c", ".h", ".md", "")
    and p.is_file()
    and not any(part.startswith(".") for part in p.relative_to(ROOT / d).parts)
)
LONGEST, WIDEST = 400, 120  # lines of a file, columns of a line

# room → the rooms right below it; what is below these is below it, too.
BELOW = {
    "ground": (),
    "preprocessing": ("ground",),
    "system": ("ground",),
    "ir": ("ground",),
    "ops": ("ir",),
    "network": ("ops",),
    "plugins": ("network",),
    "importers": ("plugins", "system"),
    "exporters": ("importers", "passes"),
    "passes": ("ops",),
    "reference": ("plugins",),
    "native": ("ground",),
    "engine": ("system", "native"),
    "partition": ("ops", "engine"),
    "plan": ("ops", "engine"),
    "codegen": ("plan", "plugins"),
    "explorer": ("engine",),
    "bundle": ("engine",),
    "web": ("bundle", "codegen"),
    "backends": ("engine",),
    "runtime": ("backends",),
    "tuning": ("codegen", "backends"),
    "compiler": ("preprocessing", "importers", "partition", "passes", "tuning", "runtime"),
    "public": ("ground",),
    "calibration": ("compiler",),
    "quantize": ("calibration",),
    "builder": ("quantize",),
    "diagnose": ("builder", "reference"),
    "compression": ("builder", "exporters"),
    "compat": ("runtime", "public"),
    "language": ("builder", "compat"),
    "serve": ("explorer", "public", "language"),
    **dict.fromkeys(("ray", "spark"), ("compat",)),
    "cli": ("diagnose", "compression", "language", "explorer", "bundle", "web", "serve"),
}
# Doors upward that are opened inside of functions alone.
LAZY = {
    ("ground", "preprocessing"),
    ("runtime", "reference"),
    ("runtime", "compiler"),
    ("reference", "importers"),
    ("backends", "reference"),
    ("compat", "builder"),
    ("compat", "plugins"),
    *(("public", room) for room in BELOW),
}
# Modules that call `import_module` for a name in a table or of a package: importing it is what they are for.
HIDDEN = (
    "pelton.cli.peer",
    "pelton.codegen.triton.workers",
    "pelton.engine.file",
    "pelton.ops.expressions",
    "pelton.onnxruntime.finder",
)
GROUND = (
    *("build_options", "option_checks", "options", "variables"),
    *("config", "errors"),
    *("html", "logs"),
    "metrics",
    "progress",
    "record",
    "dtypes",
    "targets",
    "version",
)  # files
# as users import them
COMPAT = ("onnxruntime", "onnx_backend")
# what runs where only numpy is installed
RUNTIME = (
    "ground",
    "preprocessing",
    "system",
    "native",
    "engine",
    "backends",
    "runtime",
    "compat",
    "explorer",
    "bundle",
    "cli",
    "public",
)
# what these may import at the head of a file
FOREIGN = {"numpy"}


def module(path: Path) -> str:
    """src/pelton/ir/dims.py → pelton.ir.dims"""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(p): p for p in FILES}


def room_of(name: str) -> str:
    """The room of a module, by its name."""
    first = name.split(".")[1] if "." in name else "__init__"
    for room, files in (
        ("ground", GROUND),
        ("compat", COMPAT),
        ("public", ("__init__", "editing")),
        ("cli", ("__main__",)),
    ):
        if first in files:
            return room
    return first


def below(room: str) -> set[str]:
    """All rooms that a room may import from."""
    return {room}.union(*map(below, BELOW[room])) if room in BELOW else {room}


def imports(path: Path, typing: bool = False) -> Iterator[tuple[str, bool]]:
    """(module, whether it is imported inside a function) for every import that happens when the program runs; and those
    for type checkers."""
    package = ["pelton", *path.relative_to(PACKAGE).parts[:-1]]

    def named(argument: ast.AST) -> list[str]:
        """The modules that `import_module` may be called for: a text, or all modules that begin as it does."""
        parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
        first = parts[0].value if isinstance(parts[0], ast.Constant) else ""
        if len(parts) == 1:
            return [first] if first else []
        return [name for name in MODULES if first.startswith("pelton.") and name.startswith(first)]

    def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test) and not typing:
                yield from (found for other in child.orelse for found in walk(ast.Module([other], []), lazy))
            elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("import_module") and child.args:
                yield from ((name, lazy) for name in named(child.args[0]))
                yield from walk(child, lazy)
            elif isinstance(child, ast.Import):
                yield from ((a.name, lazy) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                source = ".".join([*base, *([child.module] if child.module else [])])
                whole = [f"{source}.{a.name}" for a in child.names]
                yield from ((name if name in MODULES else source, lazy) for name in whole)
            else:
                yield from walk(child, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    return walk(ast.parse(path.read_text()), False)


def breaks(path: Path) -> Iterator[str]:
    """A line for every import of a file that the law forbids."""
    room = room_of(module(path))
    for name, lazy in imports(path):
        other = room_of(name)
        if name.split(".")[0] == "pelton" and other not in below(room) and not (lazy and (room, other) in LAZY):
            yield f"{module(path)} imports {name}{' inside a function' if lazy else ''}"


def circles() -> Iterator[str]:
    """A line for every set of files that import each other, one way or another."""
    to = {
        name: {other for other, _ in imports(path, typing=True) if other in MODULES and other != name}
        for name, path in MODULES.items()
    }
    to["pelton"] = set()  # it imports when asked for a name
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[tuple[str, ...]]:  # Tarjan 1972
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(to[name]):
            if other not in index:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            found = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(found) > 1:
                yield tuple(sorted(found))

    for name in sorted(to):
        if name not in index:
            yield from (f"circle: {' '.join(found)}" for found in visit(name))


def test_the_law_holds():
    broken = sorted({*(line for path in FILES for line in breaks(path)), *circles()})
    assert not broken, "\n".join(broken)


def test_every_room_is_in_the_table():
    assert {room_of(name) for name in MODULES} <= set(BELOW)


@pytest.mark.parametrize(
    "path", [p for p in FILES if room_of(module(p)) in RUNTIME], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_what_runs_engines_needs_numpy_alone(path):
    if module(path).startswith(("pelton.onnx_backend", "pelton.compat.torch")):
        return  # interfaces of other packages, which import these
    for name, lazy in imports(path):
        top = name.split(".")[0]
        known = top in sys.stdlib_module_names or top == "pelton" or top in FOREIGN
        assert lazy or known, f"{name} is not part of the runtime install"
        if top == "pelton":
            assert lazy or room_of(name) in RUNTIME, f"a program that needs no compiler must not load {name}"


def test_the_table_would_notice(tmp_path):
    """The reader of imports sees plain, relative, lazy and conditional ones, and leaves out those for type checkers."""
    text = (
        "import pelton.ops\nfrom ..ir import graph\nfrom .context import Context\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from pelton.plan import fuse\n"
        "def f():\n    from pelton import tuning\n    import pelton.reference.host\n"
        "    try:\n        import onnx\n    except ImportError:\n        pass\n"
        "    importlib.import_module('pelton.cli.demo')\n    import_module(f'pelton.calibration.s{x}')\n"
    )

    class Example(type(PACKAGE)):
        def read_text(self, *args, **kw):
            return text

    example = Example(PACKAGE / "runtime" / "example.py")
    found = set(imports(example))
    assert found == {
        ("pelton.ops", False),
        ("pelton.ir.graph", False),
        ("pelton.runtime.context", False),
        ("typing", False),
        ("pelton.tuning", True),
        ("pelton.reference.host", True),
        ("onnx", True),
        ("pelton.cli.demo", True),
        ("pelton.calibration.sources", True),
    }
    assert ("pelton.plan.fuse", False) in set(imports(example, typing=True))
    assert list(breaks(example)) == [
        "pelton.runtime.example imports pelton.ops",
        "pelton.runtime.example imports pelton.ir.graph",
        "pelton.runtime.example imports pelton.tuning inside a function",
        "pelton.runtime.example imports pelton.cli.demo inside a function",
        "pelton.runtime.example imports pelton.calibration.sources inside a function",
    ]


def test_modules_are_imported_by_names_that_the_law_reads():
    """`import_module` of a name from elsewhere hides a door: only these calls may."""
    hidden = {
        module(path)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and not isinstance(node.args[0], (ast.Constant, ast.JoinedStr))
    }
    assert hidden == set(HIDDEN)


def asks_for_names(text: str) -> list[int]:
    """The lines that decide something by the name of an op: comparisons, look-ups, beginnings."""

    def names(node: ast.AST) -> bool:
        return any(
            isinstance(n, ast.Attribute) and n.attr == "name" and ast.unparse(n.value).split(".")[-1] == "op"
            for n in ast.walk(node)
        )

    def anchors(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "anchors"

    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asks = any(map(names, sides)) and not any(map(anchors, sides))
        elif isinstance(node, ast.Subscript):
            asks = names(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asks = names(node.func.value) or node.func.attr == "get" and any(map(names, node.args))
        else:
            asks = False
        found += [node.lineno] if asks else []
    return sorted(found)


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if room_of(module(p)) != "ops" and p.parent.name != "templates"],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_what_an_op_is_says_the_op(path):
    """`node.op is slice_` where one op is meant, a fact of `Op` where several are. Templates may name anchors."""
    lines = asks_for_names(path.read_text())
    assert not lines, f"lines {lines} ask for the name of an op; compare the op itself, or declare a fact in ir/op.py"


def test_names_of_ops_would_be_noticed():
    asked = (
        "node.op.name == 'slice'",
        "n.op.name in MOVES",
        "'copy' != op.name",
        "PLACES.get(node.op.name)",
        "[n.op.name for n in nodes] != ['copy']",
        "TABLE[node.op.name]",
        "node.op.name.startswith('reduce_')",
        "(n.name, n.op.name) in alive",
    )
    assert [line for line in asked if asks_for_names(line) != [1]] == []
    fine = (
        "f'{node.op.name} is pointwise'",
        "node.op is slice_",
        "node.op in (iota, sizes)",
        "node.name == 'stem'",
        "node.op.name not in self.anchors",
        "Note(node.name or node.op.name)",
        "n.op == 'Gather'",
    )
    assert [line for line in fine if asks_for_names(line)] == []


@pytest.mark.parametrize(
    "path", [p for p in ALL_FILES if p.suffix in (".py", ".c", ".h")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_files_have_one_job_and_say_it_first(path):
    text = path.read_text()
    assert text.count("\n") <= LONGEST, f"{path.name} has {text.count(chr(10))} lines: it has more than one job"
    wide = [i for i, line in enumerate(text.splitlines(), 1) if len(line) > WIDEST]
    assert not wide, f"lines {wide} have more than {WIDEST} columns"
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
        first = said.splitlines()[0] if said else ""
        assert len(first) > 10 and len(said.split("\n\n")[0]) < 600, (
            f"{path.name} does not say in its first line what it is for"
        )
    else:
        assert re.match(r"\s*(//|/\*) ?\w", text), f"{path.name} does not say in its first line what it is for"


def test_no_name_of_a_class_twice():
    """The name of a class says which one it is."""
    where: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(module(path))
    twice = {name: modules for name, modules in where.items() if len(modules) > 1}
    assert not twice, f"classes of one name: {twice}"


@pytest.mark.parametrize("path", [p for p in ALL_FILES if p.suffix == ".py"], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_choice_within_a_choice(path):
    """A conditional expression chooses between two things; for more there are if statements, match and tables."""
    choices = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.IfExp)]
    nested = {n.lineno for n in choices for part in ast.walk(n) if part is not n and isinstance(part, ast.IfExp)}
    assert not nested, f"lines {sorted(nested)} nest conditional expressions"


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_paths_of_machines_and_no_unfinished_work(path):
    if path == Path(__file__):
        return
    text = path.read_text()
    for pattern in (
        r"/home/\w",
        r"/Users/\w",
        r"(?<![\w.}])/work/",
        r"(?<![\w.}\"'])/tmp/\w",
        r"\b(TODO|FIXME|XXX|HACK)\b",
    ):
        found = re.search(pattern, text)
        assert not found, f"{path.relative_to(ROOT)} has {found.group()!r}"
