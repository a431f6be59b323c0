"""`pelton completion`: prints a script for shells that completes commands, options, their choices and files."""

from __future__ import annotations

import argparse

from pelton.errors import InputError, Needs
from pelton.system.environments import ENVIRONMENTS

from . import peers

EXAMPLES = """examples:
  pelton completion bash > ~/.local/share/bash-completion/completions/pelton
  pelton completion zsh > ~/.zfunc/_pelton          with fpath+=~/.zfunc before compinit in ~/.zshrc
  pelton completion fish > ~/.config/fish/completions/pelton.fish
  pelton completion tcsh > ~/.pelton.csh            with `source ~/.pelton.csh` in ~/.tcshrc

Repeat this after updates of Pelton. Arguments of files and folders complete to paths."""

# suggestions for arguments that also accept other words, or report wrong ones better than argparse
SUGGESTED = {
    "--level": tuple(map(str, range(6))),
    "--target": ("cpu", "cuda"),  # shells treat the part after a colon as another word
    "--vs": peers.PEERS,
    "|".join(ENVIRONMENTS): tuple(ENVIRONMENTS),
}


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "completion",
        help="print a shell completion script",
        description="Prints a script for shell completion of commands, options, choices and files.",
        epilog=EXAMPLES,
    )
    command.add_argument(
        "shell", choices=("bash", "zsh", "fish", "tcsh"), metavar="bash|zsh|fish|tcsh", help="the shell"
    )
    return command


def main(args: argparse.Namespace) -> None:
    with Needs("completion", InputError):
        import shtab
    for command in _parsers(args.parser):
        for action in command._actions:
            name = action.option_strings[-1] if action.option_strings else action.metavar
            if name in SUGGESTED:
                action.choices = SUGGESTED[name]
            elif _takes_files(action):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(args.parser, args.shell))


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Returns a parser and those of its commands."""
    commands = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return [parser, *(p for a in commands for p in a.choices.values())]


def _takes_files(action: argparse.Action) -> bool:
    """Returns True if an argument is a path, by its name in help texts."""
    named = str(action.metavar or action.dest)
    return named in ("model", "engine", "PYTHON") or any(what in named for what in ("FILE", "DIR", "PATH"))
