"""HDF5 files that nobody has to trust: no links, no data outside of the file, no more of it than its size suggests."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from pelton.errors import ModelError

FREE, RATIO = 1 << 28, 20  # bytes of arrays that are read of any file, and times its own size
T = TypeVar("T")


class Hdf5:
    """An open file. name: what messages call it. Whatever it lacks, or has of another kind, is a ModelError."""

    def __init__(self, source: Any, name: str):
        import h5py

        self.name, self._kinds = name, h5py
        in_memory = isinstance(source, (bytes, bytearray, memoryview))
        opened = io.BytesIO(source) if in_memory else source
        self.left = max(FREE, RATIO * (len(source) if in_memory else os.path.getsize(source)))
        with self._faults():
            self.file = h5py.File(opened, "r")

    def close(self) -> None:
        self.file.close()

    def group(self, path: str, parent: Any = None) -> Any:
        """The group at a path, below the parent; None where there is none."""
        at = self.file if parent is None else parent
        for part in path.split("/"):
            at = self._child(at, part, self._kinds.Group)
            if at is None:
                return None
        return at

    def names(self, group: Any) -> list[str]:
        with self._faults():
            return list(group)

    def array(self, group: Any, path: str) -> np.ndarray:
        """The elements of the dataset at a path below a group."""
        folder, _, last = path.rpartition("/")
        at = self.group(folder, group) if folder else group
        found = None if at is None else self._child(at, last, self._kinds.Dataset)
        if found is None:
            raise ModelError(f"{self.name} is damaged: it lists {path!r}, which it does not have")
        with self._faults():
            if found.external or found.is_virtual:
                raise ModelError(f"{self.name} has elements of {path!r} in another file, which is refused")
            if found.dtype.kind not in "fiub":
                raise ModelError(f"{self.name} has {path!r} of {found.dtype}, where numbers are expected")
            self.left -= math.prod(found.shape) * found.dtype.itemsize
            if self.left < 0:
                raise ModelError(f"{self.name} would expand to far more than its size ({path!r}); it is refused")
            return np.asarray(found[()])

    def attribute(self, of: Any, name: str) -> Any:
        """A text, or a list of texts; None where there is none."""
        with self._faults():
            found = of.attrs.get(name)
            if found is None or isinstance(found, (str, bytes)):
                return _text(found)
            return [_text(text) for text in np.asarray(found).reshape(-1).tolist()]

    def texts(self, of: Any, name: str) -> list[str]:
        """A list of texts that Keras may have spread over attributes with numbers behind the name."""
        found = self.attribute(of, name)
        if found is None:
            found, i = [], 0
            while (part := self.attribute(of, f"{name}{i}")) is not None:
                found, i = [*found, *part], i + 1
        return list(map(str, found))

    def _child(self, group: Any, name: str, kind: Any) -> Any:
        with self._faults():
            link = group.get(name, getlink=True)
            if link is None:
                return None
            if not isinstance(link, self._kinds.HardLink):
                raise ModelError(f"{self.name} has a link, {name!r}, to somewhere else; it is refused")
            found = group[name]
        if not isinstance(found, kind):
            raise ModelError(f"{self.name} is damaged: {name!r} should be a {kind.__name__.lower()}")
        return found

    @contextmanager
    def _faults(self):
        """What h5py raises for damaged files, as a ModelError."""
        try:
            yield
        except ModelError:
            raise
        except (
            OSError,
            RuntimeError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            MemoryError,
        ) as e:
            raise ModelError(f"{self.name} is a truncated or damaged HDF5 file: {e}") from None


def _text(given: Any) -> Any:
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else given


def reading(source: Any, name: str, read: Callable[[Hdf5], T]) -> T:
    """read(file) of an HDF5 file (a path or bytes), which is closed behind it."""
    file = Hdf5(source, name)
    try:
        return read(file)
    finally:
        file.close()
