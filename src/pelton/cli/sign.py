"""`pelton sign`: signs an engine file, for others to verify its origin."""

from __future__ import annotations

import argparse

from pelton.engine import signature

from . import arguments, arrays, output

EXAMPLES = """examples:
  openssl genpkey -algorithm ed25519 -out key.pem      a private key, to keep secret
  openssl pkey -in key.pem -pubout -out key.pub        its public key, for users of the engines
  pelton sign model.pelton --key key.pem               signs the file in place
  pelton run model.pelton --trust key.pub --input x.npy

A signature covers every byte of the file. A file may have up to eight signatures. Signing needs the package
cryptography: pip install "pelton[sign]"."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "sign",
        help="sign an engine file with a private key",
        description="Signs an engine file with an Ed25519 private key.",
        epilog=EXAMPLES,
    )
    command.add_argument("engine", help="an engine file")
    command.add_argument("--key", required=True, metavar="FILE", help="the private key (PEM)")
    arguments.add_overwriting(command)
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    target = args.output or args.engine
    arrays.check_target(target)
    signature.sign_file(args.engine, args.key, target)
    signers = signature.signers(target)
    output.emit(args, {"file": target, "signers": signers})
    if not args.quiet:
        print(f"{target}: signed by {', '.join(signers)}")
