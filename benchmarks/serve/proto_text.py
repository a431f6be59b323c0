"""A reader of protocol buffers in text, as tests have them, and of TensorFlow's tensors in it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

TOKEN = re.compile(r'\s*(?:("(?:\\.|[^"\\])*")|([{}:])|([^\s{}:"]+))')
# TensorFlow's type → Pelton's name of it, and the field of its values
TENSORS = {
    "DT_INT32": ("i32", "int_val"),
    "DT_INT64": ("i64", "int64_val"),
    "DT_FLOAT": ("f32", "float_val"),
    "DT_DOUBLE": ("f64", "double_val"),
    "DT_STRING": ("string", "string_val"),
    "DT_BOOL": ("bool", "bool_val"),
}
DTYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64, "string": object, "bool": np.bool_}
Message = dict[str, list[Any]]


def parse(text: str) -> Message:
    """Reads a message: the values of each field, texts, numbers and messages. Raises ValueError at what is none."""
    found = [m.groups() for m in TOKEN.finditer(text.strip())]
    found.reverse()
    return _fields(found, False)


def _fields(left: list[tuple[str, str, str]], inner: bool = True) -> Message:
    message: Message = {}
    while left:
        _, symbol, name = left.pop()
        if symbol == "}" and inner:
            return message
        if not name or not left:
            raise ValueError(f"expected a field's name, found {symbol or 'a text'!r}")
        text, symbol, _ = left.pop()
        if symbol == "{":
            message.setdefault(name, []).append(_fields(left))
            continue
        if symbol != ":" or not left:
            raise ValueError(f"expected a value of field {name!r}")
        text, _, word = left.pop()
        message.setdefault(name, []).append(text[1:-1] if text else _value(word))
    if inner:
        raise ValueError("a message lacks its closing brace")
    return message


def _value(word: str) -> Any:
    if word.startswith("DT_"):
        return word
    if word in ("true", "false"):
        return word == "true"
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)


def dtype_of(message: Message) -> str:
    """Returns Pelton's name of a tensor's type. Raises ValueError for types that no engine has."""
    name = message["dtype"][0]
    if name not in TENSORS:
        raise ValueError(f"no engine has tensors of {name}")
    return TENSORS[name][0]


def tensor_of(message: Message) -> np.ndarray:
    """Returns a tensor's values. Raises ValueError for types that no engine has."""
    dtype = dtype_of(message)
    sizes = [d["size"][0] for shape in message.get("tensor_shape", []) for d in shape.get("dim", [])]
    values = message.get(TENSORS[message["dtype"][0]][1], [])
    array = np.empty(len(values), DTYPES[dtype])
    array[:] = values
    return array.reshape(sizes)
