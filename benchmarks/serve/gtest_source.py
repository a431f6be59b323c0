"""Reads tests of GoogleTest in C++: the tests of a file, their statements, and the tokens of these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

TOKEN = re.compile(
    r"""(?P<space>(?:\s+|//[^\n]*|/\*.*?\*/)+)
    | R"(?P<mark>[^()\\\s]*)\((?P<raw>.*?)\)(?P=mark)"
    | "(?P<string>(?:\\.|[^"\\\n])*)"
    | '(?P<letter>\\.|[^'\\\n])'
    | (?P<number>\d(?:[eE][-+]|[\w.])*)
    | (?P<name>(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)
    | (?P<symbol><<|->|::|&&|[-+*/&|!<>=.,;:?(){}\[\]])""",
    re.VERBOSE | re.DOTALL,
)
TEST = re.compile(
    r"^(?P<kind>TEST|TEST_F|TYPED_TEST)\((?P<suite>\w+),\s*(?P<name>\w+)\)\s*\{\n(?P<body>.*?)^\}", re.M | re.S
)
CONSTANT = re.compile(r'^constexpr \w+ (k\w+)(?:\[\])? = (?:"([^"]*)"|(-?\d+));', re.MULTILINE)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class Unreadable(ValueError):
    """A statement that this reader does not read. The text says which, and where."""


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Test:
    """A test of a file. line: of its first statement."""

    kind: str
    suite: str
    name: str
    body: str
    line: int


def read_tests(text: str) -> list[Test]:
    """Returns the tests of a file."""
    return [
        Test(m["kind"], m["suite"], m["name"], m["body"], text.count("\n", 0, m.start("body")) + 1)
        for m in TEST.finditer(text)
    ]


def constants(text: str) -> dict[str, Any]:
    """Returns the constants at the head of a file, texts and whole numbers."""
    return {m[1]: m[2] if m[3] is None else int(m[3]) for m in CONSTANT.finditer(text)}


def tokens(text: str, line: int = 1) -> list[Token]:
    """Splits text into tokens; literals have their values. Raises Unreadable at a character that starts none."""
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise Unreadable(f"line {line + text.count(chr(10), 0, at)}: {text[at : at + 40]!r}")
        kind = match.lastgroup or ""
        if match["raw"] is not None:
            kind, value = "string", match["raw"]
        elif kind in ("string", "letter"):
            kind, value = "string", _unescape(match[kind])
        else:
            value = match[kind]
        if kind != "space":
            found.append(Token(kind, value, line + text.count("\n", 0, at)))
        at = match.end()
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), text)


def statements(found: list[Token]) -> list[list[Token]]:
    """Splits tokens at the semicolons outside of brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in found:
        if token.kind == "symbol":
            depth += (token.text in "([{") - (token.text in ")]}")
            if token.text == ";" and not depth:
                parts.append([])
                continue
        parts[-1].append(token)
    return [p for p in parts if p]
