"""The fields of `Options` as keywords of `pelton.build`, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from .options import Progress, Sizes


class BuildOptions(TypedDict, total=False):
    """The fields of `Options` as keywords of `pelton.build`, for editors and type checkers."""

    profiles: Mapping[str, Mapping[str, Sizes]] | None
    optimum: Mapping[str, Sequence[int]] | None
    values: Mapping[str, Any] | None
    weights: str | Path | None
    level: int
    budget: float | None
    threads: int | None
    hint: str
    strict: bool
    memory: int | None
    max_packed: float | None
    timing_cache: str | Path | None
    save_tactics: str | Path | None
    load_tactics: str | Path | None
    cache_dir: str | Path | None
    cache_limit: int | None
    target: str
    precision: str
    kv_cache: str | None
    calibration: Any
    save_calibration: str | Path | None
    precision_of: Mapping[str, str] | None
    max_drop: float | None
    metric: Callable[[Any], float] | None
    weight_equalization: bool | None
    bias_correction: bool | None
    outputs: Sequence[str] | None
    detections: str | bool | None
    accept_conversion: bool
    cache_capacity: int | None
    progress: Progress | None
    check: bool
    image: str | Path | None
    labels: Sequence[str] | None
    metadata: Mapping[str, str] | None
    refit: bool
    strip_weights: bool
    cc: str | None
    max_iterations: int
