"""The response cache: outputs by the hash of the inputs, bounded in bytes; the least recently used go first."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from .datatypes import to_raw

Outputs = dict[str, np.ndarray]


class ResponseCache:
    """Outputs of models whose configuration enables the cache. limit: bytes of all outputs."""

    def __init__(self, limit: int):
        self.limit, self.bytes = limit, 0
        self._entries: OrderedDict[bytes, tuple[Outputs, int]] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def key(model: object, inputs: Mapping[str, np.ndarray]) -> bytes:
        """Hashes a request's inputs: names, types, shapes and bytes. model: a loaded version, which no other equals."""
        digest = hashlib.blake2b(str(id(model)).encode(), digest_size=32)
        for name in sorted(inputs):
            array = np.asarray(inputs[name])
            digest.update(f"\0{name}\0{array.dtype.str}{array.shape}\0".encode())
            digest.update(to_raw(array))
        return digest.digest()

    def get(self, key: bytes) -> Outputs | None:
        """Returns the outputs of an equal request; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, outputs: Outputs) -> None:
        """Keeps outputs, and drops the least recently used ones beyond the limit."""
        size = sum(a.nbytes if a.dtype.kind != "O" else sum(len(str(v)) + 64 for v in a.flat) for a in outputs.values())
        if size > self.limit:
            return
        # outputs of a batch are views of it
        kept = {name: a if a.base is None else a.copy() for name, a in outputs.items()}
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = kept, size
            self.bytes += size
            while self.bytes > self.limit:
                self.bytes -= self._entries.popitem(last=False)[1][1]
