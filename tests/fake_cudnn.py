"""A fake cuDNN in Python: descriptors that check their arguments as the library's manual defines them, engines to
propose, and convolutions in numpy, in f64."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from pelton.ops import get

TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 9: np.dtype(ml_dtypes.bfloat16)}
FORMS: dict[int, Any] = {
    0: ctypes.c_void_p,
    1: ctypes.c_int,
    2: ctypes.c_bool,
    3: ctypes.c_int64,
    4: ctypes.c_float,
    6: ctypes.c_void_p,
    7: ctypes.c_int,
    8: ctypes.c_int,
    11: ctypes.c_int,
    14: ctypes.c_int,
    15: ctypes.c_void_p,
    19: ctypes.c_int,
}
# descriptor → attribute → its type; all must be there when it is made
WANTED = {
    0: {0: 14, 1: 1},
    1: {100: 1, 101: 7, 102: 3, 103: 3, 104: 3, 105: 3, 106: 3},
    4: {200: 8, 201: 15},
    5: {400: 0, 401: 15},
    10: {700: 4, 701: 4, 702: 15, 703: 15, 704: 15, 705: 15},
    13: {750: 15, 751: 15, 753: 15},
    15: {800: 0, 801: 15},
    16: {1000: 3, 1001: 6, 1003: 6},
    17: {900: 3, 901: 1, 902: 3, 903: 3, 906: 3, 907: 2},
}
OPTIONAL = {13: {752: 15}}
# The engines proposed for every convolution: their notes on numbers, and on what they do. All but the third and the
# last one are fit for use.
ENGINES: list[tuple[list[int], list[int]]] = [([0], []), ([0, 5], []), ([0], [0]), ([0], [3]), ([0, 4], [])]
FIT = [0, 3]
WORKSPACE = 4096  # bytes that an engine wants, times its number


class Refused(Exception):
    """With a status."""


class FakeCudnn:
    """Has the functions of the library that Pelton calls. fails: function → the status that it gives. `live`: things
    that nobody has given back."""

    def __init__(
        self,
        version: int = 92800,
        fails: dict[str, int] | None = None,
        engines: Sequence[tuple[list[int], list[int]]] = ENGINES,
    ):
        self.version, self.fails, self.engines = version, fails or {}, engines
        self.things: dict[int, dict[Any, Any]] = {}
        self.handles, self.number, self.said, self.stream = set[int](), 0x100, b"", None

    @property
    def live(self) -> int:
        return len(self.things) + len(self.handles)

    def __getattr__(self, name: str):
        if not name.startswith("cudnn"):
            raise AttributeError(name)

        def function(*args: Any) -> int:
            if status := self.fails.get(name):
                self.said = b"made to fail"
                return status
            try:
                getattr(self, "_" + name.removeprefix("cudnn"))(*args)
            except Refused as e:
                self.said = str(e).encode()
                return 2000
            return 0

        return function

    def cudnnGetVersion(self) -> int:
        return self.version

    def cudnnGetLastErrorString(self, into: Any, size: int) -> None:
        into.value = self.said[: size - 1]

    def cudnnDestroy(self, handle: Any) -> int:
        self.handles.remove(handle.value)
        return 0

    def cudnnBackendDestroyDescriptor(self, handle: Any) -> int:
        del self.things[handle.value]
        return 0

    def _new(self) -> int:
        self.number += 1
        return self.number

    def _Create(self, into: Any) -> None:
        into._obj.value = self._new()
        self.handles.add(into._obj.value)

    def _SetStream(self, handle: Any, stream: int) -> None:
        assert handle.value in self.handles
        self.stream = stream

    def _BackendCreateDescriptor(self, kind: int, into: Any) -> None:
        into._obj.value = self._new()
        self.things[into._obj.value] = {"kind": kind, "made": kind in (2, 3)}  # these are filled in by others

    def _BackendSetAttribute(self, handle: Any, attribute: int, kind: int, count: int, array: Any) -> None:
        thing = self.things[handle.value]
        known = {**WANTED[thing["kind"]], **OPTIONAL.get(thing["kind"], {})}
        if thing["made"] or known.get(attribute) != kind or not isinstance(array, FORMS[kind] * count):
            raise Refused(f"attribute {attribute} of type {kind}, of descriptor {thing['kind']}")
        thing[attribute] = list(array)
        if kind == 15 and any(not self.things[d]["made"] for d in array):
            raise Refused("it is not finalized")

    def _BackendFinalize(self, handle: Any) -> None:
        thing = self.things[handle.value]
        missing = WANTED[thing["kind"]].keys() - thing.keys()
        if missing or thing["made"]:
            raise Refused(f"descriptor {thing['kind']} lacks {sorted(missing)}")
        thing["made"] = True

    def _BackendGetAttribute(self, handle: Any, attribute: int, kind: int, most: int, count: Any, array: Any) -> None:
        thing = self.things[handle.value]
        assert thing["made"]
        if attribute == 202:  # what a heuristic proposes
            count._obj.value = len(self.engines)
            for i, config in enumerate(list(array)[: len(self.engines)]):
                self.things[config].update(engine=i, graph=thing[201][0])
            return
        if attribute == 300:  # the engine of a proposal
            count._obj.value = 1
            self.things[array[0]]["engine"] = thing["engine"]
            return
        found = {
            1303: lambda: self.engines[thing["engine"]][0],
            1305: lambda: self.engines[thing["engine"]][1],
            402: lambda: [WORKSPACE * self.things[thing[401][0]]["engine"]],
        }[attribute]()
        count._obj.value = len(found)
        array[: len(found)] = found

    def _BackendExecute(self, handle: Any, plan: Any, pack: Any) -> None:
        config, given = self.things[self.things[plan.value][401][0]], self.things[pack.value]
        pointers = dict(zip(given[1000], given[1001], strict=True))
        if config["engine"] and not given[1003][0]:
            raise Refused("no workspace")
        between: dict[int, np.ndarray] = {}

        def tensor(name: int) -> tuple[int, np.ndarray]:
            """A tensor's own name, and what it has."""
            t = self.things[name]
            if t[907][0]:
                return t[906][0], between.get(t[906][0], np.zeros(0))
            dtype, shape = TYPES[t[901][0]], t[902]
            assert pointers[t[906][0]] % t[900][0] == 0, "an operand is not aligned as it was said to be"
            span = 1 + sum((n - 1) * s for n, s in zip(shape, t[903]))
            memory = np.frombuffer((ctypes.c_char * (span * dtype.itemsize)).from_address(pointers[t[906][0]]), dtype)
            return t[906][0], as_strided(memory, shape, [s * dtype.itemsize for s in t[903]])

        def put(name: int, array: np.ndarray) -> None:
            t = self.things[name]
            assert tuple(t[902]) == array.shape, f"a tensor of {t[902]} gets {array.shape}"
            if t[907][0]:
                between[t[906][0]] = array
            else:
                tensor(name)[1][...] = array.astype(TYPES[t[901][0]])

        for op in self.things[config["graph"]][801]:
            o = self.things[op]
            if o["kind"] == 10:
                how, (_, x), (_, w) = self.things[o[702][0]], tensor(o[704][0]), tensor(o[703][0])
                assert how[101] == [1] and how[100] == [0] and o[700] == [1.0] and o[701] == [0.0] and how[106] == [2]
                put(
                    o[705][0],
                    get("convolution").reference(
                        x.astype(np.float64),
                        w.astype(np.float64),
                        np.zeros(len(w)),
                        strides=tuple(how[103]),
                        pads=(*how[105], *how[104]),
                        dilations=tuple(how[102]),
                        group=x.shape[1] // w.shape[1],
                    ),
                )
            else:
                mode, (_, of) = self.things[o[750][0]][0], tensor(o[751][0])
                put(o[753][0], np.maximum(of, 0) if mode == [100] else of + tensor(o[752][0])[1].astype(np.float64))
