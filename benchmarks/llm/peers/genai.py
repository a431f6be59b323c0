"""Times onnxruntime-genai on a folder: genai.py FOLDER THREADS TURN. Prints a line of JSON."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime_genai as genai

folder, threads, turn = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = genai.Config(folder)
config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
model = genai.Model(config)


def run(length: int, count: int) -> tuple[float, list[float]]:
    tokens = np.random.default_rng(100 * turn + length).integers(300, 20000, length).astype(np.int32)
    parameters = genai.GeneratorParams(model)
    total = length + count + 1
    parameters.set_search_options(max_length=total, min_length=total, do_sample=False)
    generator = genai.Generator(model, parameters)
    start = time.perf_counter()
    generator.append_tokens(tokens)
    generator.generate_next_token()
    first, times = time.perf_counter() - start, []
    for _ in range(count):
        start = time.perf_counter()
        generator.generate_next_token()
        times.append(time.perf_counter() - start)
    return first, times


result = {}
for length, count in ((128, 0), (512, 16), (16, 40)):
    first, times = run(length, count)
    if length > 16:
        result[f"prefill {length}"] = length / first
    if count:
        result[f"decode after {length}"] = 1 / min(float(np.mean(times[i : i + 8])) for i in range(len(times) - 7))
with open("/proc/self/status") as status:
    result["MB"] = int(status.read().split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps(result))
