"""Attributes of plugin operators: checks their names, and converts their values to the types of the defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.errors import InputError, near

from .op import REQUIRED, Op

MAX_TEXT = 1 << 16  # characters of an attribute: engines hold them as text
PLAIN = (bool, int, float, str)


def checked(name: str, given: Any, fields: Mapping[str, Any]) -> Any:
    """An attribute in the type of its default: ValueError where that would lose something."""
    default = fields[name]
    if given is None and default is None:
        return None
    value: Any = given.tolist() if isinstance(given, (np.ndarray, np.generic)) else given
    value = tuple(value) if isinstance(value, list) else value
    plain = all(isinstance(v, PLAIN) for v in (value if isinstance(value, tuple) else (value,)))
    if not plain or isinstance(value, str) and len(value) > MAX_TEXT:
        raise ValueError(f"attribute {name} must be a bool, a number, a text or a tuple of these, got {given!r:.99}")
    if default is REQUIRED or default is None or isinstance(default, tuple):
        if isinstance(default, tuple) and not isinstance(value, tuple):
            raise ValueError(f"attribute {name} must be a tuple, as its default {default}, got {given!r:.99}")
        texts = {isinstance(v, str) for v in default} if isinstance(default, tuple) else set()
        if len(texts) == 1 and not {isinstance(v, str) for v in value} <= texts:
            raise ValueError(f"attribute {name} must have elements like its default {default}, got {given!r:.99}")
        return value
    kind = type(default)
    fits = not isinstance(value, tuple) and isinstance(value, str) == (kind is str)
    if kind is int and fits:
        fits = math.isfinite(value) and value == int(value) and -(1 << 63) <= value < 1 << 63
    if not fits or kind is bool and value not in (0, 1):
        raise ValueError(
            f"attribute {name} must be of type {kind.__name__}, as its default {default!r}, got {given!r:.99}"
        )
    return kind(value)


def attributes_of_text(op: Op, given: Mapping[str, str], where: str) -> dict[str, Any]:
    """Attributes that a text file gives to a plugin, in the types of their defaults: 0 and 1 for a bool, numbers with
    commas between for a tuple. InputError for unknown and missing ones, and where a text does not fit."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        default = op.attrs.get(name)
        try:
            if isinstance(default, str) or name not in op.attrs:
                values[name] = text
            elif isinstance(default, tuple):
                values[name] = tuple(float(t) if set(t) & set(".eE") else int(t) for t in text.rstrip(",").split(","))
            else:
                values[name] = float(text) if isinstance(default, float) or set(text) & set(".eE") else int(text)
        except ValueError:
            raise InputError(
                f"plugin {op.name}: attribute {name} must be like {default!r}, got {text!r} ({where})"
            ) from None
    return attributes_of(op, values, where)


def attributes_of(op: Op, given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Attributes that a model gives to a plugin; InputError for unknown and missing ones."""
    unknown = [k for k in given if k not in op.attrs]
    missing = [k for k, v in op.attrs.items() if v is REQUIRED and k not in given]
    if unknown or missing:
        raise InputError(
            f"plugin {op.name} has the attributes {', '.join(op.attrs) or '(none)'}; "
            + "; ".join(
                [f"{k!r} is none of them{near(k, op.attrs)}" for k in unknown] + [f"{k!r} is missing" for k in missing]
            )
            + f" ({where})" * bool(where)
        )
    try:
        return {k: checked(k, v, op.attrs) for k, v in given.items()}
    except ValueError as e:
        raise InputError(f"plugin {op.name}: {e}" + f" ({where})" * bool(where)) from None
