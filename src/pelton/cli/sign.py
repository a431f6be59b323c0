"""`pelton sign`: signs an engine file, for others to verify its origin."""

from __future__ import annotations

import argparse

from pelton.engine import signature

from . import arrays, output

EXAMPLES = """examples:
  openssl genpkey -algorithm ed25519 -out key.pem      a private key, which you keep to yourself
  openssl pkey -in key.pem -pubout -out key.pub        its public key, for those who run your engines
  pelton sign model.pelton --key key.pem               signs the file in place
  pelton run model.pelton --trust key.pub --input x.npy

Every byte of the file is signed. Up to eight may sign the same file; each signature stays when another comes. This
needs the package cryptography: pip install "pelton[sign]"."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "sign",
        help="sign an engine file with a private key",
        description="Signs an engine file with an Ed25519 private key.",
        epilog=EXAMPLES,
    )
    command.add_argument("engine", help="an engine file")
    command.add_argument("--key", required=True, metavar="FILE", help="the private key, in PEM form")
    command.add_argument("-o", "--output", metavar="FILE", help="where to write (the same file, if not given)")
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
