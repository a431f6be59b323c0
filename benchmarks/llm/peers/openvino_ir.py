"""Times OpenVINO on a folder of optimum-intel: openvino_ir.py FOLDER THREADS TURN. Prints a line of JSON."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino
from timing import Step, measure, most_memory

folder, threads, turn = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
begin = time.perf_counter()
settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
model = openvino.Core().compile_model(f"{folder}/openvino_model.xml", "CPU", settings)
request = model.create_infer_request()
load = time.perf_counter() - begin
names = {port.get_any_name() for port in model.inputs}


def sequence(length: int) -> Step:
    request.reset_state()
    end = 0

    def step(tokens: np.ndarray) -> int:
        nonlocal end
        begin, end = end, end + len(tokens)
        inputs = {
            "input_ids": tokens.reshape(1, -1),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(begin, end)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer({name: array for name, array in inputs.items() if name in names})
        return int(request.get_output_tensor(0).data[0, -1].argmax())

    return step


print(json.dumps({**measure(sequence, turn), "load": load, "MB": most_memory()}))
