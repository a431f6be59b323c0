#!/usr/bin/env python3
"""Soaks a served language model: eight clients at once, some of which go in the middle of an answer.

    python -m benchmarks.openai.soak MODEL [--minutes 20] [--page benchmarks/openai/results.md]

All answers are greedy, and compared with those of the same questions asked one by one before. The server's memory,
threads and files at the end are about what they were after a fifth of the time. The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.serve.page import replace_part
from benchmarks.serve.served import served
from benchmarks.serve.soak import state

from .models import FIRST_START

BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"
CLIENTS, QUESTIONS, GO = 8, 24, 0.15  # GO: part of the requests whose client goes
GROWTH = {"memory kB": 24 << 10, "threads": CLIENTS, "files": CLIENTS}  # that may come on top
WORDS = "cache river engine token winter paper seven stone music garden letter bridge".split()


@dataclass
class Outcome:
    """What a client has seen. first: seconds to the first event of each stream."""

    right: int = 0
    gone: int = 0
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)


def questions(seed: int) -> list[dict[str, Any]]:
    """Returns requests, of different lengths, some of which begin alike."""
    draw = random.Random(seed)
    head = "You are asked about words. " * 6
    out = []
    for i in range(QUESTIONS):
        text = (head if i % 3 == 0 else "") + " ".join(draw.choices(WORDS, k=draw.randrange(3, 60)))
        messages = [{"role": "user", "content": text}]
        out.append({"messages": messages, "max_tokens": draw.randrange(8, 64), "temperature": 0, "ignore_eos": True})
    return out


class Asker:
    """Asks a server over one connection after the other."""

    def __init__(self, port: int, model: str):
        self.port, self.model = port, model

    def ask(self, body: dict[str, Any], go: int | None = None) -> tuple[str | None, int, float]:
        """Returns the text of a stream, its tokens, and the seconds to its first event; the text is None if the client
        goes after `go` events. Raises ValueError for an answer that is none."""
        content = json.dumps({**body, "model": self.model, "stream": True, "stream_options": {"include_usage": True}})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        begun, first, parts, tokens = time.monotonic(), 0.0, [], 0
        try:
            connection.request("POST", "/v1/chat/completions", content)
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {response.read()[:300]!r}")
            for number, line in enumerate(iter(response.readline, b"")):
                if not line.startswith(b"data: {"):
                    if line.strip() == b"data: [DONE]":
                        return "".join(parts), tokens, first
                    continue
                if go is not None and number >= 2 * go:
                    return None, 0, first
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ValueError(str(chunk))
                if chunk["choices"]:
                    text = chunk["choices"][0]["delta"].get("content") or ""
                    parts.append(text)
                    first = first or (time.monotonic() - begun if text else 0.0)
                else:
                    tokens = chunk["usage"]["completion_tokens"]
            raise ValueError("a stream without an end")
        finally:
            connection.close()


def client(asker: Asker, asked: list[dict[str, Any]], answers: list[str], end: float, seed: int, out: Outcome) -> None:
    """Asks until the end."""
    draw = random.Random(seed)
    while time.monotonic() < end:
        i = draw.randrange(len(asked))
        go = draw.randrange(1, 6) if draw.random() < GO else None
        try:
            text, tokens, first = asker.ask(asked[i], go)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
            out.wrong.append(f"question {i}: {type(e).__name__}: {e}")
            time.sleep(0.5)  # the server may be gone
            continue
        if text is None:
            out.gone += 1
        elif text != answers[i]:
            out.wrong.append(f"question {i}: {text[:80]!r} is not {answers[i][:80]!r}")
        else:
            out.right += 1
            out.tokens += tokens
            out.first.append(first)


def soak(model: Path, minutes: float, port: int, log: Path) -> tuple[list[str], list[str]]:
    """Soaks a server of a model; returns the lines of a table, and what is wrong."""
    asked = questions(1)
    options = ("--no-grpc", "--context", "1024", "--model-control", "none", "--sequences", "8")
    with served([model], *options, ports=(port, port + 1, port + 2), log=log, wait=FIRST_START) as process:
        asker = Asker(port, model.stem)
        answers = [str(asker.ask(body)[0]) for body in asked]
        begun, seconds = time.monotonic(), minutes * 60
        outcomes = [Outcome() for _ in range(CLIENTS)]
        threads = [
            threading.Thread(target=client, args=(asker, asked, answers, begun + seconds, i, out))
            for i, out in enumerate(outcomes)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 5)
        early = state(process.pid)
        for thread in threads:
            thread.join()
        late = state(process.pid)
        again = [str(asker.ask(body)[0]) for body in asked]
    wrong = [text for out in outcomes for text in out.wrong]
    wrong += [f"question {i} at the end" for i, (a, b) in enumerate(zip(answers, again)) if a != b]
    wrong += grown(early, late)
    return table(model.stem, minutes, outcomes, (early, late), len(wrong)), wrong


def grown(early: dict[str, int], late: dict[str, int]) -> list[str]:
    """Returns what has grown of the memory, threads and files of a server."""
    return [
        f"{key} grew from {early[key]} to {late[key]}" for key, more in GROWTH.items() if late[key] > early[key] + more
    ]


def table(
    name: str, minutes: float, outcomes: list[Outcome], states: tuple[dict[str, int], dict[str, int]], wrong: int
) -> list[str]:
    """Returns the lines of the page. states: of the server's process after a fifth of the time, and at the end."""
    early, late = states
    firsts = sorted(s for out in outcomes for s in out.first)
    median = statistics.median(firsts) if firsts else 0.0
    rows = {
        "model": name,
        "minutes": f"{minutes:g}",
        "answers equal to those one by one": sum(out.right for out in outcomes),
        "clients that went in the middle": sum(out.gone for out in outcomes),
        "wrong or lost": wrong,
        "tokens a second of all whole answers": f"{sum(out.tokens for out in outcomes) / (minutes * 60):.0f}",
        "ms to the first text, median": f"{median * 1e3:.0f}",
        **{f"{key}, after a fifth of the time and at the end": f"{early[key]}, {late[key]}" for key in early},
    }
    return ["| | |", "|---|--:|", *(f"| {key} | {value} |" for key, value in rows.items())]


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model", type=Path, help="a language model")
    ask.add_argument("--minutes", type=float, default=20)
    ask.add_argument("--port", type=int, default=18700, help="the first of three ports")
    ask.add_argument("--page", type=Path, help="write the table into this page")
    a = ask.parse_args()
    with tempfile.TemporaryDirectory(prefix="pelton-openai-") as name:
        lines, wrong = soak(a.model, a.minutes, a.port, Path(name) / "server.log")
    print("\n".join([*lines, *wrong[:20]]))
    if a.page is not None:
        replace_part(a.page, BEGIN, END, lines)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
