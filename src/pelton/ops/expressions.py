"""Compiles a model's regular expressions, and rejects those whose search may take exponential time."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

_regex: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


def compiled_safely(expression: str) -> re.Pattern:
    """Compiles an expression; raises ValueError if it is invalid, or its search may take exponential time.

    Such are nested repetitions, repeated alternatives and back references.
    """
    try:
        parsed, pattern = _regex.parse(expression), re.compile(expression)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the regular expression {expression!r:.100} cannot be read: {e}") from None
    if _may_explode(parsed, False):
        raise ValueError(
            f"the regular expression {expression!r:.100} has nested repetitions, repeated alternatives or back"
            " references, whose search may take exponential time; write it without these"
        )
    return pattern


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
    """Returns the expressions within an argument of a parsed expression."""
    if isinstance(argument, _regex.SubPattern):
        return [argument]
    return [inner for part in argument for inner in _inside(part)] if isinstance(argument, (tuple, list)) else []
