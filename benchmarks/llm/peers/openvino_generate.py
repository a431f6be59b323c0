"""Times openvino-genai on a GGUF file: openvino_generate.py FILE THREADS TURN. Prints a line of JSON.

The same work as timing.py describes; the times of tokens are openvino-genai's own. It decodes greedily.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai
from timing import Result, best, most_memory, unseen

path, threads, turn = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def run(pipeline: openvino_genai.LLMPipeline, length: int, count: int, seed: int) -> tuple[float, list[float]]:
    """Returns the seconds to the first token, and of each token after it."""
    ids = unseen(length, [turn, length, seed])[None].astype(np.int64)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = count + 1
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
    tokens = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    metrics = pipeline.generate(tokens, config).perf_metrics
    return metrics.get_ttft().mean / 1e3, [t / 1e6 for t in metrics.raw_metrics.m_durations]


def measure() -> Result:
    start = time.perf_counter()
    pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads, NUM_STREAMS=1)
    load = time.perf_counter() - start
    result, (first, _) = dict[str, float](), run(pipeline, 16, 1, seed=0)
    for length in (128, 512):
        result[f"prefill {length}"] = length / min(run(pipeline, length, 1, seed)[0] for seed in (1, 2))
    for length, count in ((16, 40), (512, 16)):
        result[f"decode after {length}"] = best(run(pipeline, length, count, seed=3)[1])
    return {**result, "first token": first, "load": load, "MB": most_memory()}


print(json.dumps(measure()))
