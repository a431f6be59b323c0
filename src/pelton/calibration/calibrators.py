"""Calibrators: TensorRT's, as base classes for scripts, and those for plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.errors import InputError

from .algorithms import (
    BY_TYPE,
    ENTROPY,
    MIN_MAX,
    MSE,
    Algorithm,
    CalibrationAlgoType,
    LegacyAlgorithm,
    PercentileAlgorithm,
)


class IInt8Calibrator:
    """TensorRT's base class of calibrators: a script derives from one of those below and supplies the data.

    The methods are TensorRT's. A batch may also be numpy arrays, in place of addresses, or a mapping from names.
    """

    # only TensorRT's methods: all other names belong to the script
    def get_batch_size(self) -> int:
        """Returns the number of samples of a batch, along the first axis of the memory at an address."""
        raise InputError(f"the calibrator {type(self).__name__} has no method get_batch_size; TensorRT's have one")

    def get_batch(self, names: Sequence[str]) -> Any:
        """Returns the next batch: for each of the named inputs, in order, an array or the address of one in CPU memory,
        with its dtype, in C order; None or [] after the last."""
        raise InputError(f"the calibrator {type(self).__name__} has no method get_batch; TensorRT's have one")

    def read_calibration_cache(self) -> bytes | None:
        """Returns the bytes of an earlier table to use instead of calibrating; None or b"" without one."""
        return None

    def write_calibration_cache(self, cache: bytes) -> None:
        """Receives the bytes of the table for later use."""

    def get_algorithm(self) -> CalibrationAlgoType:
        raise InputError(f"the calibrator {type(self).__name__} derives from no calibrator with an algorithm")


class IInt8EntropyCalibrator2(IInt8Calibrator):
    """Ranges by entropy, TensorRT's usual calibrator."""

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.ENTROPY_CALIBRATION_2


class IInt8EntropyCalibrator(IInt8Calibrator):
    """Ranges by entropy, TensorRT's older calibrator. Equal to the newer one here."""

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.ENTROPY_CALIBRATION


class IInt8MinMaxCalibrator(IInt8Calibrator):
    """Ranges up to the largest absolute value."""

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.MINMAX_CALIBRATION


class IInt8LegacyCalibrator(IInt8Calibrator):
    """Ranges up to a quantile of the absolute values, TensorRT's oldest calibrator.

    TensorRT's regression was never published: `get_regression_cutoff` is checked and otherwise unused, and histograms
    are not kept.
    """

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.LEGACY_CALIBRATION

    def get_quantile(self) -> float:
        """Returns the fraction of absolute values, above 0 and up to 1, that do not saturate."""
        return 1.0

    def get_regression_cutoff(self) -> float:
        return 1.0

    def read_histogram_cache(self, length: int) -> bytes | None:
        return None

    def write_histogram_cache(self, data: bytes) -> None:
        pass


def algorithm_of(calibrator: IInt8Calibrator | DataCalibrator) -> Algorithm:
    """Returns a calibrator's algorithm; InputError if its `get_algorithm` returns no CalibrationAlgoType."""
    if isinstance(calibrator, DataCalibrator):
        return calibrator.algorithm
    kind = calibrator.get_algorithm()
    if kind is CalibrationAlgoType.LEGACY_CALIBRATION:
        return _legacy(calibrator)
    if kind not in BY_TYPE:
        raise InputError(
            f"get_algorithm of calibrator {type(calibrator).__name__} returned {kind!r}, expected one of"
            f" {', '.join(map(str, CalibrationAlgoType))}"
        )
    return BY_TYPE[kind]


def _legacy(calibrator: IInt8Calibrator) -> LegacyAlgorithm:
    def fraction(name: str, low: str) -> float:
        value = getattr(calibrator, name, lambda: 1.0)()
        fits = isinstance(value, (int, float, np.number)) and (0 < value <= 1 or value == 0 and low == "from")
        if not fits or isinstance(value, bool):
            raise InputError(
                f"{name} of calibrator {type(calibrator).__name__} returned {value!r}, expected a number {low} 0"
                " and up to 1"
            )
        return float(value)

    fraction("get_regression_cutoff", "from")
    return LegacyAlgorithm(100 * fraction("get_quantile", "above"))


class DataCalibrator:
    """Data with the algorithm for its ranges.

    data: any value for `calibration=` except tables and calibrators: a dict of arrays, the path of an .npz file or of a
    folder of pictures, or an iterable of batches.
    """

    algorithm: Algorithm

    def __init__(self, data: Any):
        if isinstance(data, (IInt8Calibrator, DataCalibrator)):
            raise InputError(f"{type(self).__name__} needs data, got the calibrator {type(data).__name__}")
        self.data = data


class EntropyCalibrator(DataCalibrator):
    """Ranges by entropy (Migacz 2017), like TensorRT's IInt8EntropyCalibrator2."""

    algorithm = ENTROPY


class MinMaxCalibrator(DataCalibrator):
    """Ranges up to the largest absolute value."""

    algorithm = MIN_MAX


class PercentileCalibrator(DataCalibrator):
    """Ranges that `percentile` per cent of the absolute values do not exceed; InputError unless above 0, up to 100."""

    def __init__(self, data: Any, percentile: float = 99.99):
        super().__init__(data)
        self.algorithm = PercentileAlgorithm(percentile)


class MseCalibrator(DataCalibrator):
    """Ranges with the smallest mean squared error of each tensor's values."""

    algorithm = MSE


# names on the command line
CALIBRATORS: Mapping[str, type[DataCalibrator]] = {
    "entropy": EntropyCalibrator,
    "minmax": MinMaxCalibrator,
    "percentile": PercentileCalibrator,
    "mse": MseCalibrator,
}
