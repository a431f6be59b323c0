"""`pelton generate`: continues a text with a language model."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.errors import InputAbsent, InputError, Needs

from . import arrays, output, parsers

if TYPE_CHECKING:
    from pelton.language.model import LanguageModel

EXAMPLES = """examples:
  pelton generate model.gguf "The capital of France is"
  pelton generate model.gguf --chat "What is the capital of France?" --temperature 0.7 --top-p 0.9
  git diff | pelton generate model.gguf --system "Describe this change in one sentence." -
  pelton generate model.gguf "A colour:" --schema regex:'red|green|blue'
  pelton generate flan-t5-small "translate English to German: The house is small."
  pelton generate whisper-tiny --audio talk.wav --language en
  pelton generate model.gguf "Hello" --save-engine model.pelton      for programs in C: examples/native/generate.c

The first start builds an engine, which takes a minute or two, and keeps it in the cache folder."""
SAMPLING = (
    ("temperature", float, "T", "divide logits by T; 0 (default): the most likely token"),
    ("top_k", int, "K", "choose among the K most likely tokens (default: all)"),
    ("top_p", float, "P", "choose among the most likely tokens whose probabilities sum to P (default 1)"),
    ("min_p", float, "P", "leave out tokens less likely than P times the most likely one (default 0)"),
    ("repetition_penalty", float, "X", "divide the logits of tokens that were there by X (default 1)"),
    ("presence_penalty", float, "X", "subtract X from logits of tokens that the answer has (default 0)"),
    ("frequency_penalty", float, "X", "subtract X for each time that the answer has the token (default 0)"),
    ("seed", int, "N", "seed of the draws (default: another one each time)"),
)


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "generate",
        help="continue a text with a language model",
        description="Continues a text with a language model, and prints what it generates token by token.",
        epilog=EXAMPLES,
    )
    command.add_argument("model", type=Path, help="a GGUF file, or a folder of a language model")
    command.add_argument("prompt", help="the text; - reads it from standard input")
    command.add_argument("--chat", action="store_true", help="the text is a message, for the model's chat template")
    command.add_argument("--system", metavar="TEXT", help="what the model is to be or do; implies --chat")
    add_audio(command)
    add_answers(command)
    command.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end in front of it (repeatable)")
    command.add_argument(
        "--schema", metavar="SCHEMA", help="what the answer must match: a file with a JSON schema, regex:… or lark:…"
    )
    command.add_argument(
        "--session", type=Path, metavar="FILE", help="take caches from this file, and write them to it"
    )
    command.add_argument("--save-engine", type=Path, metavar="FILE", help="also write the engine to a file")
    add_opening(command)
    output.add_json(command)
    return command


class InPlaceOfPrompt(argparse.Action):
    """An option with which the prompt is not required. With nargs="?", argparse finds no prompt behind options."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, values)
        for action in parser._actions:
            if action.dest == "prompt":
                action.required = False


def add_audio(command: argparse.ArgumentParser) -> None:
    """Adds the options of models of speech."""
    group = command.add_argument_group("speech")
    group.add_argument(
        "--audio",
        type=Path,
        action=InPlaceOfPrompt,
        metavar="FILE",
        help="write down what a WAV file of 16 bits says; leave out the prompt",
    )
    group.add_argument("--language", metavar="NAME", help="of the sound, such as en (default: the model finds out)")
    group.add_argument("--task", metavar="NAME", help="transcribe (default), or translate, into English")


def add_answers(command: argparse.ArgumentParser) -> None:
    """Adds the options of answers: their length and their sampling."""
    group = command.add_argument_group("answers")
    group.add_argument(
        "--max-tokens",
        type=parsers.int_in_range(1, 1 << 30, "tokens"),
        default=512,
        metavar="N",
        help="most tokens of an answer (default 512)",
    )
    for name, kind, metavar, text in SAMPLING:
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)


def add_opening(command: argparse.ArgumentParser) -> None:
    """Adds the options with which a model is opened."""
    group = command.add_argument_group("model")
    group.add_argument("--threads", type=parsers.int_in_range(1, 256, "threads"), metavar="N", help="threads of a run")
    group.add_argument(
        "--kv-cache", choices=("fp32", "fp16", "int8"), help="type of the caches of keys and values (default fp32)"
    )
    group.add_argument(
        "--context",
        type=parsers.int_in_range(2, 1 << 24, "tokens"),
        metavar="N",
        help="most tokens of a text (default: the model's, at most 4096)",
    )
    group.add_argument("--level", type=parsers.int_in_range(0, 5), default=0, metavar="N", help="0 to 5, as for build")
    group.add_argument(
        "--precision",
        choices=("fp32", "fp16", "int8"),
        default="fp32",
        help="fp32 (default); of rows in front of few-bit weights: fp16, or int8 as in llama.cpp",
    )
    group.add_argument("--cache-dir", metavar="DIR", help="folder of engines")


def opened(args: argparse.Namespace) -> LanguageModel:
    """Opens the model of a command, for one answer at a time. Rejects options of answers before, as opening may build
    an engine."""
    with Needs("language models", InputError, "language"):
        from pelton.language.model import LanguageModel
    answer_options(args)
    return LanguageModel(
        args.model,
        threads=args.threads,
        cache=args.kv_cache,
        context=args.context,
        sequences=1,
        level=args.level,
        precision=args.precision,
        cache_folder=args.cache_dir,
    )


