"""Checks of `pelton.Options` that belong together: values out of range, and options that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InputError

CALIBRATED = ("int8", "best")  # "best" also works without calibration
MOST_METADATA, LONGEST_METADATA = 64, 4096  # number of texts, and characters of each
MOST_PROFILES = 16


def check_ranges(options: Any) -> None:
    """Raises InputError for values of another type or out of range."""
    for name, example in (
        ("shapes", '{"image": (1, 3, 224, 224)}'),
        ("profiles", '{"one": {"batch": 1}, "many": {"batch": "1..32..64"}}'),
        ("optimum", '{"image": (1, 3, 224, 224)}'),
        ("values", '{"axes": (1,)}'),
        ("precision_of", '{"head.*": "fp32"}'),
        ("metadata", '{"team": "vision"}'),
    ):
        if (value := getattr(options, name)) is not None and not isinstance(value, Mapping):
            raise InputError(f"{name} is a mapping from names, such as {example}, got {value!r}")
    if not isinstance(options.level, int) or not 0 <= options.level <= 5:
        raise InputError(f"level is an integer from 0 (no timing) to 5 (exhaustive), got {options.level!r}")
    if options.threads is not None and (not isinstance(options.threads, int) or not 1 <= options.threads <= 256):
        raise InputError(f"threads is an integer from 1 to 256, got {options.threads!r}")
    if options.budget is not None and not options.budget >= 0:
        raise InputError(f"budget is a number of seconds, got {options.budget!r}")
    for name, least, meaning in (
        ("memory", 1, "a number of bytes"),
        ("cache_limit", 0, "a number of bytes"),
        ("cache_capacity", 1, "a number of positions from 1 on"),
    ):
        if (value := getattr(options, name)) is not None and (type(value) is not int or value < least):
            raise InputError(f"{name} is {meaning}, got {value!r}")
    if not isinstance(options.max_iterations, int) or options.max_iterations < 0:
        raise InputError(f"max_iterations is an integer from 0 on, got {options.max_iterations!r}")
    if options.max_packed is not None and not options.max_packed > 0:
        raise InputError(f"max_packed is a number above 0, such as 1.1, got {options.max_packed!r}")
    if not isinstance(options.detections, (str, bool, type(None))):
        raise InputError(
            f"detections is True or a text such as 'score=0.25,iou=0.45,keep=100', got {options.detections!r}"
        )


def check_refit(options: Any) -> None:
    """Raises InputError for builds that cannot be refitted."""
    if not isinstance(options.refit, bool) or not isinstance(options.strip_weights, bool):
        raise InputError(
            f"refit and strip_weights are True or False, got {options.refit!r} and {options.strip_weights!r}"
        )
    if not options.refittable:
        return
    option = "refit" if options.refit else "strip_weights"
    if not options.on_cpu:
        raise InputError(f"{option}= is for engines of CPUs, the target is {options.target!r}; leave it out")
    if options.precision in CALIBRATED:
        raise InputError(
            f"{option}= needs a program independent of weights, but precision {options.precision!r} depends on"
            " them; leave it out, or use another precision"
        )


def check_timing(options: Any) -> None:
    """Raises InputError for options of tactics and of timing that exclude each other."""
    tactics = [f"{name}=" for name in ("save_tactics", "load_tactics") if getattr(options, name) is not None]
    if tactics and not options.on_cpu:
        raise InputError(
            f"tactics are recorded for CPUs only, the target is {options.target!r}: `pelton tune` times the"
            f" kernels of engines for GPUs; leave out {' and '.join(tactics)}"
        )
    timing = [f"{name}=" for name in ("budget", "timing_cache") if getattr(options, name) is not None]
    if timing and options.load_tactics is not None:
        raise InputError(
            f"load_tactics= repeats recorded tactics without timing; leave it out, or {' and '.join(timing)}"
        )


def check_profiles(options: Any) -> None:
    """Raises InputError for profiles that cannot be built."""
    if options.profiles is None:
        return
    if not 1 <= len(options.profiles) <= MOST_PROFILES:
        raise InputError(f"profiles are 1 to {MOST_PROFILES}, got {len(options.profiles)}")
    for name, shapes in options.profiles.items():
        if not isinstance(name, str) or not name or not isinstance(shapes, Mapping):
            raise InputError(f"a profile is a mapping of names to sizes, got {name!r}: {shapes!r:.100}")
    for option in ("refit", "strip_weights", "detections"):
        if getattr(options, option):
            raise InputError(f"{option}= is for engines without profiles; leave out one of both")


def check_metadata(options: Any) -> None:
    """Raises InputError for metadata that is no text, or too large for an engine."""
    metadata = options.metadata or {}
    if len(metadata) > MOST_METADATA:
        raise InputError(f"metadata is at most {MOST_METADATA} texts, got {len(metadata)}")
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise InputError(f"metadata is texts by name, such as {{'team': 'vision'}}, got {name!r}: {value!r:.100}")
        if max(len(name), len(value)) > LONGEST_METADATA:
            raise InputError(
                f"metadata has texts of at most {LONGEST_METADATA} characters, {name!r:.50} has {len(value)}"
            )
        if any("\ud800" <= c <= "\udfff" for c in name + value):
            raise InputError(f"metadata {name!r:.50} is no text that UTF-8 can hold")


def check_lower(options: Any) -> None:
    """Raises InputError for options of INT8 and of halves that are out of range, missing, or without use."""
    if options.precision == "int8" and options.calibration is None:
        raise InputError(
            "precision 'int8' needs calibration=, inputs like those of real runs, from which scales are chosen"
        )
    if options.precision not in CALIBRATED and options.calibration is not None:
        raise InputError(
            f"calibration is of use for precision 'int8' or 'best' alone, got precision {options.precision!r};"
            " leave it out"
        )
    for name in ("weight_equalization", "bias_correction"):
        if (value := getattr(options, name)) not in (None, True, False):
            raise InputError(f"{name} is True, False, or None to let the data decide, got {value!r}")
    for name in ("metric", "max_drop", "save_calibration", "weight_equalization", "bias_correction"):
        if getattr(options, name) is not None and options.calibration is None:
            raise InputError(
                f"{name} is of use for precision 'int8' and calibrated 'best' alone, got precision"
                f" {options.precision!r} and calibration {options.calibration!r}"
            )
    check_precision_of(options)
    drop = options.drop_bound
    if isinstance(drop, bool) or not isinstance(drop, (int, float)) or not drop >= 0:
        raise InputError(f"max_drop is a number from 0 on, such as 0.01, got {drop!r}")
    if options.progress is not None and not callable(options.progress):
        raise InputError(f"progress must be a function (stage, done, total), got {options.progress!r}")
    if options.metric is not None and not callable(options.metric):
        raise InputError(f"metric must be a function from an engine to a number, got {options.metric!r}")
    if options.save_tactics is None and options.load_tactics is None:
        return
    if options.precision in CALIBRATED:
        raise InputError(
            f"tactics are recorded and replayed for one program, precision {options.precision!r} compiles several;"
            " leave out save_tactics= and load_tactics="
        )
    if options.precision_of is not None:
        raise InputError(
            "recorded tactics do not distinguish layers, but precision_of= does; leave it out, or"
            " save_tactics= and load_tactics="
        )


def check_precision_of(options: Any) -> None:
    """Raises InputError for layer precisions that the build cannot choose."""
    if options.precision_of is None:
        return
    layers = options.calibration is not None or options.on_cpu and options.precision in ("fp16", "bf16")
    if not layers:
        raise InputError(
            "precision_of is of use for precision 'int8' and calibrated 'best', and on CPUs for 'fp16' and 'bf16',"
            f" got target {options.target!r} and precision {options.precision!r}"
        )
    lower = "int8" if options.calibration is not None else options.precision
    for pattern, precision in options.precision_of.items():
        if not isinstance(pattern, str) or precision not in ("fp32", lower):
            raise InputError(
                f"precision_of maps patterns of layer names to 'fp32' or {lower!r}, got {pattern!r}: {precision!r}"
            )
