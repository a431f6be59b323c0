"""Routes: the commands that lead from a format to a place where the model runs, limits and alternatives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, near
from .machines import MACHINES
from .programs import APPS, SERVERS
from .sources import SOURCES, ModelSource, RouteStep
from .target import DeployTarget

__all__ = ["SOURCES", "TARGETS", "Directions", "directions", "known_names", "named"]
TARGETS = (*MACHINES, *APPS, *SERVERS)
PLACEHOLDERS = ("x=1x3x224x224", "samples.npz")


@dataclass(frozen=True)
class Directions:
    """The way from a source to a target. possible: False if Pelton does not lead there. steps: in order; limits:
    sentences; instead: other projects, with the command that writes their file; pages: of the documentation."""

    source: str
    target: str
    possible: bool
    steps: tuple[RouteStep, ...]
    tried: str
    limits: tuple[str, ...]
    instead: tuple[RouteStep, ...]
    pages: tuple[str, ...]

    def placeholders(self) -> tuple[str, ...]:
        """Returns what the user replaces in the command lines."""
        return tuple(word for word in PLACEHOLDERS if any(word in step.line for step in self.steps))

    def json(self) -> dict[str, Any]:
        """Returns the data of `pelton advise --from --to --json`."""
        return {
            "from": self.source,
            "to": self.target,
            "possible": self.possible,
            "steps": [{"line": s.line, "why": s.why} for s in self.steps],
            "tried": self.tried,
            "limits": list(self.limits),
            "instead": [{"line": s.line, "why": s.why} for s in self.instead],
            "pages": list(self.pages),
        }


def directions(source: str, target: str) -> Directions:
    """Returns the way between two names or aliases. Raises InputError with the names that are known."""
    start, place = named(source, SOURCES, "--from"), named(target, TARGETS, "--to")
    steps = list[RouteStep]()
    if start.language:
        steps += [filled(s, start.language, "") for s in place.language]
    if start.model and place.steps:
        steps += [*start.first, *(filled(s, start.model, start.flags) for s in place.steps)]
    limits = list(start.limits)
    if start.language and place.steps and not place.language:
        limits.append("Language models do not go there: their decoders need Python or C on a CPU.")
    if steps or not place.steps:
        limits += place.limits
    return Directions(
        start.title,
        place.title,
        bool(steps),
        tuple(steps),
        place.tried if steps else "",
        tuple(limits),
        tuple(filled(s, start.model, start.flags) if start.model else RouteStep("", s.why) for s in place.instead),
        tuple(dict.fromkeys((*place.pages, start.page))),
    )


def filled(step: RouteStep, model: str, flags: str) -> RouteStep:
    """Returns a step with the source's model, and its options at the end of the command that reads it."""
    if "{model}" not in step.line:
        return step
    return RouteStep(step.line.replace("{model}", model) + flags, step.why)


def named(name: str, table: Iterable[ModelSource] | Iterable[DeployTarget], flag: str) -> Any:
    """Returns the entry of a name or alias, in any case. Raises InputError with all names and the nearest."""
    wanted = name.strip().lower().replace("_", "-")
    words = {word: entry for entry in table for word in (entry.name, *entry.aliases)}
    if wanted not in words:
        raise InputError(f"{flag} {name}: unknown{near(wanted, words)}; known: {', '.join(known_names(table))}")
    return words[wanted]


def known_names(table: Iterable[ModelSource] | Iterable[DeployTarget]) -> list[str]:
    """Returns the names of a table, without aliases."""
    return [entry.name for entry in table]
