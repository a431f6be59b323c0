"""Calibration batches: arrays by name, checked against a model's inputs, and cut or joined to its sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pelton.backends.arrays import check_names
from pelton.engine.plan import Port
from pelton.errors import InputError
from pelton.ir import dims
from pelton.ir.graph import Graph, Value, optimum_sizes, sizes_of, symbols
from pelton.ir.types import STRING

from .sources import CalibrationSource, host_array

Feed = dict[str, np.ndarray]


class CalibrationBatches:
    """The batches of a source, as a graph takes them: arrays by name, contiguous, with its types and sizes.

    An item that fits unchanged is a batch, unless the source declares its first axes as samples. Otherwise an array has
    samples along the first axis of the input, or along a further axis in front of the input's. They are cut, and joined
    across items, into batches of the input's size, or of its optimum if that is dynamic. A last batch that is too small
    is filled up with earlier samples, which count twice.

    total: the number of batches if known, else 0. samples: how many there were so far; a batch whose inputs differ in
    the length of the first axis is one. alike: True if all of these are equal. Iterating raises InputError with the
    batch for arrays that do not fit, for NaN and infinite values, for inputs with different numbers of samples, and for
    an empty source.
    """

    def __init__(self, source: CalibrationSource, graph: Graph):
        self.source, self.graph, self.total = source, graph, 0
        self.ports = [Port(v.name, v.type.dtype.value, v.type.shape) for v in graph.inputs]
        self.samples, self.alike = 0, True
        self._stream = self._cut()
        self._first: Feed = {}  # the first sample

    def __iter__(self) -> Iterator[Feed]:
        return self

    def __next__(self) -> Feed:
        try:
            feed = next(self._stream)
        except StopIteration:
            if not self.samples:
                raise InputError("the calibration data is empty; expected at least one batch of inputs") from None
            raise
        rows = _rows(feed)
        self._first = self._first or {name: a[:1].copy() for name, a in rows.items()}
        self.samples += len(next(iter(rows.values())))
        self.alike = self.alike and all(_repeats(a, self._first[name]) for name, a in rows.items())
        return feed

    def _cut(self) -> Iterator[Feed]:
        """Yields batches that fit."""
        cutters: list[_Cutter] = []
        whole: Feed = {}  # the last batch that fit unchanged
        for number, item in enumerate(self.source.stream, 1):
            where = f"of calibration batch {number}" if self.source.items != 1 else "of the calibration data"
            arrays = self._arrays(item, where)
            if not cutters and not self.source.samples and self._fits({n: a.shape for n, a in arrays.items()}):
                self.total = self.source.items or 0
                whole = {name: np.array(a) for name, a in arrays.items()}
                yield whole
                continue
            if not cutters:
                cutters = self._cutters(arrays, where)
                for cutter in cutters:
                    cutter.follow(whole)
                self.total = self._count(cutters, arrays)
            for cutter in cutters:
                cutter.add(arrays[cutter.name], where)
            while all(cutter.full for cutter in cutters) and not all(cutter.constant for cutter in cutters):
                yield {cutter.name: cutter.take() for cutter in cutters}
            for cutter in cutters:
                cutter.detach()
        yield from self._rest(cutters)

    def _count(self, cutters: list[_Cutter], arrays: Feed) -> int:
        """Returns the number of batches, or 0, from the first item."""
        varying = [c for c in cutters if not c.constant]
        if not varying:
            return 0
        rows = self.source.rows or (len(arrays[varying[0].name]) if self.source.items == 1 else 0)
        return math.ceil(rows / varying[0].unit)

    def _rest(self, cutters: list[_Cutter]) -> Iterator[Feed]:
        """Yields the rest when the source ends: one smaller batch if the model takes it, or one filled up."""
        varying = [c for c in cutters if not c.constant]
        if cutters and not varying:
            yield {c.name: c.take() for c in cutters}
        if not any(len(c.pending) for c in varying):
            return
        if any(c.full or not len(c.pending) for c in varying):
            counts = ", ".join(f"{c.seen / c.unit:g} of {c.name!r}" for c in varying)
            raise InputError(f"the calibration data has different numbers of batches: {counts}; pass equal numbers")
        feed = {c.name: np.asarray(c.pending, order="C") for c in cutters}
        if not self._fits({name: a.shape for name, a in feed.items()}):
            few = [c for c in varying if c.seen < c.unit]
            if few:
                raise InputError(
                    f"the calibration data has {few[0].seen} samples of input {few[0].name!r}, but the model's"
                    f" batch is {few[0].unit}; pass at least one full batch"
                )
            feed = {c.name: c.filled_up() for c in cutters}
            if _rows(feed) is feed:
                self.samples -= varying[0].unit - len(varying[0].pending)  # those of the batch before
        yield feed

    def _arrays(self, item: Mapping[str, Any], where: str) -> Feed:
        """Returns the arrays of an item, after checks of names, types and values."""
        check_names("input", self.ports, item, all_of_them=True)
        arrays = {}
        for v in self.graph.inputs:
            what = f"input {v.name!r} {where}"
            array = host_array(item[v.name], what)
            _check_type(array, v, what)
            if not array.size:
                raise InputError(f"{what} is empty: {list(array.shape)}")
            if v.type.dtype.is_float:
                _check_finite(array, what)
            arrays[v.name] = array
        return arrays

    def _fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """True if the model takes inputs of these shapes."""
        try:
            sizes = sizes_of(self.graph, shapes)
        except (ValueError, KeyError):
            return False
        return all(s.minimum <= sizes.get(s.name, s.optimum) <= s.maximum for s in symbols(self.graph))

    def _cutters(self, arrays: Feed, where: str) -> list[_Cutter]:
        """Decides from the first arrays how to cut each input. InputError for shapes that do not fit."""
        sizes = optimum_sizes(self.graph)
        if any(arrays[v.name].ndim == v.type.rank + 1 for v in self.graph.inputs):
            sizes = dict.fromkeys(sizes, 1)  # with inputs of one sample each, dynamic batches are of one, too
        return [_Cutter(v, arrays[v.name], sizes, where) for v in self.graph.inputs]


class _Cutter:
    """Cuts arrays of one input into batches of `unit` samples along the first axis.

    `pending`: samples outside any batch yet; `seen`: the number of all so far.
    """

    def __init__(self, value: Value, array: np.ndarray, sizes: Mapping[str, int], where: str):
        self.value, self.name, rank = value, value.name, value.type.rank
        self.constant = rank == array.ndim == 0  # the same number in every batch
        self.stacked = array.ndim == rank + 1
        self.seen, self.unit = 0, 1
        if not self.stacked and rank:
            self.unit = int(dims.at(value.type.shape[0], sizes))
        self.pending: np.ndarray = array[:0] if array.ndim else array
        self._last = self.pending
        self.check(array, where)

    @property
    def full(self) -> bool:
        """True if a batch is ready."""
        return self.constant or len(self.pending) >= self.unit

    def check(self, array: np.ndarray, where: str) -> None:
        """Raises InputError for an array that is not samples of this input."""
        own = self.value.type.shape
        inner = own if self.stacked else own[1:]
        shape = array.shape[1:]
        if self.constant and not array.ndim:
            return
        fits = array.ndim and len(shape) == len(inner)
        if not fits or any(isinstance(d, int) and d != n for d, n in zip(inner, shape)):
            samples = ", ".join(map(str, ("samples", *own[1:])))
            raise InputError(
                f"input {self.name!r} {where} has shape {list(array.shape)}, but the model needs"
                f" {self.value.type}; pass {self.value.type.dtype.value}[{samples}], or inputs stacked along a new"
                " first axis"
            )

    def add(self, array: np.ndarray, where: str) -> None:
        if array.ndim != self.pending.ndim:
            raise InputError(
                f"input {self.name!r} {where} has {array.ndim} axes, the batches before had {self.pending.ndim}"
            )
        self.check(array, where)
        if self.constant:
            self.pending = array
            return
        self.seen += len(array)
        if not len(self.pending):
            self.pending = array
        elif self.pending.shape[1:] != array.shape[1:]:
            raise InputError(
                f"input {self.name!r} {where} is of shape {list(array.shape)}, samples before it of"
                f" {list(self.pending.shape[1:])}; samples of different sizes need batches of their own"
            )
        else:
            self.pending = np.concatenate((self.pending, array))

    def follow(self, whole: Feed) -> None:
        """Continues after this batch, if any: its samples may fill up another one."""
        before = whole.get(self.name)
        if before is not None and before.ndim == self.pending.ndim and before.shape[1:] == self.pending.shape[1:]:
            self._last, self.seen = before, len(before) if before.ndim else 0

    def take(self) -> np.ndarray:
        """Returns the next batch."""
        if self.constant:
            return self.pending
        batch, self.pending = self.pending[: self.unit], self.pending[self.unit :]
        self._last = batch
        return np.asarray(batch[0] if self.stacked else batch, order="C")

    def detach(self) -> None:
        """Copies the pending samples: callers may write the next batch into the same memory."""
        self.pending = self.pending.copy()
        if self.unit > 1:
            self._last = self._last.copy()

    def filled_up(self) -> np.ndarray:
        """Returns the last batch, of the remaining samples and those before them."""
        if self.constant:
            return self.pending
        return np.concatenate((self._last, self.pending))[-self.unit :]


def _rows(feed: Feed) -> Feed:
    """Returns the samples of a batch along the first axes."""
    lengths = {a.shape[:1] for a in feed.values()}
    return feed if len(lengths) == 1 and () not in lengths else {name: a[None] for name, a in feed.items()}


def _repeats(array: np.ndarray, row: np.ndarray) -> bool:
    """True if an array is this row, over and over."""
    return array.shape[1:] == row.shape[1:] and bool((array == row).all())


def _check_type(array: np.ndarray, value: Value, what: str) -> None:
    """Raises InputError for an array of another element type, or one whose mask would be lost."""
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array, whose mask would be lost; fill it with .filled(value)")
    dtype = value.type.dtype
    if dtype is STRING and array.dtype.kind in "OUT":
        return
    if array.dtype.newbyteorder("=") != dtype.numpy:
        raise InputError(
            f"{what} has type {array.dtype.name}, but the model needs {value.type}; prepare it as for a run, and"
            f" convert it with .astype(np.{dtype.numpy.name})"
        )


def _check_finite(array: np.ndarray, what: str) -> None:
    """Raises InputError for NaN and infinite values."""
    if np.isfinite(array).all():
        return
    bad = np.argwhere(~np.isfinite(array))[0]
    raise InputError(
        f"{what} has {array[tuple(bad)]} at {[int(i) for i in bad]}; calibration needs finite values: leave this sample"
        " out"
    )
