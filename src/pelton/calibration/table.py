"""Calibration tables: the scale of each tensor, and TensorRT's text format for them."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from pelton.errors import InputAbsent, InputError
from pelton.system import files

MAGIC = b"TRT-"
VERSION = "100300"  # the TensorRT version in the tables' first line: 10.3.0
_HEADER = re.compile(r"TRT-([\w.]+)-(\w+)")
_SMALLEST = float(np.finfo(np.float32).tiny)
FORMAT = "a line 'TRT-<version>-<algorithm>', then 'tensor: <hexadecimal digits of a float32>' for each tensor"


@dataclass(frozen=True)
class CalibrationTable:
    """The scale of each tensor: float32, amax / 127, so that s8 q represents q · scale.

    scales: tensor → scale. algorithm, version: from the first line of the file, such as "EntropyCalibration2" and
    "8601". notes: tensor → the reason why it has no scale despite calibration; files store neither these nor `lows` and
    `data`. lows: tensor → its smallest value, so that it need not be quantized symmetrically. data: a readable
    description of the calibration data, such as "200 pictures". Raises InputError for names that no file can hold, and
    for scales that are infinite, NaN, negative, 0 or too small for a normal float32.
    """

    scales: Mapping[str, np.float32]
    algorithm: str = "EntropyCalibration2"
    version: str = VERSION
    notes: Mapping[str, str] = field(default_factory=dict)
    lows: Mapping[str, float] = field(default_factory=dict)
    data: str = ""

    def __post_init__(self) -> None:
        if not _HEADER.fullmatch(f"TRT-{self.version}-{self.algorithm}"):
            raise InputError(
                "version and algorithm of a calibration table are a number and a word, such as '8601' and"
                f" 'EntropyCalibration2', got {self.version!r} and {self.algorithm!r}"
            )
        checked = {name: _check_scale(name, scale) for name, scale in self.scales.items()}
        object.__setattr__(self, "scales", MappingProxyType(checked))
        object.__setattr__(self, "notes", MappingProxyType(dict(self.notes)))
        object.__setattr__(self, "lows", MappingProxyType(dict(self.lows)))

    def of(self, names: Container[str]) -> CalibrationTable:
        """Returns the part of the table for these tensors."""
        scales = {name: scale for name, scale in self.scales.items() if name in names}
        notes = {name: note for name, note in self.notes.items() if name in names}
        return replace(self, scales=scales, notes=notes, lows={n: low for n, low in self.lows.items() if n in names})

    def missing(self, names: Iterable[str]) -> list[str]:
        """Returns the names without a scale, except those with a reason in `notes`."""
        return [name for name in names if name not in self.scales and name not in self.notes]

    def check(self, names: Iterable[str], where: str = "the calibration table") -> list[str]:
        """Returns the missing names, whose tensors stay unquantized.

        where: the table's name in messages. Raises InputError if more than half are missing: the table is then of
        another model.
        """
        names = list(names)
        missing = self.missing(names)
        if 2 * len(missing) > len(names):
            raise InputError(
                f"{where} belongs to another model: of {len(names)} tensors to quantize it lacks {len(missing)}"
                f" ({some_names(missing)}), and has {len(self.scales)} others ({some_names(self.scales)});"
                " calibrate this model, or pass its own table"
            )
        return missing

    def to_bytes(self) -> bytes:
        """Returns the table in TensorRT's format, in the order of `scales`."""
        lines = [f"TRT-{self.version}-{self.algorithm}"]
        lines += (f"{name}: {_bits(scale):08x}" for name, scale in self.scales.items())
        return "".join(f"{line}\n" for line in lines).encode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table atomically; raises InputError if that fails."""
        try:
            files.write(path, [self.to_bytes()])
        except OSError as e:
            raise InputError(
                f"cannot write the calibration table {os.fspath(path)}: {e.strerror or e}; use another path"
            ) from None

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, where: str = "the calibration table") -> CalibrationTable:
        """Reads a table that TensorRT or Pelton wrote; `where`: its name in messages. Raises InputError."""
        try:
            lines = bytes(data).decode().split("\n")
        except UnicodeDecodeError as e:
            raise InputError(f"{where} is no calibration table: {e}; expected {FORMAT}") from None
        header = _HEADER.fullmatch(lines[0].rstrip("\r"))
        if header is None:
            raise InputError(f"{where} is no calibration table: its first line is {lines[0][:60]!r}; expected {FORMAT}")
        scales: dict[str, np.float32] = {}
        for number, text in enumerate(lines[1:], 2):
            line = text.rstrip("\r")
            if not line:
                continue
            name, colon, digits = line.rpartition(": ")  # names may have colons
            if not colon or not name or not re.fullmatch(r"[0-9a-fA-F]{1,8}", digits):
                raise InputError(
                    f"{where}, line {number}: expected 'tensor: ' and up to 8 hexadecimal digits, as in"
                    f" 'data: 3c010a14', got {line[:120]!r}"
                )
            if name in scales:
                raise InputError(f"{where}, line {number}: a second scale of tensor {name!r}; remove one of the lines")
            scales[name] = _check_scale(name, _from_bits(int(digits, 16)), f"{where}, line {number}: ")
        return cls(scales, header[2], header[1])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalibrationTable:
        """Reads a file that TensorRT or Pelton wrote; raises InputError, InputAbsent if there is none."""
        where = f"the calibration table {os.fspath(path)}"
        try:
            with open(path, "rb") as f:
                data = f.read()
        except FileNotFoundError as e:
            raise InputAbsent(f"{where} cannot be read: {e.strerror}", path) from None
        except OSError as e:
            raise InputError(f"{where} cannot be read: {e.strerror or e}") from None
        return cls.from_bytes(data, where)


def _bits(scale: np.float32) -> int:
    return struct.unpack(">I", struct.pack(">f", scale))[0]


def _from_bits(bits: int) -> np.float32:
    return np.frombuffer(bits.to_bytes(4, "big"), ">f4").astype(np.float32)[0]


def scale_of(amax: float) -> np.float32 | None:
    """Returns the scale of values up to this one; None if it is no normal float32."""
    with np.errstate(over="ignore", under="ignore"):
        scale = np.float32(amax / 127)
    return scale if is_scale(scale) else None


def is_scale(scale: np.float32) -> bool:
    return bool(_SMALLEST <= scale < np.inf)


def _check_scale(name: str, scale: object, where: str = "") -> np.float32:
    if not isinstance(name, str) or not name or re.search(r"[\r\n]", name):
        raise InputError(f"{where}a tensor's name is a text without line breaks, got {name!r}")
    if isinstance(scale, (int, float, np.number)) and not isinstance(scale, bool):
        with np.errstate(over="ignore", under="ignore"):
            value = np.float32(scale)
        if is_scale(value):
            return value
    raise InputError(
        f"{where}tensor {name!r} has the scale {scale!s}; scales (amax / 127) must be finite, positive, normal"
        " float32; calibrate with inputs for which this tensor is neither 0 nor infinite, or remove its line to"
        " leave it unquantized"
    )


def some_names(names: Iterable[str], count: int = 5) -> str:
    """Lists the first few names, for messages."""
    names = list(names)
    return ", ".join(map(repr, names[:count])) + (", …" if len(names) > count else "")
