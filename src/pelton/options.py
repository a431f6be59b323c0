"""Everything a user can decide about a build, in one frozen value; nothing else steers the compiler."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from pathlib import Path
from typing import Any

from .errors import InputError, near

Progress = Callable[[str, int, int], "bool | None"]

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True)
class Options:
    """Build options.

    shapes: input name → sizes, e.g. {"x": (1, 3, 224, 224)}, {"x": "1x3x224x224"}, or {"x": "1..8..32x3x224x224"} where
    a run decides one (minimum..optimum..maximum; engines are tuned for the optimum). optimum: input name → sizes to
    tune for along unspecified axes. outputs: names of (inner) tensors to return. values: input name → what it
    always is, where that decides the program (axes, a shape, a condition): an array or numbers, None for an optional
    without a value, a list of arrays for a sequence. Such inputs are constants of the engine. level: 0 (no timing) to 5
    (every candidate); budget: seconds for timing, then the best guess is taken; threads: what the engine is tuned for,
    on CPUs. For GPUs, levels from 3 on also keep other tactics in the engine, which `pelton tune` times later. strict:
    only arithmetic that differs from the model's by the order of sums (no Winograd, no recurrent weights in half, no
    halves kept in f32). memory: bytes that a run may take, inputs, outputs and constants included (what the machine
    has, if not given); a model that takes more is refused. check: run every region beside its reference.
    max_iterations: of all loops of a run together whose ends depend on the data; a run that wants more is refused.
    target: "cpu" (for the CPU here), "cpu:x86_64_v3" or "cpu:x86_64_v4" (for all CPUs of a level: AVX2, AVX-512),
    "cuda" (for the GPU here; where none is, for sm_80 and sm_90), or "cuda:sm_80,sm_90". Where a CPU cannot run what
    the target is, nothing is timed. precision: what values between the layers are kept in: "fp32", and for GPUs "fp16"
    or "bf16"; sums are always in fp32. "tf32", for GPUs, keeps all in fp32 and multiplies matrices rounded to TF32 (ten
    bits behind the point), which tensor cores do at half the rate of fp16. save_tactics: a file that records what the
    build decides: chains, layouts, the tactic of every region. load_tactics: such a file, by which all is decided
    again, so that nothing is timed, whatever the level; regions that it does not know are refused. Both are for CPUs.
    cache_dir: where compiled kernels, times and the engines of sessions are kept (PELTON_CACHE_DIR, else the user's
    cache directory, if not given); cache_limit: bytes that they may take (PELTON_CACHE_LIMIT, else 4 GB, if not given),
    above which the least recently used go. image, labels: how pictures become inputs and outputs become words, kept in
    the engine. cc: another clang than the ziglang wheel's.
    """

    shapes: Mapping[str, str | Sequence[int | str | tuple[int, int, int]]] | None = None
    optimum: Mapping[str, Sequence[int]] | None = None
    values: Mapping[str, Any] | None = None
    level: int = 3
    budget: float | None = None
    threads: int | None = None
    strict: bool = False
    memory: int | None = None
    timing_cache: str | Path | None = None
    save_tactics: str | Path | None = None
    load_tactics: str | Path | None = None
    cache_dir: str | Path | None = None
    cache_limit: int | None = None
    target: str = "cpu"
    precision: str = "fp32"
    outputs: tuple[str, ...] | None = None
    progress: Progress | None = None
    check: bool = False
    image: str | None = None
    labels: tuple[str, ...] | None = None
    cc: str | None = None
    max_iterations: int = 1_000_000
    usual: InitVar[Mapping[str, Sequence[int]] | None] = None  # deprecated spelling of `optimum`

    def __post_init__(self, usual: Mapping[str, Sequence[int]] | None):
        if usual is not None:
            if self.optimum is not None:
                raise InputError("usual= is the deprecated spelling of optimum=; give optimum= alone")
            warnings.warn("the option usual= is deprecated: write optimum= instead", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "optimum", usual)
        for name, example in (
            ("shapes", '{"image": (1, 3, 224, 224)}'),
            ("optimum", '{"image": (1, 3, 224, 224)}'),
            ("values", '{"axes": (1,)}'),
        ):
            if (given := getattr(self, name)) is not None and not isinstance(given, Mapping):
                raise InputError(f"{name} is a mapping from names of inputs, such as {example}, got {given!r}")
        if not isinstance(self.level, int) or not 0 <= self.level <= 5:
            raise InputError(f"level is a whole number from 0 (no timing) to 5 (exhaustive), got {self.level!r}")
        if self.threads is not None and (not isinstance(self.threads, int) or not 1 <= self.threads <= 256):
            raise InputError(f"threads is a whole number from 1 to 256, got {self.threads!r}")
        if self.budget is not None and not self.budget >= 0:
            raise InputError(f"budget is a number of seconds, got {self.budget!r}")
        if self.memory is not None and (not isinstance(self.memory, int) or self.memory < 1):
            raise InputError(f"memory is a number of bytes, got {self.memory!r}")
        if self.cache_limit is not None and (not isinstance(self.cache_limit, int) or self.cache_limit < 0):
            raise InputError(f"cache_limit is a number of bytes, got {self.cache_limit!r}")
        if not isinstance(self.max_iterations, int) or self.max_iterations < 0:
            raise InputError(f"max_iterations is a whole number from 0 on, got {self.max_iterations!r}")
        if self.image is not None:
            from .preprocessing import parse  # only engines that take pictures need it

            parse(self.image)
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
        tactics = [f"{name}=" for name in ("save_tactics", "load_tactics") if getattr(self, name) is not None]
        if tactics and not self.on_cpu:
            raise InputError(
                f"tactics are recorded and replayed for CPUs, the target is {self.target!r}: engines for "
                f"GPUs carry their alternatives, which `pelton tune` times; leave out {' and '.join(tactics)}"
            )
        timing = [f"{name}=" for name in ("budget", "timing_cache") if getattr(self, name) is not None]
        if timing and self.load_tactics is not None:
            raise InputError(
                "load_tactics= takes tactics as they were recorded and times nothing; leave it out, or "
                f"{' and '.join(timing)}"
            )
        if self.strict and self.precision != "fp32":
            raise InputError(
                f"strict keeps all arithmetic as the model has it, precision {self.precision!r} does not; give one of"
                " the two"
            )
        if self.check and not self.on_cpu:
            raise InputError(f"check runs the engine here, on the CPU; the target is {self.target!r}")
        if self.precision not in (("fp32",) if self.on_cpu else PRECISIONS):
            raise InputError(
                f"precision {self.precision!r} is not available for target {self.target!r}; this version builds 'fp32',"
                f" and for GPUs {', '.join(map(repr, PRECISIONS[1:]))}"
            )

    @property
    def on_cpu(self) -> bool:
        """Whether the engine is for CPUs."""
        return re.fullmatch(r"cpu(:\w+)?", self.target) is not None

    @property
    def architectures(self) -> tuple[int, ...] | None:
        """The GPUs that code is made for (90 for sm_90), none where that is for the GPU here to say; None where the
        target is no GPU."""
        kind, _, named = self.target.partition(":")
        if (
            kind != "cuda"
            or self.target.endswith(":")
            or not all(re.fullmatch(r"sm_\d{2,3}", a) for a in named.split(",") if named)
        ):
            return None
        return tuple(sorted({int(a[3:]) for a in named.split(",")})) if named else ()

    def but(self, **changes) -> "Options":
        """These options with the given ones in place of their own; InputError for an unknown name."""
        unknown = changes.keys() - {f.name for f in fields(self)} - {"usual"}
        if unknown:
            likely = near(min(unknown), [f.name for f in fields(self)])
            raise InputError(
                f"unknown option {', '.join(sorted(unknown))}{likely}; there are:"
                f" {', '.join(f.name for f in fields(self))}"
            )
        if "usual" in changes:  # it stands for `optimum`, also for that of these options
            changes.setdefault("optimum", None)
        return replace(self, **changes)
