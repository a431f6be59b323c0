"""`pelton advise --from --to`: the commands from a format to a place where the model runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pelton.errors import InputError

from . import output

if TYPE_CHECKING:
    from pelton.advise.routes import Directions


def add(command: argparse.ArgumentParser) -> None:
    routes = command.add_argument_group("routes, without a model")
    routes.add_argument("--from", dest="source", metavar="FORMAT", help="format or framework, such as onnx or keras")
    routes.add_argument("--to", dest="target", metavar="PLACE", help="place to run, such as browser or cortex-m7")


def main(args: argparse.Namespace) -> None:
    from pelton.advise.routes import SOURCES, TARGETS, directions, known_names

    if args.model is not None:
        raise InputError("--from and --to need no model; leave it out")
    if args.source is None:
        raise InputError(f"--to {args.target} needs --from, one of {', '.join(known_names(SOURCES))}")
    if args.target is None:
        raise InputError(f"--from {args.source} needs --to, one of {', '.join(known_names(TARGETS))}")
    route = directions(args.source, args.target)
    output.emit(args, route.json())
    if not args.json:
        print("\n".join(lines(route)))


def lines(route: Directions) -> list[str]:
    """Returns the steps as commands with remarks, and sentences below them."""
    out = [f"from {route.source} to {route.target}", ""]
    for step in route.steps:
        out += [f"  # {step.why}", f"  {step.line}"] if step.why else [f"  {step.line}"]
    if route.steps:
        out.append("")
    if not route.possible:
        out.append("Pelton does not lead there.")
    if words := route.placeholders():
        out.append(f"replace: {', '.join(words)}")
    if route.tried:
        out.append(f"tried: {route.tried}")
    out += [f"limit: {sentence}" for sentence in route.limits]
    for other in route.instead:
        out.append(f"instead: {other.why}" + (f", after `{other.line}`" if other.line else ""))
    return [*out, f"pages: {', '.join(route.pages)}"]
