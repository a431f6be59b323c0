"""Moves files of the house to other rooms and rewrites who imports them: `python tools/move.py ROOM`. It goes when all have moved."""
from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pelton"
TEXTS = (".py", ".md", ".toml", ".sh", ".c", ".h", "")
WIDTH = 120

CPU = "attention blend conv conv_transpose coupled det few gather gemm matmul moves norm order pointwise pool reduce resize rnn roi rotary scatter softmax " \
      "strips trees library"
GPU = "attention conv im2col matmul moves order picks pointwise product recurrent roi rows window library"
READERS = "attention control conv fourier image index labels linear math ml norm quant reduce rnn shape svm texts train trees"

ROOMS: dict[str, dict[str, str]] = {
    "system": {"engine/whole.py": "system/files.py", "engine/rooms.py": "system/temporary.py", "engine/forks.py": "system/forks.py",
               "cache.py": "system/cache.py"},
    "ground": {"engine/record.py": "record.py", "pictures.py": "preprocessing.py"},
    "engine": {"engine/engine.py": "engine/model.py", "engine/script.py": "engine/program.py", "engine/script_file.py": "engine/program_file.py",
               "engine/check.py": "engine/validate.py", "engine/sheet.py": "engine/shape_plan.py"},
    "importers": {"importers/onnx.py": "importers/onnx/load.py",
                  **{f"importers/onnx_{n}.py": f"importers/onnx/{n}.py" for n in ("file", "foreign", "inputs", "names", "ports", "scope", "settle", "sizes")},
                  "importers/onnx_program.py": "importers/onnx/translate.py", "importers/onnx_reading.py": "importers/onnx/node.py",
                  **{f"importers/onnx_ops_{n}.py": f"importers/onnx/ops/{n}.py" for n in READERS.split()},
                  "importers/onnx_ops_microsoft.py": "importers/onnx/microsoft/attention.py",
                  "importers/onnx_ops_microsoft_quant.py": "importers/onnx/microsoft/quantization.py"},
    "partition": {"importers/onnx_script.py": "partition/partition.py", "importers/onnx_segment.py": "partition/segment.py",
                  "importers/onnx_hosted.py": "partition/host_steps.py", "importers/onnx_nested.py": "partition/control_flow.py"},
    "reference": {"host/__init__.py": "reference/__init__.py", "host/run.py": "reference/host.py", "ops/data.py": "reference/functions.py",
                  "ops/texts.py": "reference/texts.py"},
    "passes": {**{f"passes/{n}.py": f"passes/rewriting/{n}.py" for n in ("draft", "example", "pattern", "report")},
               "passes/rewrite.py": "passes/rewriting/rule.py",
               **{f"passes/{n}.py": f"passes/rules/{n}.py" for n in ("merge", "recognize", "rotary", "simplify", "views")},
               **{f"passes/{n}.py": f"passes/precision/{n}.py" for n in ("halves", "widen", "tf32")},
               "passes/keep.py": "passes/precision/lower_precision.py"},
    "plan": {"plan/ways.py": "plan/layout_search.py", "plan/demand.py": "plan/memory_limits.py"},
    "codegen": {"kernels/__init__.py": "codegen/__init__.py", "kernels/template.py": "codegen/template.py", "kernels/grid.py": "codegen/grid.py",
                "kernels/product.py": "codegen/product.py", "kernels/sweep.py": "codegen/sweep.py", "kernels/emit.py": "codegen/c/emit.py",
                "kernels/compile.py": "codegen/c/toolchain.py", "kernels/isa.py": "codegen/c/isa.py", "kernels/fold.py": "codegen/c/fold.py",
                **{f"kernels/{n}.py": f"codegen/c/templates/{n}.py" for n in CPU.split()},
                "kernels/c": "codegen/c/src"},
    "triton": {"kernels/triton/__init__.py": "codegen/triton/__init__.py", "kernels/triton/emit.py": "codegen/triton/emit.py",
               "kernels/triton/compile.py": "codegen/triton/toolchain.py", "kernels/triton/workers.py": "codegen/triton/workers.py",
               "kernels/triton/roofline.py": "codegen/triton/cost.py", "kernels/triton/chain.py": "codegen/triton/chain.py",
               **{f"kernels/triton/{n}.py": f"codegen/triton/templates/{n}.py" for n in GPU.split()},
               "kernels/triton/by_library.py": "codegen/vendor/template.py", "kernels/triton/cublaslt.py": "codegen/vendor/cublaslt.py",
               "kernels/triton/cudnn.py": "codegen/vendor/cudnn.py", "kernels/triton/files": "codegen/triton/src"},
    "tune": {"tune/cache.py": "tune/timing_cache.py", "tune/layouts.py": "tune/layout_costs.py"},
    "compiler": {"build.py": "compiler/build.py", "fitted.py": "compiler/specialize.py", "targets.py": "compiler/targets.py",
                 "plan/script.py": "compiler/assemble.py", "check.py": "compiler/accuracy.py"},
    "diagnose": {"explain.py": "diagnose/explain.py", "compare.py": "diagnose/compare.py", "coverage.py": "diagnose/support.py",
                 "operators.py": "diagnose/operators.py"},
    "runtime": {"runtime/script.py": "runtime/program.py"},
    "compat": {"session/__init__.py": "compat/session/__init__.py", "session/shelf.py": "compat/session/engine_cache.py",
               "session/kept.py": "compat/session/engines.py",
               **{f"session/{n}.py": f"compat/session/{n}.py" for n in ("changes", "devices", "entries", "estimate", "profile", "providers", "read", "session",
                                                                         "settings", "signature", "values")}},
}
# What is said of new packages in their first line.
SAYS = {"system": "What Pelton asks of the operating system: whole files, temporary folders, locks, forks, and the cache directory.",
        "importers/onnx": "ONNX models of every opset.",
        "importers/onnx/ops": "How each operator of ONNX reads in ops of ours, one file per family.",
        "importers/onnx/microsoft": "How the operators of com.microsoft read, which ONNX Runtime writes into models.",
        "partition": "Models of which the data decides what runs: cut into programs, and a program of segments that runs these.",
        "passes/rewriting": "The rewriting engine: patterns, rules as data, and reports of what they did and refused.",
        "passes/rules": "The rules, by what they are for.",
        "passes/precision": "In which element types a program is computed and kept.",
        "codegen/c": "Kernels for CPUs: C files that compile by themselves, and the templates that fit them to a region.",
        "codegen/c/templates": "The templates of kernels for CPUs.",
        "codegen/triton/templates": "The templates of kernels for NVIDIA GPUs.",
        "codegen/vendor": "What libraries of the vendor compute instead of kernels of ours.",
        "compiler": "From a model to an engine.",
        "diagnose": "What becomes of a model, why, and how exact it is.",
        "compat": "Interfaces of other runtimes over Pelton."}
