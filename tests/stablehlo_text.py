"""Reads the text of StableHLO modules: every value is defined before its uses, and has the type that these name."""

from __future__ import annotations

import re

import numpy as np

TYPE = r"tensor<[^<>]*(?:<[^<>]*>)?>"
SIGNATURE = re.compile(rf" : \(((?:{TYPE}(?:, )?)*)\) -> (\(?(?:{TYPE}(?:, )?)*\)?)(?: loc\(\"(.*)\"\))?$")
OPERATION = re.compile(r'^(?:(%\w+)(?::(\d+))? = )?"(\w+\.\w+)"\(([^()]*)\)')
WIDTHS = {"bf16": 2, "i1": 1} | {f"{u}i{n}": n // 8 for u in ("", "u") for n in (8, 16, 32, 64)}
WIDTHS |= {f"f{n}": n // 8 for n in (16, 32, 64)}


def types(text: str) -> list[str]:
    return re.findall(TYPE, text)


def operations(text: str) -> list[str]:
    """Checks a module, and returns the names of its operations in order; AssertionError names the line."""
    scopes: list[dict[str, str]] = [{}]
    pending: list[tuple[str | None, str | None, str]] = []  # operations with regions: name, count, operands
    names = []

    def define(name: str | None, count: str | None, results: list[str], line: str) -> None:
        if name is None:
            assert not results, line
        elif count is None:
            assert len(results) == 1, line
            scopes[-1][name] = results[0]
        else:
            assert len(results) == int(count), line
            scopes[-1].update((f"{name}#{i}", t) for i, t in enumerate(results))

    def check(operands: str, line: str) -> list[str]:
        match = SIGNATURE.search(line)
        assert match, f"no signature: {line}"
        expected = types(match[1])
        read = re.findall(r"%[\w#]+", operands)
        known = {k: v for scope in scopes for k, v in scope.items()}
        assert [known.get(name) for name in read] == expected, f"operands differ: {line}"
        return types(match[2])

    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            continue
        if line.startswith(("module", "func.func")):
            scopes.append({})
        if line.startswith("module"):
            continue
        if line.startswith(("func.func", "^bb0")):
            scopes[-1].update(re.findall(rf"(%\w+): ({TYPE})", line.partition("->")[0]))
            continue
        if line.startswith("}"):
            scopes.pop()
            if line.startswith("}, {"):
                scopes.append({})
            elif line != "}":
                name, count, operands = pending.pop()
                define(name, count, check(operands, line), line)
            continue
        match = OPERATION.match(line)
        assert match, f"not an operation: {line}"
        name, count, kind, operands = match.groups()
        names.append(kind.removeprefix("stablehlo."))
        if line.endswith("({"):
            pending.append((name, count, operands))
            scopes.append({})
            continue
        results = check(operands, line)
        if kind == "stablehlo.constant":
            check_literal(line, results[0])
        define(name, count, results, line)
    assert not pending and len(scopes) == 1
    return names


def check_literal(line: str, type: str) -> None:
    """Hexadecimal literals have as many bytes as their type."""
    assert line.count(type) == 2, line
    if match := re.search(r'dense<"0x([0-9A-F]+)">', line):
        *sizes, kind = type.removeprefix("tensor<").removesuffix(">").split("x")
        width = WIDTHS.get(kind, 1)
        assert len(match[1]) in (2 * width, 2 * width * int(np.prod(list(map(int, sizes))))), line
