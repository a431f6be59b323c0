"""Calibrators: TensorRT's, which scripts derive their own from, and those that take data as it is."""

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
    """TensorRT's base class of calibrators: a script derives from one of those below and gives the data.

    The methods are TensorRT's. A batch may also be numpy arrays, in place of addresses, or a mapping from names.
    """

    # nothing here but TensorRT's methods: all other names are the script's
    def get_batch_size(self) -> int:
        """The number of samples of a batch: along the first axis of what an address leads to."""
        raise InputError(f"the calibrator {type(self).__name__} has no method get_batch_size; TensorRT's have one")

    def get_batch(self, names: Sequence[str]) -> Any:
        """The next batch: for each of the named inputs, in order, an array or the address of one in the memory of the
        CPU, in its dtype, C order; None or [] after the last."""
        raise InputError(f"the calibrator {type(self).__name__} has no method get_batch; TensorRT's have one")

    def read_calibration_cache(self) -> bytes | None:
        """The bytes of an earlier table, which is used instead of calibrating; None or b"" without one."""
        return None

    def write_calibration_cache(self, cache: bytes) -> None:
        """Is given the bytes of the table, to keep them."""

    def get_algorithm(self) -> CalibrationAlgoType:
        raise InputError(f"the calibrator {type(self).__name__} derives from no calibrator with an algorithm")


class IInt8EntropyCalibrator2(IInt8Calibrator):
    """Ranges by entropy, TensorRT's usual calibrator."""

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.ENTROPY_CALIBRATION_2


class IInt8EntropyCalibrator(IInt8Calibrator):
    """Ranges by entropy, TensorRT's older calibrator. The same as the newer one here."""

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.ENTROPY_CALIBRATION


class IInt8MinMaxCalibrator(IInt8Calibrator):
    """Ranges up to the largest absolute value."""

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.MINMAX_CALIBRATION


class IInt8LegacyCalibrator(IInt8Calibrator):
    """Ranges up to a quantile of the absolute values, TensorRT's oldest calibrator.

    TensorRT's regression was never published: `get_regression_cutoff` is checked and otherwise not used, and histograms
    are not kept.
    """

    def get_algorithm(self) -> CalibrationAlgoType:
        return CalibrationAlgoType.LEGACY_CALIBRATION

    def get_quantile(self) -> float:
        """The fraction of absolute values, above 0 and up to 1, that do not saturate."""
        return 1.0

    def get_regression_cutoff(self) -> float:
        return 1.0

    def read_histogram_cache(self, length: int) -> bytes | None:
        return None

    def write_histogram_cache(self, data: bytes) -> None:
        pass


def algorithm_of(calibrator: IInt8Calibrator | DataCalibrator) -> Algorithm:
    """How a calibrator finds ranges; InputError if its `get_algorithm` gives no CalibrationAlgoType."""
    if isinstance(calibrator, DataCalibrator):
        return calibrator.algorithm
    found = calibrator.get_algorithm()
    if found is CalibrationAlgoType.LEGACY_CALIBRATION:
        return _legacy(calibrator)
    if found not in BY_TYPE:
        raise InputError(
            f"get_algorithm of the calibrator {type(calibrator).__name__} gives {found!r}; expected one of"
            f" {', '.join(map(str, CalibrationAlgoType))}"
        )
    return BY_TYPE[found]


def _legacy(calibrator: IInt8Calibrator) -> LegacyAlgorithm:
    def fraction(name: str, low: str) -> float:
        given = getattr(calibrator, name, lambda: 1.0)()
        fits = isinstance(given, (int, float, np.number)) and (0 < given <= 1 or given == 0 and low == "from")
        if not fits or isinstance(given, bool):
            raise InputError(
                f"{name} of the calibrator {type(calibrator).__name__} gives {given!r}; expected a number {low} 0 and"
                " up to 1"
            )
        return float(given)

    fraction("get_regression_cutoff", "from")
    return LegacyAlgorithm(100 * fraction("get_quantile", "above"))


class DataCalibrator:
    """Data with the algorithm that finds the ranges in it.

    data: what `calibration=` takes, but for tables and calibrators: a dict of arrays, the path of an .npz file or of a
    folder of pictures, or an iterable of batches.
    """

    algorithm: Algorithm

    def __init__(self, data: Any):
        if isinstance(data, (IInt8Calibrator, DataCalibrator)):
            raise InputError(f"{type(self).__name__} takes data, given the calibrator {type(data).__name__}")
        self.data = data


class EntropyCalibrator(DataCalibrator):
    """Ranges by entropy (Migacz 2017), as TensorRT's IInt8EntropyCalibrator2."""

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


# as commands name them
CALIBRATORS: Mapping[str, type[DataCalibrator]] = {
    "entropy": EntropyCalibrator,
    "minmax": MinMaxCalibrator,
    "percentile": PercentileCalibrator,
    "mse": MseCalibrator,
}
