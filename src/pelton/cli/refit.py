"""`pelton refit`: replaces the weights of an engine, without a new build."""

from __future__ import annotations

import argparse
import logging
import os
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.engine import signature
from pelton.errors import InputAbsent, InputError, Needs

from . import arguments, arrays, output, text

if TYPE_CHECKING:
    from pelton.runtime import Engine

log = logging.getLogger(__name__)

EXAMPLES = """examples:
  pelton build model.onnx --refit                                         a refittable engine
  pelton refit model.pelton --weights finetuned.onnx                      with the weights of the same network
  pelton refit model.pelton --weights head.npz -o new.pelton              some of them, by the names of initializers
  pelton build model.onnx --strip-weights -o small.pelton                 an engine without weights, to ship
  pelton refit small.pelton --weights model.onnx -o model.pelton          which has them again

Refitting times and compiles nothing. `pelton inspect` shows the number of refittable weights, and the reasons for
others."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "refit",
        help="replace the weights of an engine",
        description="Replaces the weights of an engine by others of the same shapes, without a build.",
        epilog=EXAMPLES,
    )
    command.add_argument("engine", help="an engine file, built with --refit or --strip-weights")
    command.add_argument(
        "--weights",
        required=True,
        metavar="FILE",
        help="a model of the same network, or a .npz file of arrays, named as its initializers",
    )
    arguments.add_overwriting(command)
    command.add_argument("--sign", metavar="KEY", help="sign the engine with this Ed25519 private key (PEM)")
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    import pelton

    target = args.output or args.engine
    arrays.check_target(target)
    if args.sign:
        signature.private_key(args.sign)
    engine = pelton.load(args.engine, device=None)
    if not engine.refittable:
        engine.refit({})  # raises the reason why it cannot be refitted
    weights = (
        _arrays(args.weights) if args.weights.lower().endswith(".npz") else _weights_of_model(args.weights, engine)
    )
    engine.refit(weights)
    was_signed = bool(signature.signers(args.engine))
    engine.save(target, sign=args.sign)
    if was_signed and not args.sign:
        log.warning("%s is not signed, the engine with its old weights was: --sign KEY signs it", target)
    size, count = os.path.getsize(target), len(weights.keys() & engine.refittable.keys())
    output.emit(args, {"file": target, "bytes": size, "weights": count, "refittable": len(engine.refittable)})
    if not args.quiet:
        print(f"{target}: {text.size(size)}, {count} of {len(engine.refittable)} weights from {args.weights}")


def _arrays(path: str) -> dict[str, Any]:
    """Loads the arrays of a .npz file by name. Raises InputError for other files."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputAbsent(f"there is no file {path}", path) from None
    except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as e:
        raise InputError(f"{path} is no .npz file of arrays ({e})") from None


def _weights_of_model(path: str, engine: Engine) -> dict[str, Any]:
    """Loads all weights of a model. Raises InputError if it lacks one of the engine's."""
    known = engine.refittable
    with Needs("reading weights of models", InputError):
        from pelton.compiler.refit import weights_in
    weights = weights_in(path)
    if missing := sorted(known.keys() - weights.keys()):
        raise InputError(
            f"{path} has no weights {', '.join(map(repr, missing[:8]))}{' …' if len(missing) > 8 else ''}, but"
            f" {engine.label} has: it is another network; use the same network with other weights, or a .npz file"
            " of some weights"
        )
    return weights
