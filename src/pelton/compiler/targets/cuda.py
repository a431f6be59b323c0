"""Builds for NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pelton.logs import Logger
from pelton.backends import cpu
from pelton.codegen.template import Kernel, Packed, Target
from pelton.engine.library import LIBRARIES
from pelton.engine.plan import EnginePlan
from pelton.errors import BuildError, EngineError, InputError
from pelton.ir.graph import Value
from pelton.options import Options
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Placed, Task
from pelton.plan.workspace import KernelWorkspace
from pelton.system.cache import Cache
from pelton.targets import ARCHITECTURES, fitting, gpus, typical
from pelton.tuning import search
from pelton.tuning.timing_cache import template_hash
from pelton.tuning.candidates import candidates

from .interface import BackEnd, Choices, create_timing, open_timing_cache, progress_reporter

if TYPE_CHECKING:
    from pelton.backends.cuda.device import Device
    from pelton.codegen.triton.toolchain import CompiledCubin

log = Logger("pelton.build")

FLOAT8 = 89  # the first architecture that multiplies FP8
COMMON = (80, 90)  # architectures to build for without a GPU
MAX_TRIED = 8  # tactics to try for a step without a compiled kernel
# level → alternative tactics in an engine, for `pelton tune`
ALTERNATIVES = {0: 0, 1: 0, 2: 0, 3: 1, 4: 4, 5: 8}


class GpuCompilation:
    """See `BackEnd`. Tactics are timed if there is a GPU of one of the architectures, otherwise estimated by a model of
    the oldest of them."""

    def __init__(
        self,
        options: Options,
        archs: Sequence[int],
        target: Target,
        device: Device | None,
        compiler: Any,
        timing: search.Timing | None,
    ):
        self.target, self.timing, self.alternatives = target, timing, ALTERNATIVES[options.level]
        self.runs_on: Mapping[str, Any] = gpus(archs)
        self.meta: Mapping[str, Any] = {
            "multiprocessors": target.threads,
            "gpu": device.name if device and timing else None,
        }
        self._archs, self._compiler, self._tell = archs, compiler, progress_reporter(options)
        self._device = device if timing else None
        self._level, self._strict = options.level, options.strict

    def merge_launches(self, placed: Placed, choices: Choices) -> tuple[Placed, Choices, Sequence[str]]:
        from pelton.tuning import launches  # only GPU engines need it

        if not self._level:
            return placed, choices, ()
        runs = launches.find_chains(placed, choices, self.target, self.timing, self._strict)
        all_joined = launches.join_chains(placed, choices, runs)[0]
        kernels, failed = [_with_alignment(all_joined, run.choice.kernel) for run in runs], dict[str, BuildError]()
        self._compiler.cubins({k.symbol: k.source for k in kernels}, failed=failed)
        for why in failed.values():
            log.warning("some regions are not one launch: %s", why)
        runs = [run for run, k in zip(runs, kernels) if k.symbol not in failed]
        return *launches.join_chains(placed, choices, runs), [
            f"{run.title()}: {len(run.tasks)} in one launch ({run.explanation})" for run in runs
        ]

    def generate_code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        from pelton.backends.cuda.bundle import pack

        choices = {i: c.with_kernels(partial(_with_alignment, placed)) for i, c in choices.items()}
        sources = {
            k.symbol: k.source
            for c in choices.values()
            for k in (c.kernel, *(k for _, k in c.alternatives))
            if k.symbol not in LIBRARIES
        }
        failed: dict[str, BuildError] = {}
        compiled = self._compiler.cubins(
            sources, lambda done: self._tell("compile", done, len(sources) * len(self._archs)), failed
        )
        for i, c in choices.items():
            if all(k.symbol in failed for k in (c.kernel, *(k for _, k in c.alternatives))):
                choices[i], more = self._instead(placed, placed.tasks[i], c, failed)
                compiled |= more
        return {i: c.without(failed) for i, c in choices.items()}, pack(
            m.cubin for m in compiled.values() if m.cubin.symbol not in failed
        )

    def _instead(
        self, placed: Placed, task: Task, choice: search.Choice, failed: dict[str, BuildError]
    ) -> tuple[search.Choice, Mapping[Any, CompiledCubin]]:
        """Replaces a choice without a compiled kernel by another of the first tactics; returns it and its cubins,
        unchanged if none of these can be compiled, either."""
        for template, tactic in candidates(task.region, task.layouts, self.target, self._strict, MAX_TRIED)[:MAX_TRIED]:
            kernel = _with_alignment(placed, template.emit(task.region, task.layouts, tactic, self.target))
            if kernel.symbol not in failed and kernel.symbol not in LIBRARIES:
                compiled = self._compiler.cubins({kernel.symbol: kernel.source}, failed=failed)
                if kernel.symbol not in failed:
                    log.warning("%s instead of %s: %s", tactic.name, choice.tactic.name, failed[choice.kernel.symbol])
                    return replace(choice, template=template, tactic=tactic, kernel=kernel, alternatives=()), compiled
        return choice, {}

    def schedule(self, tasks: Sequence[ScheduledTask]) -> list[ScheduledTask]:
        return list(tasks)  # a stream has one order

    def check_kernels(self, plain: EnginePlan, placed: Placed, choices: Choices) -> EnginePlan:
        from pelton.backends.cuda.device import KernelHangs  # only GPU engines need it
        from pelton.backends.cuda.kernel_choice import drop_wrong_kernels

        if self._device is None or not any(s.alternatives for s in plain.steps):
            return plain
        try:
            return drop_wrong_kernels(plain, self._device, self._tell)
        except KernelHangs:
            raise
        except EngineError as e:
            log.warning("results of kernels were not compared: %s", e)
            return plain


def _with_alignment(placed: Placed, kernel: Kernel) -> Kernel:
    """Returns the kernel for the alignment of its placed operands; buffers themselves are aligned."""
    from pelton.codegen.triton import emit

    def begins(x: Value | Packed | KernelWorkspace) -> bool:
        at = placed.places[x].offset * x.type.dtype.size if isinstance(x, Value) else 0
        return at // emit.ALIGNED * emit.ALIGNED == at

    return emit.with_alignment(kernel, [begins(x) for x in kernel.operands])


def check_requirements(options: Options) -> None:
    from pelton.codegen.triton.toolchain import version  # only GPU engines need it

    architectures(options)
    version()


def describe_target(options: Options) -> tuple[Target, Mapping[str, Any]]:
    from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates)

    archs, device = architectures(options)
    return target_for(archs, device, options.level, options.precision), gpus(archs)


def runs_here(options: Options) -> bool:
    return architectures(options)[1] is not None


def precision(options: Options) -> frozenset[str]:
    """Returns a pass for each precision but fp32, which has none; kernels take recurrent layers in parts, and i8
    weights. Units from sm_89 on multiply FP8 but drop bits of sums, which strict builds do not allow."""
    float8 = not options.strict and min(options.architectures or architectures(options)[0]) >= FLOAT8
    names = {options.precision, "integers", "bytes", "quantized", "recurrent", "widen"}
    return frozenset(names | ({"float8"} if float8 else set()))


@contextmanager
def back_end(options: Options, weights: int, kept: Cache) -> Iterator[BackEnd]:
    from pelton.codegen.triton import toolchain as triton_compile
    from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates)
    from pelton.tuning.measure_cuda import GpuBench

    archs, device = architectures(options)
    target = target_for(archs, device, options.level, options.precision)
    compiler = triton_compile.TritonCompiler(archs, kept, cpu.default_threads())
    if device is None or not options.level:
        idle = [name for name in ("budget", "timing_cache") if getattr(options, name) is not None]
        if idle:
            log.warning(
                "%s has no effect: kernels are not timed %s",
                " and ".join(idle),
                "without a GPU" if options.level else "at level 0",
            )
        yield GpuCompilation(options, archs, target, device, compiler, None)
        return
    with open_timing_cache(options, _key(device, compiler.id, target), kept) as times:
        yield GpuCompilation(
            options, archs, target, device, compiler, create_timing(options, target, GpuBench(compiler, device), times)
        )


def architectures(options: Options) -> tuple[tuple[int, ...], Device | None]:
    """Returns the architectures to build for, and the GPU here if it is one of them."""
    device = here()
    unknown = set(options.architectures or ()).difference(ARCHITECTURES, (device.arch,) if device else ())
    if unknown:
        raise InputError(
            f"target {options.target!r}: there are no GPUs {_format_archs(unknown)}; kernels are made for"
            f" {_format_archs(ARCHITECTURES)}"
        )
    archs = options.architectures or ((device.arch,) if device else COMMON)
    return archs, device if device and fitting(archs, device.arch) is not None else None


def _format_archs(archs: Iterable[int]) -> str:
    return ", ".join(f"sm_{a}" for a in sorted(archs))


def here() -> Device | None:
    """Returns the GPU of this machine, or None."""
    from pelton.backends.cuda.driver import device

    try:
        return device()
    except EngineError as e:
        log.info("tactics for GPUs are guessed: %s", e)
        return None


def target_for(archs: Sequence[int], device: Device | None = None, level: int = 3, precision: str = "fp32") -> Target:
    """Returns the target for choosing tactics: `threads` are multiprocessors, `lanes` the threads of a warp. It
    describes the GPU, or a stand-in for the oldest architecture. Only the highest level tries templates that require a
    version of Triton: no GPU has run these yet."""
    from pelton.codegen.triton.toolchain import release

    of = device or typical(min(archs))
    known = {**(device.libraries if device else {}), **({"triton": release()} if level >= max(ALTERNATIVES) else {})}
    return Target(
        isa=",".join(f"sm_{a}" for a in archs),
        lanes=32,
        l1=of.l1,
        l2=of.l2,
        l3=of.l2,
        threads=of.multiprocessors,
        libraries=tuple(sorted(known.items())),
        tf32=precision == "tf32",
    )


def _key(device: Device, compiler: str, target: Target) -> str:
    """Returns the key of times besides the region: the GPU, its driver, the compiler and the templates."""
    return "|".join(
        map(
            str,
            (
                device.name,
                f"sm_{device.arch}",
                device.multiprocessors,
                device.l2,
                f"CUDA {device.cuda}",
                target.isa,
                compiler,
                template_hash(target.isa),
                *(["tf32"] if target.tf32 else []),
            ),
        )
    )
