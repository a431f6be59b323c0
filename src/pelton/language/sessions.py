"""Files of sessions: tokens of earlier prompts and answers with their caches.

A file is numpy's .npz: `digest`, of the model and its build, `format`, and for each sequence i `i.tokens` and
`i.NAME` for every cache, [1, heads, tokens, size].
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.errors import InputAbsent, InputError
from pelton.system import files

from .places import SequencePlace

FORMAT = 1
OVERHEAD = 1 << 20  # bytes of headers
DAMAGED = (zipfile.BadZipFile, zlib.error, RuntimeError)  # RuntimeError: of what zipfile does not know, or is encrypted


def write_session(path: str | os.PathLike[str], digest: str, places: Sequence[SequencePlace]) -> None:
    """Writes what these places have, in their order. Raises OSError."""
    content: dict[str, Any] = {"format": np.array(FORMAT), "digest": np.array(digest)}
    for i, place in enumerate(places):
        content[f"{i}.tokens"] = np.array(place.ids[: place.exact], np.int64)
        for name, a in place.sequence.state.arrays.items():
            content[f"{i}.{name}"] = a[:, :, : place.exact]

    def put(handle: int) -> None:
        with os.fdopen(os.dup(handle), "wb") as f:
            np.savez(f, **content)

    files.make(path, put)


def read_session(
    path: str | os.PathLike[str], digest: str, like: Mapping[str, np.ndarray], vocabulary: int, most: int
) -> list[tuple[list[int], dict[str, np.ndarray]]]:
    """Returns tokens and caches of each sequence of a file.

    like: caches of an empty sequence, [1, heads, capacity, size]. most: sequences. Raises InputError for files that are
    damaged, of another model, or larger than such sequences.
    """
    shown = os.fspath(path)
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"PK":  # numpy takes other files for pickles
                raise InputError(f"{shown!r} holds no session: it is not of the format .npz")
        with np.load(path, allow_pickle=False) as content:
            size = sum(entry.file_size for entry in content.zip.infolist())
            if size > most * sum(a.nbytes for a in like.values()) + OVERHEAD:
                raise InputError(f"{shown!r} is larger than all caches of this model: it is no session of it")
            if int(content["format"]) != FORMAT:
                raise InputError(f"{shown!r} is a session of another version of Pelton")
            if str(content["digest"]) != digest:
                raise InputError(f"{shown!r} is a session of another model, or of another build of it")
            count = sum(name.endswith(".tokens") for name in content.files)
            out = []
            for i in range(count):
                caches = {name: content[f"{i}.{name}"] for name in like}
                out.append((content[f"{i}.tokens"].tolist(), caches))
    except FileNotFoundError:
        raise InputAbsent(f"there is no session {shown!r}", shown) from None
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, *DAMAGED) as e:
        raise InputError(f"{shown!r} holds no session: {e}") from None
    for tokens, caches in out:
        _check(shown, tokens, caches, like, vocabulary)
    return out


def _check(
    path: str, tokens: Any, caches: Mapping[str, np.ndarray], like: Mapping[str, np.ndarray], vocabulary: int
) -> None:
    if not isinstance(tokens, list) or not all(isinstance(t, int) and 0 <= t < vocabulary for t in tokens):
        raise InputError(f"{path!r} holds no session: its tokens are not those of this model")
    for name, a in caches.items():
        b = like[name]
        expected = (*b.shape[:2], len(tokens), *b.shape[3:])
        if a.dtype != b.dtype or a.shape != expected or len(tokens) > b.shape[2]:
            raise InputError(
                f"{path!r} holds no session of this model: {name!r} is {a.dtype}{[*a.shape]} there, expected"
                f" {b.dtype}{[*expected]}"
            )
