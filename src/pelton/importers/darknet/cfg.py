"""Configuration files of Darknet: sections of options, each with its line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pelton.errors import FormatError, ModelError

MAX_BYTES = 1 << 22  # bytes of a file; the largest known have 30 KB
MAX_SECTIONS = 4096
MAX_NUMBER = 1 << 20  # of any count: channels, pixels along an axis, units
NETWORK = ("net", "network")


@dataclass
class Section:
    """`[name]` and its options, name → (text, line). index: its number among the layers, -1 for the network itself.

    The methods that read options raise ModelError, with file and line, for invalid ones."""

    path: str
    name: str
    line: int
    index: int
    options: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name}_{self.index}"

    def refuse(self, reason: str, option: str = "") -> ModelError:
        """Builds the error to raise, located at an option or at the section."""
        line = self.options[option][1] if option in self.options else self.line
        return ModelError(f"{self.path}, line {line}: {reason} (layer {self.index}, [{self.name}])")

    def text(self, name: str, default: str = "") -> str:
        return self.options[name][0] if name in self.options else default

    def integer(self, name: str, default: int, minimum: int = 0, maximum: int = MAX_NUMBER) -> int:
        number = self.number(name, default)
        if number != int(number):
            raise self.refuse(f"{name} must be an integer, got {self.text(name)}", name)
        if not minimum <= number <= maximum:
            text = self.text(name) if name in self.options else f"none, which means {default}"
            raise self.refuse(f"{name} must be from {minimum} to {maximum}, got {text}", name)
        return int(number)

    def flag(self, name: str) -> bool:
        return self.number(name, 0) != 0

    def number(self, name: str, default: float) -> float:
        numbers = self.numbers(name, (default,))
        if len(numbers) != 1:
            raise self.refuse(f"{name} must be one number, got {self.text(name)}", name)
        return numbers[0]

    def numbers(self, name: str, default: Sequence[float] = ()) -> tuple[float, ...]:
        """Parses comma-separated numbers."""
        if name not in self.options:
            return tuple(default)
        texts = self.text(name).rstrip(",").split(",")
        numbers = tuple(float(t) for t in texts if _NUMBER.fullmatch(t))
        if len(numbers) < len(texts) or not all(abs(n) < 1e30 for n in numbers):
            raise self.refuse(f"{name} must be numbers, with commas between, got {self.text(name)!r}", name)
        return numbers

    def refuse_options(self, *names: str) -> None:
        """Raises ModelError if one of these options is on."""
        for name in names:
            if name in self.options and self.text(name) not in ("0", "0.0"):
                raise self.refuse(f"{name}={self.text(name)} is not supported; take it out, or train without", name)


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def parse(data: bytes, path: str) -> tuple[Section, list[Section], list[str]]:
    """Parses the network's own section and its layers' sections, with warnings; raises FormatError for syntax errors.

    As in Darknet, blanks are ignored, and the first of equal options counts.
    """
    if len(data) > MAX_BYTES or b"\0" in data:
        raise FormatError(f"{path} is no configuration of Darknet: it must be a text of at most {MAX_BYTES} bytes")
    sections: list[Section] = []
    warnings: list[str] = []
    for line, written in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = re.sub(r"\s", "", re.split("[#;]", written, maxsplit=1)[0])
        if text.startswith("["):
            if not re.fullmatch(r"\[\w+\]", text):
                raise FormatError(
                    f"{path}, line {line}: a section must be like [convolutional], got {_quoted(written)}"
                )
            sections.append(Section(path, text[1:-1], line, len(sections) - 1))
        elif text:
            name, equals, value = text.partition("=")
            if not sections or not equals or not name or not value:
                what = "an option must be like stride=1" if sections else "the first section must be [net]"
                raise FormatError(f"{path}, line {line}: {what}, got {_quoted(written)}")
            if name in sections[-1].options:
                first = sections[-1].options[name][1]
                warnings.append(f"{path}, line {line}: {name} is already set in line {first}, which has priority")
            sections[-1].options.setdefault(name, (value, line))
    if not sections or sections[0].name not in NETWORK:
        begins = f"[{sections[0].name}] in line {sections[0].line}" if sections else "nothing"
        raise FormatError(f"{path} is no configuration of Darknet: it must begin with [net], got {begins}")
    if not 2 <= len(sections) <= MAX_SECTIONS:
        raise ModelError(f"{path} must have from 1 to {MAX_SECTIONS - 1} layers, got {len(sections) - 1}")
    return sections[0], sections[1:], warnings


def is_configuration(head: bytes) -> bool:
    """True if a file that begins so is a configuration of Darknet."""
    for line in head.splitlines():
        text = re.sub(rb"\s", b"", line)
        if text and text[:1] not in b"#;":
            return text.startswith(tuple(f"[{name}]".encode() for name in NETWORK))
    return False


def _quoted(line: str) -> str:
    return repr(line.strip()[:60])