# Names of the package that are functions, or loggers, too: left alone outside of imports.
PUBLIC = {"pelton.build", "pelton.check", "pelton.compare", "pelton.explain", "pelton.tune", "pelton.session", "pelton.cache", "pelton.runtime"}


def module(path: str) -> str:
    """engine/whole.py → pelton.engine.whole"""
    return "pelton." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Move:
    def __init__(self, room: str):
        self.files = {old: new for old, new in ROOMS[room].items()}
        self.modules = {module(old): module(new) for old, new in self.files.items() if old.endswith(".py")}
        self.aliased: set[tuple[str, str]] = set()
        self.before = {module(str(p.relative_to(PACKAGE))) for p in PACKAGE.rglob("*.py")}

    def run(self) -> None:
        texts = dict(self.sources())
        for old, new in self.files.items():
            self.make_package((PACKAGE / new).parent)
            subprocess.run(["git", "mv", str(PACKAGE / old), str(PACKAGE / new)], check=True, cwd=ROOT)
        for path, text in texts.items():
            home = self.now(path)
            changed = self.mentions(text)
            changed = self.imports(path, changed) if path.suffix == ".py" else changed
            changed = self.without_aliases(changed) if path.suffix == ".py" else changed
            if changed != text:
                home.write_text(changed)
        for path in sorted(PACKAGE.rglob("*"), reverse=True):
            if path.is_dir() and path.name != "__pycache__" and {p.name for p in path.iterdir()} <= {"__pycache__"}:
                subprocess.run(["rm", "-r", str(path)], check=True)

    def sources(self) -> Iterator[tuple[Path, str]]:
        for listed in subprocess.run(["git", "ls-files"], check=True, cwd=ROOT, capture_output=True, text=True).stdout.split("\n"):
            path = ROOT / listed
            if path.suffix in TEXTS and path.is_file() and path != Path(__file__) and "tests/data" not in listed:
                yield path, path.read_text()

    def now(self, path: Path) -> Path:
        """Where a file is after the move."""
        if not path.is_relative_to(PACKAGE):
            return path
        inside = str(path.relative_to(PACKAGE))
        for old, new in self.files.items():
            if inside == old or inside.startswith(old + "/"):
                return PACKAGE / (new + inside[len(old):])
        return path

    def make_package(self, folder: Path) -> None:
        while folder != PACKAGE and not folder.exists():
            folder.mkdir(parents=True)
            says = SAYS.get(str(folder.relative_to(PACKAGE)))
            if says and str(folder.relative_to(PACKAGE) / "__init__.py") not in self.files.values():
                (folder / "__init__.py").write_text(f'"""{says}"""\n')
                subprocess.run(["git", "add", str(folder / "__init__.py")], check=True, cwd=ROOT)
            folder = folder.parent
            if not (folder / "__init__.py").exists() and folder != PACKAGE:
                self.make_package_file(folder)

    def make_package_file(self, folder: Path) -> None:
        says = SAYS.get(str(folder.relative_to(PACKAGE)))
        if says and str(folder.relative_to(PACKAGE) / "__init__.py") not in self.files.values():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(f'"""{says}"""\n')
            subprocess.run(["git", "add", str(folder / "__init__.py")], check=True, cwd=ROOT)

    def moved(self, name: str) -> str:
        """A module's name after the move."""
        return self.modules.get(name, name)

    def package(self, path: Path) -> str | None:
        """The package that a file is in; None outside of the house."""
        if not path.is_relative_to(PACKAGE):
            return None
        return ".".join(["pelton", *path.relative_to(PACKAGE).parts[:-1]])

    def imports(self, path: Path, text: str) -> str:
        lines = text.split("\n")
        here, there = self.package(path), self.package(self.now(path))
        for node in sorted((n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)), key=lambda n: -n.lineno):
            new = self.statement(node, here, there)
            if new is None:
                continue
            first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
            if ";" in first or first[:node.col_offset].strip():
                print(f"by hand: {path}:{node.lineno} {first}")
                continue
            comment = last[node.end_col_offset:]
            indent = " " * node.col_offset
            lines[node.lineno - 1:node.end_lineno] = [line for s, says in zip(new, [comment] + [""] * len(new)) for line in self.wrapped(indent + s, says)]
        return "\n".join(lines)

    def without_aliases(self, text: str) -> str:
        """`from x import new as old` with the new name used throughout, where no other thing has it or the old one."""
        for new, old in sorted(self.aliased):
            tree = ast.parse(text)
            names = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in (new, old)]
            bound = {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)} | {n.id for n in names if not isinstance(n.ctx, ast.Load)}
            bound |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
            lines = text.split("\n")
            here = re.search(rf"^\s*(?:from .* import |    ).*\b{new} as {old}\b", text, re.M)
            imported = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names}
            if here is None or new in bound or old in bound or new in imported or any(n.id == new for n in names):
                continue
            spots = [(n.lineno - 1, n.col_offset) for n in names]
            if any(lines[i].encode()[c:c + len(old)].decode(errors="replace") != old for i, c in spots):
                continue
            for i, c in sorted(spots, reverse=True):
                raw = lines[i].encode()
                lines[i] = (raw[:c] + new.encode() + raw[c + len(old):]).decode()
            text = re.sub(rf"\b{new} as {old}\b", new, "\n".join(lines))
        return text

    def wrapped(self, statement: str, comment: str) -> list[str]:
        if len(statement) <= WIDTH or " import " not in statement:
            return [statement + comment]
        head, _, names = statement.partition(" import ")
        indent = " " * (len(head) - len(head.lstrip()))
        body = [line.replace("\0", " as ") for line in textwrap.wrap(names.replace(" as ", "\0"), WIDTH - 5 - len(indent))]
        return [f"{head} import ({comment}", *(f"{indent}    {line}" for line in body), f"{indent})"]

    def statement(self, node: ast.ImportFrom, here: str | None, there: str | None) -> list[str] | None:
        """The same after the move; None where it stays as it is."""
        if node.level:
            if here is None:
                return None
            base = here.split(".")[:len(here.split(".")) - node.level + 1]
            source = ".".join([*base, *([node.module] if node.module else [])])
        else:
            source = node.module or ""
        if source.split(".")[0] != "pelton":
            return None
        groups: dict[str, list[str]] = {}
        changed = here != there and node.level > 0
        for alias in node.names:
            whole = f"{source}.{alias.name}"
            if whole in self.before and not (source == "pelton" and alias.name in ("build", "tune")):
                new = self.moved(whole)
                package, _, leaf = new.rpartition(".")
                changed |= new != whole
                known = alias.asname or (alias.name if leaf != alias.name else None)
                if known and not alias.asname:
                    self.aliased.add((leaf, known))
                groups.setdefault(self.spelled(package, there), []).append(leaf + (f" as {known}" if known and known != leaf else ""))
            else:
                new = self.moved(source)
                changed |= new != source
                groups.setdefault(self.spelled(new, there), []).append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
        return [f"from {home} import {', '.join(names)}" for home, names in groups.items()] if changed else None

    def spelled(self, name: str, there: str | None) -> str:
        """A module as a file of a package imports it: relative where it lies beside the file."""
        if there is not None and name == there:
            return "."
        if there is not None and name.rpartition(".")[0] == there:
            return "." + name.rpartition(".")[2]
        return name

    def mentions(self, text: str) -> str:
        """Names of modules elsewhere in a text."""
        def line(of: str) -> str:
            if re.match(r"\s*from\s", of):
                return of
            is_import = bool(re.match(r"\s*import\s", of))
            return re.sub(r"\bpelton(?:\.[A-Za-z_]\w*)+", lambda found: self.renamed(found[0], is_import), of)
        return "\n".join(map(line, text.split("\n")))

    def renamed(self, name: str, is_import: bool) -> str:
        parts = name.split(".")
        for k in range(len(parts), 1, -1):
            prefix = ".".join(parts[:k])
            if prefix in self.before or prefix in self.modules.values():
                known = prefix in self.modules and (is_import or prefix not in PUBLIC) and prefix in self.before
                return ".".join([self.modules[prefix], *parts[k:]]) if known else name
        return name


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Move(name).run()
