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
        if name not in self.languages:
            known = ", ".join(self.languages)
            raise InputError(
                f"this model has no language {name!r}, only {known}" if known else self._single("language")
            )
        return self.languages[name]

    def task(self, name: str) -> int:
        """Returns the token of a task. Raises InputError for one that the model does not know."""
        if name not in self.tasks:
            known = ", ".join(self.tasks)
            raise InputError(f"this model has no task {name!r}, only {known}" if known else self._single("task"))
        return self.tasks[name]

    def _single(self, what: str) -> str:
        return f"this model has one language, and transcribes it: leave out {what}"
