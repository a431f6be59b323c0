"""Options of the command line for fields of `pelton.Options`, in messages."""

from __future__ import annotations

import argparse
import re
import shlex
from functools import lru_cache

from .arguments import add_build, add_hint, add_threads


@lru_cache(maxsize=1)
def _flags() -> dict[str, tuple[str, str]]:
    """Returns fields of pelton.Options → their option and its value on the command line: --shapes, SIZES."""
    command = argparse.ArgumentParser()
    add_threads(command)
    add_hint(command)
    add_build(command)
    return {
        a.dest: (a.option_strings[-1], str(a.metavar).rpartition("=")[2]) for a in command._actions if a.dest != "help"
    }


def flag(option: str) -> str:
    """Returns the option of a field of pelton.Options: --timing-cache for timing_cache."""
    return _flags()[option][0]


def translate_options(message: str) -> str:
    """Rewrites a message of the library with options of the command line: `shapes={'x': ...}` becomes `--shapes
    x=SIZES`, and `shapes=` becomes `--shapes`."""

    def pairs(found: re.Match[str]) -> str:
        name, value = _flags()[found[1]]
        inner = re.findall(r"'([^']*)': (\.\.\.|None)(?:, |$)", found[2])
        return " ".join(f"{name} {shlex.quote(of + '=' + ('none' if what == 'None' else value))}" for of, what in inner)

    names = "|".join(_flags())
    message = re.sub(rf"\b({names})=\{{((?:'[^']*': (?:\.\.\.|None)(?:, )?)+)\}}", pairs, message)
    message = re.sub(
        rf"\b(?:({names})=(?![\w{{(])|Options\.({names})\b)", lambda found: flag(found[1] or found[2]), message
    )
    return re.sub(rf"^({names})(?= names | is )", lambda found: flag(found[1]), message)
