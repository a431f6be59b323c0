"""Atomic accesses in the C sources of the runtime, with their memory orders as written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pelton import native

SOURCES = Path(native.PATH).parent
CALL = re.compile(r"\batomic_(\w+?)(_explicit)?\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
FUNCTION = re.compile(r"^[A-Za-z_][\w \*]*?(\w+)\([^;{]*\) \{", re.M)
OPERATIONS = {
    "load": "load",
    "store": "store",
    "exchange": "exchange",
    "compare_exchange_weak": "swap",
    "compare_exchange_strong": "swap",
    "fetch_add": "add",
    "fetch_sub": "sub",
    "fetch_and": "and",
}


@dataclass(frozen=True)
class AtomicAccess:
    """`site`: function, operation and variable, with a number if a function has several of the same. `failure`: the
    order of an exchange that fails."""

    file: str
    site: str
    order: str
    failure: str

    @property
    def function(self) -> str:
        return self.site.split()[0]


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def arguments(text: str, begin: int) -> list[str]:
    """The arguments of a call whose opening bracket is right before `begin`."""
    depth, parts, last = 1, list[str](), begin
    for i in range(begin, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if not depth or (depth == 1 and text[i] == ","):
            parts.append(text[last:i].strip())
            last = i + 1
        if not depth:
            break
    return parts


def accesses(path: Path) -> list[AtomicAccess]:
    text = COMMENT.sub(blank, path.read_text())
    functions = [(m.start(), m[1]) for m in FUNCTION.finditer(text)]
    found: list[AtomicAccess] = []
    for call in CALL.finditer(text):
        function = [name for begin, name in functions if begin < call.start()][-1]
        parts = arguments(text, call.end())
        variable = re.findall(r"\w+", re.sub(r"\[.*\]", "", parts[0]))[-1]
        orders = re.findall(r"memory_order_(\w+)", " ".join(parts)) if call[2] else ["seq_cst"]
        site = f"{function} {OPERATIONS[call[1]]} {variable}"
        same = sum(a.site.split()[:3] == site.split() for a in found)
        found.append(AtomicAccess(path.name, f"{site} {same + 1}" if same else site, orders[0], orders[-1]))
    return found


def all_accesses() -> list[AtomicAccess]:
    return [access for path in sorted(SOURCES.rglob("*.[ch]")) for access in accesses(path)]


def atomic_variables() -> set[tuple[str, str]]:
    """(file, name) of variables declared atomic."""
    declared = re.compile(r"_Atomic(?: \w+|\([\w \*]+\)) \*?(\w+)(?:\[[^]]*\])?[;,)=]|_Atomic(?: \w+) (\w+) ?=")
    return {
        (path.name, match[1] or match[2])
        for path in sorted(SOURCES.rglob("*.[ch]"))
        for match in declared.finditer(COMMENT.sub(blank, path.read_text()))
    }
