"""The command line: the parser, and how every command ends (errors, Ctrl-C, closed pipes)."""
from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from pelton import __version__
from pelton.errors import Error

from . import bench, build, check, compare, demo, explain, inspect, run, tune

DESCRIPTION = """Pelton makes a trained network fast on the machine you have: `build` fuses, tunes and plans an ONNX model into one
engine file, `run` runs it, `bench` says how fast it is and where the time goes."""

EXAMPLES = """from a model to an answer:
  pelton build resnet50.onnx -o resnet50.pelton
  pelton run resnet50.pelton --input x=input.npy --output y.npy
  pelton bench resnet50.onnx --vs onnxruntime --layers

`pelton COMMAND --help` explains each command, with examples. `pelton demo` needs no model of yours."""

INTERRUPTED = 130
REFUSED = 2


class Parser(argparse.ArgumentParser):
    """Help keeps its lines, and a wrong usage is an error like all others."""

    def __init__(self, **given):
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **given})

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}\nsee `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(REFUSED)


class Warnings(logging.Handler):
    """What the compiler and the runtime have to say while a command works, on stderr as it is at that moment (progress bars move it)."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{record.levelname.lower()}: {self.format(record)}", file=sys.stderr)


def parser() -> Parser:
    """All commands. Each module of this package adds one."""
    out = Parser(prog="pelton", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("--version", action="version", version=f"pelton {__version__}")
    commands = out.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (build, tune, run, bench, compare, check, inspect, explain, demo):
        command = module.add(commands)
        command.add_argument("-v", "--verbose", action="count", default=0, help="say more of what goes on (-vv: everything)")
        command.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary, no warnings")
        command.set_defaults(main=module.main)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit status: 0 done, 1 done and found wanting (`check`, `compare`), 2 refused (usage, model, engine, input),
    130 interrupted."""
    args = parser().parse_args(argv)
    log, handler = logging.getLogger("pelton"), Warnings()
    before = log.level
    log.setLevel(logging.ERROR if args.quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)])
    log.addHandler(handler)
    try:
        status = args.main(args)
        sys.stdout.flush()
        return status or 0
    except Error as e:
        print(f"error: {e}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:                       # `pelton inspect … | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
