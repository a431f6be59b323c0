"""Generated text in which sizes are still values; `render` makes it text once the whole kernel is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from pelton.ir.dims import Dim, Size


@dataclass(frozen=True)
class Code:
    """Pieces of text and sizes. `render` makes them text; str() and f-strings raise TypeError."""

    parts: tuple[str | Size, ...]

    def __add__(self, other: Text) -> Code:
        return Code((*self.parts, *_parts(other)))

    def __radd__(self, other: str) -> Code:
        return Code((other, *self.parts))

    def render(self, spell: Callable[[Size], str]) -> str:
        """Returns the text; `spell` converts the sizes, from left to right."""
        return "".join(part if isinstance(part, str) else spell(part) for part in self.parts)

    def __format__(self, _: str = "") -> NoReturn:
        raise TypeError(
            "code that contains sizes is no text yet: insert it with `code`, or make text of it with `render`"
        )

    def __str__(self) -> NoReturn:
        self.__format__()


Text = str | Code


def code(form: str, *arguments: Text | Size) -> Code:
    """Returns the form with the arguments in place of each `{}`; other braces stay as they are.

    Raises ValueError if the numbers of arguments and of places differ.
    """
    first, *rest = form.split("{}")
    if len(rest) != len(arguments):
        raise ValueError(f"{form!r} has {len(rest)} places, got {len(arguments)} arguments")
    parts: list[str | Size] = [first]
    for argument, text in zip(arguments, rest):
        parts += [*_parts(argument), text]
    return Code(tuple(p for p in parts if p != "" or not isinstance(p, str)))


def join(between: str, given: Iterable[Text | Size]) -> Code:
    """Joins texts and sizes with a separator."""
    given = list(given)
    return code(between.join(["{}"] * len(given)), *given)


def is_dynamic(text: Text) -> bool:
    """True if the text contains a dynamic size."""
    return isinstance(text, Code) and any(isinstance(part, Dim) for part in text.parts)


def _parts(x: Text | Size) -> tuple[str | Size, ...]:
    return x.parts if isinstance(x, Code) else (x,)
