"""Machine-readable results of commands: with --json one object on stdout, and nothing else there."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np

import pelton

from . import flags


def add_json(command: argparse._ActionsContainer) -> None:
    """Adds the option --json to a command whose `main` passes its result to `emit`."""
    command.add_argument("--json", action="store_true", help="print one JSON object (docs/schemas has its schema)")


def emit(args: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """Stores the result of a command for --json: plain data, which may hold numpy scalars and infinities."""
    args.result = result


@contextmanager
def one_object(args: argparse.Namespace) -> Iterator[None]:
    """Context manager around a command: with --json, all inner output goes to stderr, and the emitted object is printed
    at the end."""
    if not getattr(args, "json", False):
        yield
        return
    with redirect_stdout(sys.stderr):
        yield
    write(args.result)


def write_error(e: Exception) -> None:
    """Prints an error as an object. Its type is the name of the public class, which programs can distinguish."""
    kind = next(k.__name__ for k in type(e).__mro__ if k.__name__ in pelton.__all__)
    write({"error": {"type": kind, "message": flags.translate_options(str(e))}})


def write(result: Mapping[str, Any]) -> None:
    print(json.dumps(plain({"pelton": pelton.__version__, **result}), indent=1, allow_nan=False))


def plain(x: Any) -> Any:
    """Converts data to JSON: infinities and NaN, which it lacks, become the texts "inf", "-inf" and "nan"."""
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    if isinstance(x, Mapping):
        return {str(name): plain(value) for name, value in x.items()}
    return [plain(v) for v in x] if isinstance(x, (list, tuple)) else x
