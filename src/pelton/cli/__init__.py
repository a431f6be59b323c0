"""The command line: the parser, and the exit of every command (errors, Ctrl-C, closed pipes)."""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from pelton import __version__
from pelton.errors import Error, InputError, near

from . import flags, output, streams, terminal

DESCRIPTION = """Pelton makes a trained network fast on the machine you have: `build` fuses, tunes and plans a
model (of ONNX, or another format) into one engine file, `run` runs it, `bench` says how fast it is and where the time
goes."""

EXAMPLES = """from a model to an answer:
  pelton build resnet50.onnx -o resnet50.pelton
  pelton run resnet50.pelton --input x=input.npy --output y.npy
  pelton bench resnet50.onnx --vs onnxruntime --layers

`pelton COMMAND --help` explains each command, with examples. `pelton demo` needs no model."""

# Commands in the order of `pelton --help`: a new one is a module with `add` and `main`, and a word here.
GROUPS = {
    "build": ("build", "tune", "refit", "sign"),
    "run and measure": ("run", "serve", "bench", "trtexec", "demo"),
    "language models": ("generate", "chat"),
    "understand": ("inspect", "view", "explain", "trace", "check", "compare"),
    "convert and formats": ("convert", "compress", "export", "formats", "import-env"),
    "machine": ("doctor", "advise", "cache", "completion"),
}

SIMILAR = 0.72  # of letters, from 0 to 1: --weight is near --weights, and --device not near --level
INTERRUPTED = 130
REFUSED = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Parser(argparse.ArgumentParser):
    """Keeps the line breaks of help texts, and reports wrong usage in the form of all other errors."""

    def __init__(self, **kwargs):
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **kwargs})

    def format_help(self) -> str:
        if terminal.colored(sys.stdout):
            self.formatter_class = terminal.help_formatter()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}\nsee `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(REFUSED) from InputError(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as e:
            e.message += near(str(value), map(str, action.choices or ()))
            raise

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Exits with the unrecognized arguments and suggestions: an option of a similar name, one with this word among
        its values (--fp16), or one of the command, which came before it."""
        options = [action for action in self._actions if action.option_strings]
        flags = [flag for action in options for flag in action.option_strings]
        # of several, the first: --precision fp16, not --kv-cache
        takes = {str(choice): a.option_strings[-1] for a in reversed(options) for choice in a.choices or ()}

        def with_hint(word: str) -> str:
            name = word.partition("=")[0]
            if name in flags:
                return f"{word} (options come after the command: `{self.prog} {word} …`)"
            value = name.lstrip("-")
            if (likely := nearest(name, flags)) is not None:
                return f"{word} (did you mean {likely!r}?)"
            return word + (f" (did you mean {takes[value]} {value}?)" if value in takes else "")

        self.error(f"unrecognized arguments: {' '.join(map(with_hint, words))}")


def nearest(word: str, flags: Sequence[str]) -> str | None:
    """Returns the option that a word probably means: one that starts with it, or that it starts with, else one of
    similar letters. Dashes do not count as letters."""
    stem, names = word.lstrip("-"), {flag.lstrip("-"): flag for flag in flags if flag.startswith("--")}
    begun = [name for name in names if len(stem) > 2 and (name.startswith(stem) or stem.startswith(name + "-"))]
    matches = begun or get_close_matches(stem, names, 1, SIMILAR)
    return names[matches[0]] if matches else None


class CommandParser(Parser):
    """The parser of all commands, which its help lists in groups."""

    groups: Mapping[str, Sequence[str]] = {}  # title → names of commands
    words: Sequence[str] = ()  # the given command line

    def format_help(self) -> str:
        commands = next(a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        listed, usual = {a.dest: a for a in commands._get_subactions()}, self._action_groups
        self._action_groups = []
        try:
            for title, names in self.groups.items():
                self.add_argument_group(title)._group_actions.extend(listed[name] for name in names)
            self._action_groups.append(self._optionals)
            return super().format_help()
        finally:
            self._action_groups = usual


class Warnings(logging.Handler):
    """Prints log records of compiler and runtime to the current sys.stderr, which progress bars replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{record.levelname.lower()}: {flags.translate_options(self.format(record))}", file=sys.stderr)


def parser(only: str | None = None) -> CommandParser:
    """Builds the parser of all commands, or of one. Each module of this package adds one."""
    out = CommandParser(prog="pelton", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("--version", action="version", version=f"pelton {__version__}")
    commands = out.add_subparsers(dest="command", metavar="COMMAND", prog="pelton", parser_class=Parser)
    out.groups = GROUPS
    for name in [only] if only else [name for names in GROUPS.values() for name in names]:
        module = importlib.import_module(f".{name.replace('-', '_')}", __name__)
        command = module.add(commands)
        command.add_argument(
            "-v", "--verbose", action="count", default=0, help="log decisions (-vv: also rejected candidates)"
        )
        command.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary, no warnings")
        command.set_defaults(main=module.main, refuse=command.refuse, parser=out)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 1 done with a negative result (`check`, `compare`), 2
    rejected (usage, model, engine, input), 130 interrupted."""
    with streams.printable():
        try:
            status = _run(argv)
            sys.stdout.flush()
            return status
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # `pelton inspect … | head`: the reader has seen enough
            _drop_output()
            return 128 + signal.SIGPIPE
        except OSError as e:
            # commands report errors of named files themselves; this is a full disk, of output or temporary files
            if e.errno not in FULL:
                raise
            print(
                f"error: {e.filename or 'the output'} cannot be written: {e.strerror}; make room, or set TMPDIR if it"
                " is for temporary files",
                file=sys.stderr,
            )
            _drop_output()
            return REFUSED


def _run(argv: Sequence[str] | None) -> int:
    args = _parse(sys.argv[1:] if argv is None else argv)
    log, handler = logging.getLogger("pelton"), Warnings()
    before = log.level
    log.setLevel(logging.ERROR if args.quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)])
    log.addHandler(handler)
    try:
        with output.one_object(args):
            return args.main(args) or 0
    except Error as e:
        print(f"error: {flags.translate_options(str(e))}", file=sys.stderr)
        if getattr(args, "json", False):
            output.write_error(e)
        return REFUSED
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of one command; raises SystemExit for --help, --version and wrong usage."""
    # importing all commands takes longer than most of them; that of completions prints all
    alone = bool(argv) and argv[0] != "completion" and any(argv[0] in names for names in GROUPS.values())
    pelton = parser(argv[0] if alone else None)
    pelton.words = argv
    try:
        args, unknown = pelton.parse_known_args(argv)
        if unknown:
            (args.refuse if args.command else pelton.refuse)(unknown)
        if not args.command:
            pelton.print_help()
            raise SystemExit(0)
        return args
    except SystemExit as e:
        if isinstance(e.__cause__, Error) and "--json" in argv:
            output.write_error(e.__cause__)
        sys.stdout.flush()
        raise


def _drop_output() -> None:
    """Discards all further output, including Python's flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
