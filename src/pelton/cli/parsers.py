"""Parsers of the values of options: numbers, sizes, pairs of names and texts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable

from pelton.errors import InputError
from pelton.system.cache import parse_size


def int_in_range(minimum: int, maximum: int, what: str = "") -> Callable[[str], int]:
    """Returns a parser of integers in a range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(
                f"expected {what and f'{what}: '}an integer from {minimum} to {maximum}, got {text!r}"
            )
        return number

    return read


def seconds(text: str) -> float:
    """Parses a number of seconds, not negative."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text!r}")
    return number


def positive(text: str) -> float:
    """Parses a number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def size(text: str) -> int:
    """Parses a number of bytes, such as 500MB."""
    try:
        return parse_size(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"expected {e}") from None


def memory(text: str) -> int:
    """Parses a number of bytes above zero, such as 512MB; without a unit, of gigabytes."""
    limit = size(f"{text}GB" if text[-1:].isdigit() else text)
    if not limit:
        raise argparse.ArgumentTypeError(f"expected a size above 0, such as 512MB or 4GB, got {text!r}")
    return limit


def binary_size(text: str) -> int:
    """Parses a number of bytes above zero as data sheets of chips give it: 256K is 262,144, 1M is 1,048,576."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KM]?)(?:i?B)?", text, re.IGNORECASE)
    count = int(float(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2].upper()]) if match else 0
    if not count:
        raise argparse.ArgumentTypeError(f"expected a size above 0, such as 256K or 1M, got {text!r}")
    return count


def parse_pairs(pairs: Iterable[str], what: str, example: str) -> dict[str, str]:
    """Parses ["x=1", "y=2"] to a mapping. Raises InputError for invalid pairs, and for duplicate names."""
    out: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.rpartition("=")
        if not equals or not name or not value:
            raise InputError(f"{what} is written NAME=VALUE, such as {example}, got {pair!r}")
        if name in out:
            raise InputError(f"{what} has {name!r} twice")
        out[name] = value
    return out


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """Parses ["team=vision"] to a mapping; texts may contain `=`, and be empty. Raises as `parse_pairs` does."""
    out: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--metadata is written NAME=TEXT, such as team=vision, got {pair!r}")
        if name in out:
            raise InputError(f"--metadata has {name!r} twice")
        out[name] = value
    return out
