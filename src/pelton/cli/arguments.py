"""Arguments that several commands share, and the options they make."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from pelton.errors import InputError
from pelton.options import PRECISIONS, Options

SHAPE_HELP = (
    "sizes of an input, such as x=1x3x224x224; min..optimum..max for a size that every run may choose,"
    " x=1..8..32x3x224x224 (repeat, or separate by commas)"
)


def whole(least: int, most: int, what: str) -> Callable[[str], int]:
    """A parser of whole numbers in a range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected {what}: a whole number from {least} to {most}, got {text!r}")
        return number

    return read


def seconds(text: str) -> float:
    """A number of seconds, not negative."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text!r}")
    return number


def positive(text: str) -> float:
    """A number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def named(pairs: Iterable[str], what: str, example: str) -> dict[str, str]:
    """["x=1", "y=2"] as a mapping; InputError for what is no pair or is given twice."""
    out: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.rpartition("=")
        if not equals or not name or not value:
            raise InputError(f"{what} is written NAME=VALUE, such as {example}, got {pair!r}")
        if name in out:
            raise InputError(f"{what} gives {name!r} twice")
        out[name] = value
    return out


def add_threads(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads",
        type=whole(1, 256, "threads"),
        metavar="N",
        help="threads to use (all that this process may use, if not given)",
    )


def add_target(command: Any) -> None:
    """What the engine is for."""
    command.add_argument(
        "--target",
        metavar="WHAT",
        help=(
            '"cpu" for the CPU here (if not given), "cpu:x86_64_v3" for any with AVX2, "cuda" for the GPU here, or'
            ' "cuda:sm_80,sm_90"'
        ),
    )
    command.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="what values between layers are kept in, and matrices multiplied in; fp32 alone for CPUs",
    )


def add_build(command: argparse.ArgumentParser) -> None:
    """What steers a build."""
    group = command.add_argument_group("how the engine is built")
    group.add_argument(
        "--level",
        type=whole(0, 5, "level"),
        metavar="N",
        help="0: no timing, seconds; 1–2: few candidates; 3: the default; 4–5: many, all",
    )
    add_target(group)
    group.add_argument(
        "--budget", type=seconds, metavar="S", help="seconds for timing kernels; then the best guess is taken"
    )
    group.add_argument(
        "--strict",
        action="store_true",
        default=None,
        help="only arithmetic that differs from the model's by the order of sums (no Winograd, no weights in half)",
    )
    group.add_argument("--shapes", action="append", default=[], metavar="NAME=SIZES", help=SHAPE_HELP)
    group.add_argument(
        "--values",
        action="append",
        default=[],
        metavar="NAME=NUMBERS",
        help=(
            "what an input always is, where that decides the program: axes=1,2 or k=5 or mask=true, none for an"
            " optional without a value; it becomes a constant of the engine (repeat)"
        ),
    )
    group.add_argument(
        "--outputs",
        action="append",
        default=[],
        metavar="NAME",
        help="return these tensors, inner ones too, instead of the model's outputs (repeat)",
    )
    add_memory(group)
    group.add_argument(
        "--max-iterations",
        type=whole(0, 1 << 40, "iterations"),
        metavar="N",
        help=(
            "refuse runs whose loops, where the data says when they end, take more turns together"
            f" ({Options.max_iterations} if not given)"
        ),
    )
    group.add_argument(
        "--timing-cache", metavar="FILE", help="remember times here: the same file gives the same engine, byte for byte"
    )
    group.add_argument(
        "--save-tactics", metavar="FILE", help="record what the build decides: chains, layouts and tactics"
    )
    group.add_argument(
        "--load-tactics",
        metavar="FILE",
        help="decide as recorded here, and time nothing; regions that are not recorded are refused",
    )
    group.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="compiled kernels and times are kept here (PELTON_CACHE_DIR, else ~/.cache/pelton, if not given)",
    )


def add_memory(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--memory",
        type=whole(1, 1 << 20, "gigabytes"),
        metavar="GB",
        help="reject a model whose runs take more, weights included (default: what this machine has)",
    )


def shapes(args: argparse.Namespace) -> dict[str, str]:
    """Input name → sizes as they are written."""
    return named((pair for given in args.shapes for pair in given.split(",")), "--shapes", "x=1x3x224x224")


def build_options(args: argparse.Namespace) -> dict:
    """The fields of pelton.Options that `add_build` and `add_threads` ask for, those that were given."""
    found = {
        "level": args.level,
        "budget": args.budget,
        "strict": args.strict,
        "shapes": shapes(args) or None,
        "values": named(args.values, "--values", "axes=1,2") or None,
        "outputs": tuple(args.outputs) or None,
        "timing_cache": args.timing_cache,
        "save_tactics": args.save_tactics,
        "load_tactics": args.load_tactics,
        "cache_dir": args.cache_dir,
        "threads": args.threads,
        "max_iterations": args.max_iterations,
        "memory": args.memory and args.memory * 10**9,
        "target": args.target,
        "precision": args.precision,
    }
    return {name: value for name, value in found.items() if value is not None}


@lru_cache(maxsize=1)
def _flags() -> dict[str, tuple[str, str]]:
    """Fields of pelton.Options → what the command line has for them: --shapes, SIZES."""
    command = argparse.ArgumentParser()
    add_threads(command)
    add_build(command)
    return {
        a.dest: (a.option_strings[-1], str(a.metavar).rpartition("=")[2]) for a in command._actions if a.dest != "help"
    }


def flag(option: str) -> str:
    """--timing-cache for timing_cache."""
    return _flags()[option][0]


def spoken(said: str) -> str:
    """What the library says of options, as the command line has them: `shapes={'x': ...}` becomes `--shapes x=SIZES`,
    and `shapes=` is `--shapes`."""

    def pairs(found: re.Match[str]) -> str:
        name, value = _flags()[found[1]]
        inner = re.findall(r"'([^']*)': (\.\.\.|None)(?:, |$)", found[2])
        return " ".join(f"{name} {shlex.quote(of + '=' + ('none' if what == 'None' else value))}" for of, what in inner)

    names = "|".join(_flags())
    said = re.sub(rf"\b({names})=\{{((?:'[^']*': (?:\.\.\.|None)(?:, )?)+)\}}", pairs, said)
    said = re.sub(rf"\b(?:({names})=(?![\w{{(])|Options\.({names})\b)", lambda found: flag(found[1] or found[2]), said)
    return re.sub(rf"^({names})(?= names | is )", lambda found: flag(found[1]), said)
