"""Prototxt files: the net of a text, and the line of each layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat

from google.protobuf import text_format

from pelton.errors import FormatError

from .schema import Message, message_class

LARGEST = 64 << 20  # bytes of a text; weights are in separate files
DEEPEST = 50  # nesting depth of messages
_TOKENS = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | \#[^\n]*
    | (?P<layer>\blayers?\b)(?=\s*:?\s*[{<]) | (?P<line>\n) | (?P<begin>[{<]) | (?P<end>[}>])
    """,
    re.VERBOSE,
)
_UNKNOWN = re.compile(r'has no field named "([^"]*)"')


@dataclass(frozen=True)
class Prototxt:
    """A net as its file describes it."""

    file: str
    net: Message  # NetParameter
    lines: dict[str, list[int]]  # the first lines of its fields `layer` and `layers`
    unknown: str = ""  # description of fields that the schema lacks

    def lines_of(self, field: str) -> Iterator[int]:
        """Yields the lines of the layers in a field; those of a list, `layer: [{…}, {…}]`, share its line."""
        lines = self.lines[field] or [1]
        return chain(lines, repeat(lines[-1]))


def parse(data: bytes, file: str) -> Prototxt:
    """Parses a prototxt; raises FormatError, with the line, for other text."""
    if len(data) > LARGEST:
        raise FormatError(f"{file}: a prototxt of {len(data)} bytes is too large; weights belong into a .caffemodel")
    text = data.decode("utf-8-sig", "replace")  # comments may have any encoding
    lines, net = _lines(text, file), message_class("NetParameter")()
    try:
        text_format.Parse(text, net)
        return Prototxt(file, net, lines)
    except text_format.ParseError as e:
        if not _UNKNOWN.search(str(e)):
            raise _error(file, e) from None
        unknown = f"{_place(file, e)}: no layer that is read has a field {_UNKNOWN.findall(str(e))[0]!r}"
    except RecursionError:
        raise FormatError(f"{file}: its messages are nested too deeply for a prototxt of Caffe") from None
    net.Clear()
    try:
        text_format.Parse(text, net, allow_unknown_field=True)
    except text_format.ParseError as e:
        raise _error(file, e) from None
    how = "it is ignored, with others of its kind; plugins read python_param.param_str instead"
    return Prototxt(file, net, lines, f"{unknown}; {how}")


def _lines(text: str, file: str) -> dict[str, list[int]]:
    lines: dict[str, list[int]] = {"layer": [], "layers": []}
    line, depth = 1, 0
    for token in _TOKENS.finditer(text):
        if token.lastgroup == "line":
            line += 1
        elif token.lastgroup == "layer" and depth == 0:
            lines[token.group()].append(line)
        elif token.lastgroup == "begin":
            depth += 1
        elif token.lastgroup == "end":
            depth -= 1
        if depth > DEEPEST:
            raise FormatError(f"{file}:{line}: messages are nested deeper than {DEEPEST} levels")
    return lines


def _place(file: str, e: text_format.ParseError) -> str:
    return file if e.GetLine() is None else f"{file}:{e.GetLine()}"


def _error(file: str, e: text_format.ParseError) -> FormatError:
    reason = re.sub(r"^[\d: ]*", "", str(e)).replace('Message type "caffe.', 'the message "')
    return FormatError(f"{_place(file, e)}: this is no prototxt that Caffe reads: {reason}")
