"""Times `pelton.LanguageModel` on a file: pelton_generate.py FILE THREADS TURN PRECISION. Prints a line of JSON.

The same work as timing.py describes, through `submit`, as `generate` does it: with sampling and text. A token's time is
from the piece of text before it to its own.
"""

from __future__ import annotations

import json
import sys
import time

from timing import Result, best, most_memory, unseen

import pelton
from pelton.language import GenerationRequest, Sampling

path, threads, turn, precision = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
SAMPLING = Sampling(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, seed=0)


def run(model: pelton.LanguageModel, length: int, count: int, seed: int) -> tuple[float, list[float]]:
    """Returns the seconds to the first piece of an answer, and of each token after it."""
    prompt = tuple(unseen(length, [turn, length, seed]).tolist())
    start = time.perf_counter()
    answer = model.submit(GenerationRequest(prompt, max_tokens=count + 1, sampling=SAMPLING, ignore_eos=True))
    times, before, first = list[float](), start, 0.0
    for piece in answer:
        now = time.perf_counter()
        if first:
            times += [(now - before) / len(piece.tokens)] * len(piece.tokens)
        first, before = first or now - start, now
    return first, times


def measure() -> Result:
    start = time.perf_counter()
    model = pelton.LanguageModel(path, threads=threads, precision=precision, speculate=False)
    load = time.perf_counter() - start
    result, (first, _) = dict[str, float](), run(model, 16, 0, seed=0)
    for length in (128, 512):
        result[f"prefill {length}"] = length / min(run(model, length, 0, seed)[0] for seed in (1, 2))
    for length, count in ((16, 40), (512, 16)):
        result[f"decode after {length}"] = best(run(model, length, count, seed=3)[1])
    model.close()
    return {**result, "first token": first, "load": load, "MB": most_memory()}


print(json.dumps(measure()))
