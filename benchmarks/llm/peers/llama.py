"""Times llama.cpp on a GGUF file: llama.py FILE THREADS TURN LIBRARY. Prints a line of JSON.

LIBRARY is the libggml-cpu-VARIANT.so to use, beside llama.cpp's other libraries (npm pack @node-llama-cpp/linux-x64).
Only the first fields of its structs are named here, and bytes behind them are as its own functions return them.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_float, c_int32, c_uint32, c_void_p
from pathlib import Path

import numpy as np
from timing import CAPACITY, Step, measure, most_memory

path, threads, turn, variant = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])


class ModelParameters(Structure):
    _fields_ = [("bytes", c_char * 512)]


class ContextParameters(Structure):
    _fields_ = [("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("bytes", c_char * 500)]


class Batch(Structure):
    _fields_ = [("n_tokens", c_int32), ("token", c_void_p), ("others", c_void_p * 5)]


def library(name: str) -> ctypes.CDLL:
    """Loads a library, with or without a version behind its name."""
    files = sorted(variant.parent.glob(f"lib{name}.so*")) + sorted(variant.parent.glob(f"lib{name}.v*.so"))
    if not files:
        raise FileNotFoundError(f"{variant.parent} has no lib{name}")
    return ctypes.CDLL(str(files[0]), mode=ctypes.RTLD_GLOBAL)


library("ggml-base")
ggml, llama = library("ggml"), library("llama")
for name, result, *arguments in (
    ("llama_model_default_params", ModelParameters),
    ("llama_context_default_params", ContextParameters),
    ("llama_model_load_from_file", c_void_p, c_char_p, ModelParameters),
    ("llama_init_from_model", c_void_p, c_void_p, ContextParameters),
    ("llama_set_n_threads", None, c_void_p, c_int32, c_int32),
    ("llama_model_get_vocab", c_void_p, c_void_p),
    ("llama_vocab_n_tokens", c_int32, c_void_p),
    ("llama_batch_get_one", Batch, c_void_p, c_int32),
    ("llama_decode", c_int32, c_void_p, Batch),
    ("llama_get_logits_ith", POINTER(c_float), c_void_p, c_int32),
    ("llama_get_memory", c_void_p, c_void_p),
    ("llama_memory_clear", None, c_void_p, c_bool),
):
    function = getattr(llama, name)
    function.restype, function.argtypes = result, arguments


def loaded(handle: int | None, what: object) -> int:
    if not handle:
        raise OSError(f"llama.cpp cannot load {what}")
    return handle


quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)(lambda level, text, data: None)
llama.llama_log_set(quiet, None)
ggml.ggml_backend_load.restype = c_void_p
loaded(ggml.ggml_backend_load(str(variant).encode()), variant)
llama.llama_backend_init()
begin = time.perf_counter()
model = loaded(llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params()), path)
parameters = llama.llama_context_default_params()
parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = CAPACITY, 512, 512
context = loaded(llama.llama_init_from_model(model, parameters), path)
llama.llama_set_n_threads(context, threads, threads)
load = time.perf_counter() - begin
vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def sequence(length: int) -> Step:
    llama.llama_memory_clear(llama.llama_get_memory(context), True)

    def step(tokens: np.ndarray) -> int:
        ids = tokens.astype(np.int32)
        status = llama.llama_decode(context, llama.llama_batch_get_one(ids.ctypes.data, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode returned {status} for {len(ids)} tokens")
        return int(np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (vocabulary,)).argmax())

    return step


print(json.dumps({**measure(sequence, turn), "load": load, "MB": most_memory()}))
