#!/usr/bin/env python3
"""Compares tokens of lines in 13 scripts, with emoji, with those of transformers and of llama.cpp.

    python -m benchmarks.llm.language_tokens --peer PYTHON [--llama LIBRARIES FILE.gguf ...] [--lines 10000]
        [--folder build/tokens] [--page benchmarks/llm/language.md]

PYTHON has transformers and tokenizers; it makes folders with tokenizers of several kinds, and records what transformers
makes of the lines. LIBRARIES is the folder of llama.cpp's libraries, which read the same GGUF files. Columns count
lines that differ: tokens; texts without special tokens, and with them; and texts that arrive token by token, where no
piece but the last may end in the middle of a character.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pelton.language.folder_tokens import folder_tokens
from pelton.language.gguf_file import GgufFile
from pelton.language.gguf_tokens import gguf_tokens
from pelton.language.tokens import INCOMPLETE, Tokens

from benchmarks.serve.page import replace_part

PEERS = Path(__file__).parent / "peers"
BEGIN, END = "<!-- tokens: begin -->", "<!-- tokens: end -->"
COLUMNS = ("tokens", "text", "with special ones", "token by token")


def streamed(tokens: Tokens, ids: list[int], text: str) -> bool:
    """True if the text arrives whole, and no piece is part of a character."""
    stream = tokens.stream()
    pieces = [stream.push(id) for id in ids]
    broken = INCOMPLETE not in text and any(INCOMPLETE in piece for piece in pieces)
    return not broken and "".join(pieces) + stream.finish() == text


def of_folder(folder: Path) -> list[int | None]:
    """Returns the lines that differ, by column; None for texts with special tokens that were not recorded."""
    answers, tokens = json.loads((folder / "answers.json").read_text()), folder_tokens(folder, None, ())
    wrong, text_wrong, whole_wrong, stream_wrong = 0, 0, 0, 0
    kept = answers["kept"]
    for i, (line, ids, text) in enumerate(zip(*(answers[name] for name in ("lines", "ids", "decoded")))):
        wrong += tokens.encode(line) != ids
        text_wrong += text is not None and tokens.decode(ids) != text
        whole_wrong += kept is not None and tokens.decode(ids, special=True) != kept[i]
        stream_wrong += not streamed(tokens, ids, tokens.decode(ids) if text is None else text)
    return [wrong, text_wrong, None if kept is None else whole_wrong, stream_wrong]


def of_file(path: Path, answers: list[dict[str, Any]]) -> list[int | None]:
    """Returns the lines that differ, by column; llama.cpp's decoded text is not compared."""
    tokens, wrong, stream = gguf_tokens(GgufFile(path)), 0, 0
    for answer in answers:
        wrong += tokens.encode(answer["line"]) != answer["ids"]
        stream += not streamed(tokens, answer["ids"], tokens.decode(answer["ids"]))
    return [wrong, None, None, stream]


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", required=True)
    parser.add_argument("--llama", nargs="+", type=Path, default=[], metavar="PATH")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path("build/tokens"))
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    count, rows = str(args.lines), dict[str, list[int | None]]()
    subprocess.run([args.peer, str(PEERS / "tokenizers_of_folders.py"), str(args.folder), count], check=True)
    subprocess.run([args.peer, str(PEERS / "sentencepiece_folders.py"), str(args.folder), count], check=True)
    for answers in sorted(args.folder.glob("*/answers.json")):
        rows[f"folder, {answers.parent.name}, transformers"] = [*of_folder(answers.parent)]
    libraries, *files = args.llama or [Path()]
    for file in (*files, *sorted(args.folder.glob("*.gguf"))) if args.llama else ():
        out = args.folder / f"{file.stem}.json"
        command = [args.peer, str(PEERS / "llama_tokens.py"), str(file), str(libraries), count, str(out)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        rows[f"{file.name}, llama.cpp"] = of_file(file, json.loads(out.read_text()))
    lines = [f"Lines that differ, of {args.lines}:", "", f"| Tokens, peer | {' | '.join(COLUMNS)} |"]
    lines.append(f"|---|{'--:|' * len(COLUMNS)}")
    lines += [f"| {name} | {' | '.join('' if c is None else str(c) for c in row)} |" for name, row in rows.items()]
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)
    wrong = sum(any(row) for row in rows.values())
    return f"{wrong} of {len(rows)} tokenizers differ" if wrong else None


if __name__ == "__main__":
    sys.exit(main())
