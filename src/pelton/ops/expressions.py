"""Regular expressions of models, of which searching takes no longer than anybody waits."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

_regex: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


def compiled_safely(expression: str) -> re.Pattern:
    """ValueError for an expression that Python does not know, or whose search may take longer than anybody waits:
    repetitions of repetitions, choices that are repeated, references back."""
    try:
        parsed, found = _regex.parse(expression), re.compile(expression)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the regular expression {expression!r:.100} cannot be read: {e}") from None
    if _may_explode(parsed, False):
        raise ValueError(
            f"the regular expression {expression!r:.100} repeats what is itself repeated, or a choice; searching may"
            " take longer than anybody waits, so it is not run; write it without"
        )
    return found


def _may_explode(parsed: Any, repeated: bool) -> bool:
    for what, argument in parsed:
        name = str(what)
        if name in ("GROUPREF", "GROUPREF_EXISTS") or repeated and name in ("BRANCH", "MAX_REPEAT", "MIN_REPEAT"):
            return True
        again = repeated or name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[1] > 1
        if any(_may_explode(inner, again) for inner in _inside(argument)):
            return True
    return False


def _inside(argument: Any) -> list[Any]:
    """The expressions within an argument of a parsed expression."""
    if isinstance(argument, _regex.SubPattern):
        return [argument]
    return [inner for part in argument for inner in _inside(part)] if isinstance(argument, (tuple, list)) else []
