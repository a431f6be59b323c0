"""What a model of speech begins its answers with: tokens of language and task, and those that it must not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pelton.errors import InputError


@dataclass(frozen=True)
class SpeechRules:
    """languages: such as {"en": 50259}; tasks: such as {"transcribe": 50359}; both empty for models of one language.
    begin: tokens behind the start of an answer, of models without these. silent: the token that leaves times out, None
    without one. suppress: tokens that no answer has, suppress_first: that none begins with."""

    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    begin: tuple[int, ...] = ()
    silent: int | None = None
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()

    def language(self, name: str) -> int:
        """Returns the token of a language. Raises InputError for one that the model does not know."""
        return _of(self.languages, "language", name)

    def task(self, name: str) -> int:
        """Returns the token of a task. Raises InputError for one that the model does not know."""
        return _of(self.tasks, "task", name)


def _of(known: Mapping[str, int], what: str, name: str) -> int:
    if name in known:
        return known[name]
    if known:
        raise InputError(f"this model has no {what} {name!r}, only {', '.join(known)}")
    raise InputError(f"this model has no tokens for a {what}: leave it out")
