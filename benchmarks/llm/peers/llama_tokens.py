"""Writes what llama.cpp makes of lines: llama_tokens.py FILE LIBRARIES COUNT OUT. LIBRARIES has libllama.so."""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import c_bool, c_char, c_char_p, c_int32, c_void_p
from pathlib import Path

from scripts import lines


class ModelParameters(ctypes.Structure):
    _fields_ = [("bytes", c_char * 512)]


def library(folder: Path, name: str) -> ctypes.CDLL:
    files = sorted(folder.glob(f"lib{name}.so*")) + sorted(folder.glob(f"lib{name}.v*.so"))
    if not files:
        raise FileNotFoundError(f"{folder} has no lib{name}")
    return ctypes.CDLL(str(files[0]), mode=ctypes.RTLD_GLOBAL)


def main(path: str, folder: Path, count: int, out: Path) -> None:
    library(folder, "ggml-base")
    ggml, llama = library(folder, "ggml"), library(folder, "llama")
    ggml.ggml_backend_load.restype = c_void_p
    ggml.ggml_backend_load(str(folder / "libggml-cpu-x64.so").encode())  # of any CPU
    llama.llama_backend_init()
    llama.llama_model_default_params.restype = ModelParameters
    llama.llama_model_load_from_file.restype = c_void_p
    llama.llama_model_load_from_file.argtypes = c_char_p, ModelParameters
    llama.llama_model_get_vocab.restype, llama.llama_model_get_vocab.argtypes = c_void_p, [c_void_p]
    llama.llama_tokenize.argtypes = c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        raise OSError(f"llama.cpp cannot load {path}")
    vocabulary, answers = llama.llama_model_get_vocab(model), []
    for text in lines(count, 2):
        data = text.encode()
        room = (c_int32 * (len(data) + 16))()
        n = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), True, True)
        answers.append(dict(line=text, ids=list(room[:n])))
    out.write_text(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
