"""Bounds for chat templates: the sizes of their values, and how much of their code runs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import FrameType
from typing import Any

LONGEST = 4_000_000  # characters of a prompt, and of any text on the way
STEPS = 2_000_000  # lines of a template's code
SECONDS = 10.0
WIDEST = 100_000  # a number among the arguments of a filter or a method: a width, a count
DIGITS = re.compile(r"\d{6,}")  # a width in a format
FORMATS = ("format", "format_map", "do_format", "strftime")
REPLACEMENTS = ("replace", "do_replace")
TOO_LONG = f"makes a value of more than {LONGEST} characters"


class TemplateLimit(Exception):
    """A template computes too much."""


def to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The filter `tojson` as transformers defines it."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def joined(parts: Iterable[str]) -> str:
    """Joins texts. Raises TemplateLimit beyond the limit."""
    texts, size = list[str](), 0
    for part in parts:
        size += len(part)
        if size > LONGEST:
            raise TemplateLimit(TOO_LONG)
        texts.append(part)
    return "".join(texts)


def limited(render: Callable[[], str]) -> str:
    """Calls a function whose Python code may run so many lines, for so long, in this thread."""
    steps, end, before = 0, time.monotonic() + SECONDS, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename == __file__:
            return None
        steps += 1
        if steps > STEPS or not steps % 1024 and time.monotonic() > end:
            raise TemplateLimit(f"runs for more than {STEPS} steps or {SECONDS:g} seconds")
        return trace

    sys.settrace(trace)
    try:
        return render()
    finally:
        sys.settrace(before)


def bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of a template whose arguments and results have bounds."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        check_sizes(function, args, named)
        return checked(function(*args, **named))

    return call


def checked(result: Any) -> Any:
    """Returns a value. Raises TemplateLimit if it is large."""
    if isinstance(result, (str, list, tuple, dict)) and weight(result) > LONGEST:
        raise TemplateLimit(TOO_LONG)
    return result


def check_sizes(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raises TemplateLimit for arguments that make large texts: widths, counts, formats, replacements, nested lists."""
    name, method = getattr(function, "__name__", ""), getattr(function, "__wrapped__", function)
    owner = getattr(method, "__self__", None)
    values = [owner, *args, *named.values()] if isinstance(owner, (str, list, dict)) else [*args, *named.values()]
    total = sum(map(weight, values))
    texts = [v for v in values if isinstance(v, str)]
    if name in FORMATS and texts:
        total = total * (1 + texts[0].count("{") + texts[0].count("%")) if total > len(texts[0]) else total
        total = LONGEST + 1 if DIGITS.search(" ".join(texts)) else total
    if name in REPLACEMENTS and len(texts) > 2:
        total += (texts[0].count(texts[1]) or 1) * len(texts[2])
    if total > LONGEST or any(isinstance(v, int) and abs(v) > WIDEST for v in values):
        raise TemplateLimit(TOO_LONG)


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raises TemplateLimit for operands of + * ** % whose result is large."""
    size = weight(left) + weight(right) if operator in "+%" else 0
    if operator == "*":
        for text, count in ((left, right), (right, left)):
            if isinstance(text, (str, list, tuple)) and isinstance(count, int):
                size = weight(text) * count
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        size = abs(left).bit_length() * (abs(right) if operator == "**" else 1)
    if operator == "%" and isinstance(left, str):
        size *= 1 + left.count("%")
        widths = right if isinstance(right, tuple) else (right,)
        if DIGITS.search(left) or any(isinstance(v, int) and abs(v) > WIDEST for v in widths) and "*" in left:
            size = LONGEST + 1
    if size > LONGEST:
        raise TemplateLimit(TOO_LONG)


def weight(value: Any) -> int:
    """Returns the characters and elements of a value, counted up to a limit: a list may hold itself many times."""
    if isinstance(value, str):
        return len(value)
    total, rest = 0, [value]
    while rest and total <= LONGEST:
        item = rest.pop()
        total += len(item) if isinstance(item, str) else 1
        if isinstance(item, dict):  # Mapping would call Python code, which counts as a step of the template
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            rest += item
    return total
