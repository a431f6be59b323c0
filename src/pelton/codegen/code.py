"""Generated text in which sizes are still values: how they are spelled is known when a kernel's text is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from pelton.ir.dims import Dim, Size


@dataclass(frozen=True)
class Code:
    """Text and sizes in turn. It has no text of its own: `render` makes it, an f-string raises TypeError."""

    parts: tuple[str | Size, ...]

    def __add__(self, other: Text) -> Code:
        return Code((*self.parts, *_parts(other)))

    def __radd__(self, other: str) -> Code:
        return Code((other, *self.parts))

    def render(self, spell: Callable[[Size], str]) -> str:
        """The text, with every size as `spell` gives it; asked in the order in which they stand."""
        return "".join(part if isinstance(part, str) else spell(part) for part in self.parts)

    def __format__(self, _: str = "") -> NoReturn:
        raise TypeError("code with sizes in it is no text yet: `code` puts it into more, `render` makes text of it")

    def __str__(self) -> NoReturn:
        self.__format__()


Text = str | Code


def code(form: str, *given: Text | Size) -> Code:
    """A form with what is given in place of each `{}`: text as it stands, sizes as sizes. All other braces stand for
    themselves; ValueError where there are more or fewer places."""
    first, *rest = form.split("{}")
    if len(rest) != len(given):
        raise ValueError(f"{len(given)} things for the {len(rest)} places of {form!r}")
    parts: list[str | Size] = [first]
    for thing, text in zip(given, rest):
        parts += [*_parts(thing), text]
    return Code(tuple(p for p in parts if p != "" or not isinstance(p, str)))


def join(between: str, given: Iterable[Text | Size]) -> Code:
    """What is given, one after the other, with text between them."""
    given = list(given)
    return code(between.join(["{}"] * len(given)), *given)


def is_dynamic(text: Text) -> bool:
    """Whether a run decides a size in it."""
    return isinstance(text, Code) and any(isinstance(part, Dim) for part in text.parts)


def _parts(thing: Text | Size) -> tuple[str | Size, ...]:
    return thing.parts if isinstance(thing, Code) else (thing,)
