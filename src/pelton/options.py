"""Build options, in one immutable value; nothing else controls the compiler."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from pathlib import Path
from typing import Any

from . import option_checks
from .errors import InputError, near

Progress = Callable[[str, int, int], "bool | None"]
Sizes = int | str | Sequence[int | str | tuple[int, int, int]]  # of an input, or of one dimension

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "best")
ON_CPUS = ("fp32", "fp16", "bf16", "int8", "best")
KV_CACHES = ("fp16", "int8")
MAX_DROP = 0.01
HINTS = ("latency", "throughput")


@dataclass(frozen=True)
class Options:
    """Options of a build, immutable. Raises InputError for values out of range and options that exclude each other.

    The program:
    shapes: input name → sizes: {"x": (1, 3, 224, 224)} or {"x": "1x3x224x224"}; a dynamic dimension is
        minimum..optimum..maximum, as in {"x": "1..8..32x3x224x224"}. Default: the sizes of the model.
        Names of the model's dimensions may be keys, too: {"batch": "1..8..32"} sets it in all inputs.
    profiles: profile name → shapes that it adds to `shapes`: {"one": {"batch": 1}, "many": {"batch": "1..32..64"}}. The
        engine is tuned for each of them, stores equal weights once, and runs the first profile that accepts the shapes
        of a run's inputs. Default: one engine for all sizes.
    optimum: input name → sizes that the engine is tuned for along unspecified dimensions.
    values: input name → value of an input that decides the program (axes, a shape, a condition) and becomes a constant
        of the engine: an array or numbers, None for an empty optional, a list of arrays for a sequence.
    weights: the weights file of a model in two files (Caffe, Darknet). Default: the file of the same name beside the
        model; without one, weights are random, with a warning.
    detections: for networks that return boxes with scores (YOLO's, of Darknet), replaces their outputs by one,
        `detections`, f32[batch, keep, 6]: x₁, y₁, x₂, y₂ (relative to the picture), score and class of the best boxes,
        without those that overlap a better one of their class; best first, zeros and class -1 at the end. A text with
        the minimum score (exclusive), the maximum intersection over union and the number of boxes,
        "score=0.25,iou=0.45,keep=100", each part optional; True for this one.
    cache_capacity: number of positions of caches that the model returns longer than it takes them (Concat of a cache
        and new rows), whose lengths then follow from a mask's; runs extend them in place (docs/state.md).
    outputs: names of tensors, inner ones included, that the engine returns. Default: the outputs of the model.
    accept_conversion: warn, instead of raising an error, if a model converted to ONNX by another package (PyTorch,
        TensorFlow, PaddlePaddle) computes something else than its own framework does. Default: False.

    The target:
    target: "cpu" (default: the CPU here), "cpu:" and an instruction set level, such as "cpu:x86_64_v3" (every CPU with
        AVX2) or "cpu:aarch64_dotprod" (an Arm CPU with dot products; docs/tuning.md lists the levels), "cuda" (the GPU
        here; without one, sm_80 and sm_90) or "cuda:sm_80,sm_90". Nothing is timed if the CPU here cannot run code of
        the target.
    precision: type of values between kernels: "fp32" (default), for GPUs also "fp16" and "bf16"; sums are in fp32. For
        CPUs, "fp16" and "bf16" store weights in two bytes where reading them dominates and a kernel measured faster;
        weights that would lose more than their rounding, and all else, stay fp32. With AVX-512 BF16, "bf16" also rounds
        the operands of products by constant matrices, if that is faster.
        "tf32", for GPUs, stores fp32 and multiplies matrices rounded to TF32 (10 bits of fraction), on tensor cores at
        half the rate of fp16. "int8" computes convolutions and products by constant matrices in integers where that is
        faster and accurate enough; it needs `calibration`. "best" is the fastest of "fp32", "fp16" (for GPUs "bf16" if
        that overflows) and, with `calibration`, "int8" with all other layers in the fastest of the former, chosen by
        timing, or for absent GPUs by a model.
    kv_cache: type of the caches of keys and values that a decoder extends: "fp16", or "int8" with an fp32 scale for
        each head and position (further ports, named as the cache and ".scale"). Default: that of the model. CPUs only.
    calibration: inputs like those of real runs, from which "int8" computes scales: a dict of arrays whose first axes
        count samples, a .npz file, a folder of pictures (prepared by `image`), an iterator of dicts, a calibrator, or a
        calibration table (see `pelton.calibration`). A fifth of the batches is held out to check the accuracy.
        Calibration runs on the CPU of this machine, whatever the target.
    save_calibration: file for the calibration table, accepted by `calibration` in later builds. Its format is
        TensorRT's, without smallest values: signed tensors are then quantized symmetrically.
    precision_of: pattern of layer names, as in "head.*" → "fp32" or the precision of the build, for layers of a build
        in "int8", or for CPUs in "fp16" or "bf16"; "fp32" or "int8" for a calibrated "best" build.
    max_drop: maximum accuracy loss of "int8"; layers revert to fp32 until it holds. It bounds metric(fp32 engine) −
        metric(int8 engine); without a metric, for every output, the share of samples whose largest score moved, or
        noise power divided by signal power for outputs that are not scores. Default: 0.01.
    metric: function of an engine, larger for better engines, such as the accuracy on labelled samples. It also judges
        engines of constant answers; a warning reports if these are good enough.
    weight_equalization: if True, "int8" moves channel ranges from activations into the weights of the layers that read
        them (SmoothQuant, cross-layer equalization). Default: if the held-out data shows less noise.
    bias_correction: if True, "int8" adds the mean rounding error of each layer on the calibration data to its result.
        Default: if the held-out data shows less noise.
    threads: number of threads that the engine is tuned for, 1 to 256, CPUs only. Default: that of load_tactics, else
        all that the process may use.
    hint: "latency" (default): one run at a time, on all threads. "throughput": several runs at once; kernels are tuned
        for one thread, unless `threads` is set, and the best number of streams is timed and stored for
        `pelton.AsyncQueue`. Without timing (level 0, load_tactics, timing_cache) it is one per CPU. CPUs only.
    strict: allow only arithmetic that differs from the model's by the order of sums: no Winograd, no recurrent weights
        in fp16, no fp16 values widened to fp32. Default: False.
    memory: maximum bytes of a run, inputs, outputs and constants included; larger models are rejected. Default: the
        memory of this machine.
    max_packed: maximum bytes of packed weights, relative to the model's own; Winograd's are larger. Default: 2, and 1.1
        for WebAssembly. CPUs only.
    max_iterations: maximum iterations of all loops with data-dependent ends together in a run. Default: 1,000,000.

    The search:
    level: effort of timing, 0 (none), 1, 2 (few candidates), 3 (default), 4, 5 (every candidate). From 3 on, engines
        for GPUs also carry alternatives, which `pelton tune` times later.
    budget: seconds of timing; after that the best guess wins. Default: no limit.
    timing_cache: file of measured times, read and written; equal times give equal engines. Default: one in cache_dir.
    save_tactics: file to record decisions in: chains, layouts, the tactic of every region. CPUs only.
    load_tactics: file of recorded decisions, reused without timing at any level, for the recorded number of threads;
        regions that it lacks are rejected. CPUs only.
    check: compare every region with its reference; raises BuildError if one differs by more than 0.001. Results rounded
        to integers may be either of two neighbours, where f32 cannot decide. CPUs only. Default: False.
    progress: function (stage, done, total), called as the build proceeds; False from it raises Cancelled. Default: a
        bar on stderr on terminals and in notebooks, unless PELTON_PROGRESS=0.

    Files:
    cache_dir: directory of kernels, times and engines of sessions. Default: PELTON_CACHE_DIR, else the user's cache.
    cache_limit: maximum bytes of cache_dir; old entries are evicted. Default: PELTON_CACHE_LIMIT, else 4 GB.
    cc: path of a clang to compile with. Default: that of the ziglang wheel.
    image: conversion of pictures to inputs, stored in the engine: "224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225
        rgb", with "shorter=256", "stretch" or "letterbox" instead of cutting out and resizing the middle (`--image` of
        `pelton build --help` lists all words), or a file preprocessor_config.json of Hugging Face.
    labels: names of the classes, in the order of the outputs, stored in the engine.
    refit: store in the engine the data that `Engine.refit` needs for other weights of the same shapes: the model as a
        program, without weights, and the decisions. No decision then depends on the values of weights. CPUs, models
        that are ONNX or become it, without "int8" and "best". Default: False.
    strip_weights: leave all refittable weights out of the engine, which needs them before it runs; implies `refit`.
        Default: False.
    metadata: user texts by name, stored in the engine: {"team": "vision"}; at most 64, of 4096 characters each.
    """

    shapes: Mapping[str, Sizes] | None = None
    profiles: Mapping[str, Mapping[str, Sizes]] | None = None
    optimum: Mapping[str, Sequence[int]] | None = None
    values: Mapping[str, Any] | None = None
    weights: str | Path | None = None
    level: int = 3
    budget: float | None = None
    threads: int | None = None
    hint: str = "latency"
    strict: bool = False
    memory: int | None = None
    max_packed: float | None = None
    timing_cache: str | Path | None = None
    save_tactics: str | Path | None = None
    load_tactics: str | Path | None = None
    cache_dir: str | Path | None = None
    cache_limit: int | None = None
    target: str = "cpu"
    precision: str = "fp32"
    kv_cache: str | None = None
    calibration: Any = None
    save_calibration: str | Path | None = None
    precision_of: Mapping[str, str] | None = None
    max_drop: float | None = None
    metric: Callable[[Any], float] | None = None
    weight_equalization: bool | None = None
    bias_correction: bool | None = None
    outputs: Sequence[str] | None = None
    detections: str | bool | None = None
    accept_conversion: bool = False
    cache_capacity: int | None = None
    progress: Progress | None = None
    check: bool = False
    image: str | Path | None = None
    labels: Sequence[str] | None = None
    metadata: Mapping[str, str] | None = None
    refit: bool = False
    strip_weights: bool = False
    cc: str | None = None
    max_iterations: int = 1_000_000
    usual: InitVar[Mapping[str, Sequence[int]] | None] = None  # deprecated spelling of `optimum`

    def __post_init__(self, usual: Mapping[str, Sequence[int]] | None):
        if usual is not None:
            if self.optimum is not None:
                raise InputError("usual= is a deprecated name of optimum=; use optimum= only")
            warnings.warn("the option usual= is deprecated: write optimum= instead", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "optimum", usual)
        option_checks.check_ranges(self)
        option_checks.check_metadata(self)
        option_checks.check_profiles(self)
        option_checks.check_refit(self)
        if self.image is not None:
            from .preprocessing import describe  # imported only for engines that take pictures

            object.__setattr__(self, "image", describe(self.image))  # stores a file by content, not by name
        self._check_target()
        option_checks.check_timing(self)
        option_checks.check_lower(self)

    def _check_target(self) -> None:
        """Raises InputError for a target that does not exist, and for options that it does not have."""
        if not self.on_cpu and self.architectures is None:
            raise InputError(
                "target is 'cpu', 'cpu:' with an instruction set level, as in 'cpu:x86_64_v3', 'cuda' or 'cuda:' with"
                f" architectures, as in 'cuda:sm_80,sm_90', got {self.target!r}"
            )
        if self.threads is not None and not self.on_cpu:
            raise InputError(
                f"threads are those of CPUs, got {self.threads} for target {self.target!r}, whose engines run on"
                " multiprocessors; leave it out"
            )
        if self.hint not in HINTS:
            raise InputError(f"hint is {' or '.join(map(repr, HINTS))}, got {self.hint!r}")
        if self.hint == "throughput" and not self.on_cpu:
            raise InputError(f"hint divides CPUs among streams, the target is {self.target!r}; leave it out")
        if self.strict and self.precision != "fp32":
            raise InputError(
                f"strict keeps the model's arithmetic, precision {self.precision!r} does not; use only one of them"
            )
        if self.check and not self.on_cpu:
            raise InputError(f"check runs the engine here, on the CPU; the target is {self.target!r}")
        if self.precision not in (ON_CPUS if self.on_cpu else PRECISIONS):
            raise InputError(
                f"precision {self.precision!r} is not available for target {self.target!r}; this version builds"
                f" {', '.join(map(repr, ON_CPUS))} for CPUs and {', '.join(map(repr, PRECISIONS))} for GPUs"
            )
        if self.kv_cache is not None and (self.kv_cache not in KV_CACHES or not self.on_cpu):
            raise InputError(
                f"kv_cache is {' or '.join(map(repr, KV_CACHES))}, for CPUs only, got {self.kv_cache!r} for target"
                f" {self.target!r}"
            )

    @property
    def refittable(self) -> bool:
        """True if the engine stores the data for a refit."""
        return self.refit or self.strip_weights

    @property
    def drop_bound(self) -> float:
        """Maximum accuracy loss of INT8: `max_drop`, or its default."""
        return MAX_DROP if self.max_drop is None else self.max_drop

    @property
    def on_cpu(self) -> bool:
        """True if the engine is for CPUs."""
        return re.fullmatch(r"cpu(:\w+)?", self.target) is not None

    @property
    def architectures(self) -> tuple[int, ...] | None:
        """GPU architectures to compile for (90 for sm_90); () for that of the GPU here, None for CPUs."""
        kind, _, named = self.target.partition(":")
        if (
            kind != "cuda"
            or self.target.endswith(":")
            or not all(re.fullmatch(r"sm_\d{2,3}", a) for a in named.split(",") if named)
        ):
            return None
        return tuple(sorted({int(a[3:]) for a in named.split(",")})) if named else ()

    def but(self, **changes) -> "Options":
        """Returns a copy with the given options changed; raises InputError for an unknown name."""
        unknown = changes.keys() - {f.name for f in fields(self)} - {"usual"}
        if unknown:
            likely = near(min(unknown), [f.name for f in fields(self)])
            raise InputError(
                f"unknown option {', '.join(sorted(unknown))}{likely}; there are:"
                f" {', '.join(f.name for f in fields(self))}"
            )
        if "usual" in changes:  # the alias of `optimum` overrides that of these options, too
            changes.setdefault("optimum", None)
        return replace(self, **changes)
