"""`pelton chat`: talks with a language model in a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pelton.errors import Error, InputError
from pelton.system import files

from . import generate, terminal

EXAMPLES = """examples:
  pelton chat model.gguf
  pelton chat model.gguf --system "Answer in one sentence." --temperature 0.7 --kv-cache int8

Ctrl-C ends an answer, Ctrl-D the program. /help lists what else can be typed."""
COMMANDS = """/help            this list
/reset           forget all messages
/system TEXT     forget all messages, and begin with this description of what the model is to be or do
/undo            take the latest message and its answer back
/save FILE       write the messages to a file, and their caches to FILE.session
/load FILE       read what /save wrote
/quit            end (Ctrl-D does, too)"""
PROMPT = "> "


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "chat",
        help="talk with a language model",
        description="Talks with a language model: each line is a message, and the answer appears token by token.",
        epilog=EXAMPLES,
    )
    command.add_argument("model", type=Path, help="a GGUF file, or a folder of a language model")
    command.add_argument("--system", metavar="TEXT", help="what the model is to be or do")
    generate.add_answers(command)
    generate.add_opening(command)
    return command


def main(args: argparse.Namespace) -> None:
    try:
        import readline  # noqa: F401  (lines can be edited, and come back)
    except ImportError:
        pass
    with generate.opened(args) as model:
        Conversation(model, args).run()


class Conversation:
    """The messages of a chat, and what is typed."""

    def __init__(self, model: Any, args: argparse.Namespace):
        self.model, self.options, self.quiet = model, generate.answer_options(args), args.quiet
        self.messages: list[dict[str, str]] = []
        self.begin(args.system)

    def begin(self, system: str | None) -> None:
        """Forgets all messages but a description of what the model is to be or do."""
        self.system = system
        self.messages = [{"role": "system", "content": system}] if system else []

    def run(self) -> None:
        """Answers messages until the end of the input."""
        interactive = sys.stdin.isatty()
        while True:
            try:
                line = input(PROMPT if interactive else "").strip()
            except EOFError:
                if interactive:
                    print()
                return
            except KeyboardInterrupt:  # in the middle of a line: a new one
                print()
                continue
            if line == "/quit":
                return
            try:
                if line.startswith("/"):
                    self.command(*line[1:].split(maxsplit=1))
                elif line:
                    self.answer(line)
            except Error as e:
                print(f"error: {e}", file=sys.stderr)

    def answer(self, text: str) -> None:
        """Prints the answer to a message. Ctrl-C ends it; it then counts as far as it is."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = self.model.submit(messages, **self.options)
        texts: list[str] = []
        try:
            texts.extend(piece.text for piece in generate.shown(answer))
        except KeyboardInterrupt:
            answer.cancel()
            answer.wait()
            texts = [piece.text for piece in answer]
        self.messages = [*messages, {"role": "assistant", "content": "".join(texts)}]
        if not self.quiet:
            line = generate.rate(answer)
            print(f"\x1b[2m{line}\x1b[0m" if terminal.colored(sys.stdout) else line, file=sys.stderr, flush=True)

    def command(self, name: str = "", text: str = "") -> None:
        """Obeys a line that begins with a slash."""
        known: dict[str, Callable[[], None]] = {
            "help": lambda: print(COMMANDS),
            "reset": lambda: self.begin(self.system),
            "system": lambda: self.begin(text),
            "undo": self.undo,
            "save": lambda: self.save(text),
            "load": lambda: self.load(text),
        }
        if name not in known:
            raise InputError(f"there is no /{name}; /help lists what there is")
        if name in ("save", "load") and not text:
            raise InputError(f"/{name} needs the name of a file")
        known[name]()

    def undo(self) -> None:
        """Takes the latest message and its answer back."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            del self.messages[-2:]

    def save(self, path: str) -> None:
        """Writes the messages as JSON, and their caches beside them."""
        try:
            files.write(path, [json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1).encode()])
            self.model.save(f"{path}.session")
        except OSError as e:
            raise InputError(f"{path} cannot be written: {e.strerror or e}") from None

    def load(self, path: str) -> None:
        """Reads messages, and their caches if they are there."""
        try:
            messages = json.loads(Path(path).read_bytes())["messages"]
            self.model.chat_prompt(messages)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise InputError(f"{path} holds no messages: {e}") from None
        self.messages = messages
        first = messages[0]
        self.system = first.get("content") if first.get("role") == "system" else None
        if Path(f"{path}.session").is_file():
            self.model.restore(f"{path}.session")