def answer_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns keywords of `LanguageModel.submit`. Raises InputError for values that are out of range."""
    from pelton.language.sampling import Sampling

    sampling = {name: value for name, *_ in SAMPLING if (value := getattr(args, name)) is not None}
    Sampling(**sampling)
    return {"max_tokens": args.max_tokens, **sampling}


def main(args: argparse.Namespace) -> None:
    began = time.perf_counter()
    check_prompt(args)
    if args.audio is not None:
        transcribe(args, began)
        return
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    schema = read_schema(args.schema)
    for path in (args.session, args.save_engine):
        if path is not None:
            arrays.check_target(str(path))
    model = opened(args)
    opening = time.perf_counter() - began
    if model.decoder.encoder is not None and (args.session or args.save_engine):
        raise InputError(f"{args.model} has an encoder, beside which there are no sessions and no engines for C")
    if args.save_engine is not None:
        model.decoder.engine.save(args.save_engine)
    prompt: Any = text
    if args.chat or args.system is not None:
        system = [] if args.system is None else [{"role": "system", "content": args.system}]
        prompt = [*system, {"role": "user", "content": text}]
    if args.session is not None and args.session.exists():
        model.restore(args.session)
    answer = model.submit(prompt, stop=args.stop, schema=schema, **answer_options(args))
    texts = [piece.text for piece in shown(answer, quiet=args.json)]
    if args.session is not None:
        model.save(args.session)
    usage = answer.usage
    output.emit(
        args,
        {
            "text": "".join(texts),
            "finish_reason": answer.finish_reason,
            "tokens": {"prompt": usage.prompt, "cached": usage.cached, "completion": usage.completion},
            "seconds": {"open": opening, "first": usage.first, "all": usage.seconds},
        },
    )
    if not args.json and not args.quiet and sys.stderr.isatty():
        print(rate(answer), file=sys.stderr)


def check_prompt(args: argparse.Namespace) -> None:
    """Raises InputError without a prompt or a sound, and for options of one beside the other."""
    if args.audio is None:
        given = [name for name in ("language", "task") if getattr(args, name) is not None]
        if given:
            raise InputError(f"--{given[0]} is that of a sound: pass --audio")
        return
    names = ("prompt", "chat", "system", "stop", "schema", "session", "save_engine")
    given = [name for name in names if getattr(args, name)]
    if given:
        option = "a prompt" if given[0] == "prompt" else f"--{given[0].replace('_', '-')}"
        raise InputError(f"models of speech have no use for {option}: leave it out beside --audio")


def transcribe(args: argparse.Namespace, began: float) -> None:
    """Prints what a sound says."""
    with Needs("language models", InputError, "language"):
        from pelton.language.sound import samples_of
        from pelton.language.transcription import answers, listener

    samples = samples_of(args.audio)
    model = opened(args)
    opened_at = time.perf_counter()
    of = listener(model.scheduler, **answer_options(args))
    texts, each = list[str](), []
    for answer in answers(of, samples, args.language, args.task):
        each.append(answer)
        for piece in answer:
            text = piece.text if texts else piece.text.lstrip()
            texts += [text] if text else []
            if not args.json:
                print(text, end="", flush=True)
    if not args.json:
        print(flush=True)
    used = [answer.usage for answer in each]
    result = {
        "text": "".join(texts).rstrip(),
        "finish_reason": "length" if any(answer.finish_reason == "length" for answer in each) else "stop",
        "tokens": {part: sum(getattr(u, part) for u in used) for part in ("prompt", "cached", "completion")},
        "seconds": {"open": opened_at - began, "first": used[0].first, "all": time.perf_counter() - opened_at},
    }
    output.emit(args, result)


def shown(answer: Any, quiet: bool = False) -> Iterable[Any]:
    """Passes the pieces of an answer on, and prints them, with a line break at the end; cancels it when interrupted."""
    last = "\n"
    try:
        for piece in answer:
            if not quiet and piece.text:
                print(piece.text, end="", flush=True)
                last = piece.text
            yield piece
    finally:
        answer.cancel()
        if not quiet and not last.endswith("\n"):
            print(flush=True)


def rate(answer: Any) -> str:
    """Returns a line with the counts and the speed of an answer."""
    u = answer.usage
    later = u.seconds - u.first
    speed = f", {(u.completion - 1) / later:.1f} tokens a second" if u.completion > 1 and later > 0 else ""
    reused = f" ({u.cached} from the cache)" if u.cached else ""
    return f"[{u.prompt} tokens{reused}, first one after {u.first:.2f} s; {u.completion} new ones{speed}]"


def read_schema(text: str | None) -> Any:
    """Returns the schema of an option: a text with its kind in front, or the content of a file."""
    if text is None or text.startswith(("regex:", "lark:")):
        return text
    try:
        schema = json.loads(Path(text).read_text())
    except FileNotFoundError:
        raise InputAbsent(f"there is no schema {text}; a regular expression begins with regex:", text) from None
    except (OSError, ValueError) as e:
        raise InputError(f"{text} cannot be read as JSON: {e}") from None
    if not isinstance(schema, dict):
        raise InputError(f"{text} holds no JSON schema: expected an object")
    return schema
