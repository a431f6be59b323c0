"""Times onnxruntime-genai on a folder: genai.py FOLDER THREADS TURN. Prints a line of JSON."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime_genai as genai
from timing import Step, measure, most_memory

folder, threads, turn = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
begin = time.perf_counter()
config = genai.Config(folder)
config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
model = genai.Model(config)
load = time.perf_counter() - begin


def sequence(length: int) -> Step:
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
    generator = genai.Generator(model, parameters)

    def step(tokens: np.ndarray) -> int:
        if len(tokens) > 1:  # a single one is that which the generator chose itself
            generator.append_tokens(tokens.astype(np.int32))
        generator.generate_next_token()
        return int(generator.get_next_tokens()[0])

    return step


print(json.dumps({**measure(sequence, turn), "load": load, "MB": most_memory()}))
