"""Calibration of INT8: data sources for the ranges of tensors, algorithms, and tables of the results.

Calibrators have TensorRT's names and methods, so scripts written for it run by `import pelton.calibration as trt`.
`calibrate` runs a graph of the compiler; users pass `calibration=` to `pelton.build`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithms import CalibrationAlgoType
    from .calibrators import (
        EntropyCalibrator,
        IInt8Calibrator,
        IInt8EntropyCalibrator,
        IInt8EntropyCalibrator2,
        IInt8LegacyCalibrator,
        IInt8MinMaxCalibrator,
        MinMaxCalibrator,
        MseCalibrator,
        PercentileCalibrator,
    )
    from .table import CalibrationTable

__all__ = [
    "CalibrationAlgoType",
    "CalibrationTable",
    "EntropyCalibrator",
    "IInt8Calibrator",
    "IInt8EntropyCalibrator",
    "IInt8EntropyCalibrator2",
    "IInt8LegacyCalibrator",
    "IInt8MinMaxCalibrator",
    "MinMaxCalibrator",
    "MseCalibrator",
    "PercentileCalibrator",
    "calibrate",
]

# Imported on first use: scripts with calibrators need no compiler, and the compiler, which is below, imports
# `calibrate`.
_HOMES = {name: "calibrators" for name in __all__ if name.endswith(("Calibrator", "Calibrator2"))}
_HOMES.update(CalibrationAlgoType="algorithms", CalibrationTable="table", calibrate="collect")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pelton.calibration' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"pelton.calibration.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
