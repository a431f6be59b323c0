"""What is different about building for CPUs and for NVIDIA GPUs: what code is made for, what it is timed on, and how kernels become an engine's code."""
from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pelton.backends import cpu
from pelton.backends.cpu.machine import target as runs_on_cpu
from pelton.system.cache import Cache, opened, used
from pelton.system import files
from pelton.engine.model import Engine
from pelton.engine.library import LIBRARIES
from pelton.errors import BuildError, Cancelled, EngineError, InputError
from pelton.ir.graph import Graph, Value
from pelton.ir.types import DType
from pelton.codegen.c.toolchain import Compiler, compiler_id
from pelton.codegen.c.isa import ISAS, best
from pelton.codegen.template import Kernel, Packed, Target
from pelton.options import Options
from pelton.passes.decompose import decompose
from pelton.passes.precision.lower_precision import keep
from pelton.passes.precision.tf32 import round_weights
from pelton.plan.place import Placed, Task
from pelton.plan.workspace import Workspace
from pelton.runtime.machine import check_runs_here, lacks
from pelton.tune import replay, search
from pelton.tune.timing_cache import TimingCache
from pelton.tune.candidates import candidates
from pelton.tune.measure import CpuBench, passing

if TYPE_CHECKING:
    from pelton.backends.cuda.device import Device
    from pelton.codegen.triton.toolchain import Made

log = logging.getLogger("pelton.build")

RECURRENT = ("lstm", "gru", "rnn")
KEPT = {"fp16": "f16", "bf16": "bf16"}                            # precision → what values are kept in; f32 as it is
COMMON = (80, 90)                                                 # architectures to build for where no GPU says which
TRIED = 8                                                         # tactics of a step whose kernels so far cannot be compiled
SPARES = {0: 0, 1: 0, 2: 0, 3: 1, 4: 4, 5: 8}                     # level → tactics that an engine for GPUs has beside the chosen one, for `pelton tune`

Choices = Mapping[int, search.Choice]


class BackEnd(Protocol):
    """One kind of target. `clock`: what times kernels, None where nothing is timed; `spares`: how many more tactics engines keep for each region; `meta`:
    what engines say of how they were tuned."""

    target: Target
    clock: search.Timing | None
    spares: int
    meta: Mapping[str, Any]
    runs_on: Mapping[str, Any]

    def together(self, placed: Placed, choices: Choices) -> tuple[Placed, Choices, Sequence[str]]:
        """The same with some tasks as one; and what was decided of each."""

    def code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        """The code of all kernels, and the choices that it has kernels for."""

    def agreed(self, plain: Engine) -> Engine:
        """The engine without kernels that were seen to give something else than those which stand in for them."""


@contextmanager
def back_end(options: Options, weights: int) -> Iterator[BackEnd]:
    """What builds a program with so many bytes of weights for the target of these options. BuildError where a compiler is missing, or new times cannot be
    kept."""
    kept = opened(options)
    try:
        with _cpu(options, weights, kept) if options.on_cpu else _gpu(options, kept) as found:
            yield found
    finally:
        kept.settle()


def ready(options: Options) -> None:
    """Whatever can be known of a build before the model is read: InputError for a target that there is not, BuildError for a compiler that is missing, and for
    a file of times or tactics that cannot be used."""
    opened(options)
    if options.on_cpu:
        _describe_cpu(options)
        if options.check:
            check_runs_here(options.target, "check")
        compiler_id(options.cc)
    else:
        from pelton.codegen.triton.toolchain import version  # only engines for GPUs need it

        _gpus(options)
        version()
    if options.timing_cache is not None:
        with _named(options):
            TimingCache("", options.timing_cache)
        why = files.refused(options.timing_cache) if not os.path.exists(options.timing_cache) and os.path.isdir(Path(options.timing_cache).parent) else None
        if why is not None and options.level:
            raise BuildError(f"the timing cache {options.timing_cache} cannot be written: {why}; give another file with --timing-cache")
    if options.load_tactics is not None:
        replay.read(options.load_tactics, _describe_cpu(options)[0].isa)
    if options.save_tactics is not None:
        why = files.refused(options.save_tactics)
        if why is not None:
            raise BuildError(f"tactics cannot be recorded in {options.save_tactics}: {why}; "
                             "give another file with save_tactics=")


def describe_target(options: Options) -> tuple[Target, Mapping[str, Any]]:
    """What code is made for, and what engines say about where they run."""
    if options.on_cpu:
        target, _ = _describe_cpu(options)
        return target, runs_on_cpu(target.isa)
    from pelton.backends.cuda.machine import target as runs_on_gpu  # only engines for GPUs need these
    from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates)

    archs, device = _gpus(options)
    return gpu_target(archs, device, options.level, options.precision), runs_on_gpu(archs)


def adapted(graph: Graph, options: Options) -> Graph:
    """The program with its values as the precision keeps them, and for GPUs, whose kernels take both in any precision, with recurrent layers as the product of
    all time steps and the recurrence."""
    if options.on_cpu:
        return graph
    graph = keep(graph, DType(KEPT[options.precision])) if options.precision in KEPT else graph
    graph = decompose(graph, lambda _, node: node.op.name not in RECURRENT)
    return round_weights(graph) if options.precision == "tf32" else graph


def teller(options: Options) -> Callable[[str, int, int], None]:
    """Tells of progress; Cancelled where whoever hears of it wants no more."""
    def tell(stage: str, done: int, total: int) -> None:
        if options.progress is not None and options.progress(stage, done, total) is False:
            raise Cancelled(f"the build was cancelled while in stage {stage!r} ({done} of {total})")
    return tell


@contextmanager
def _timing(options: Options, machine: str, kept: Cache) -> Iterator[TimingCache]:
    """The times of a machine, new ones kept in the end. Where the user named a file, a failure is an error; in the common cache it only costs time."""
    if options.timing_cache is not None:
        with _named(options):
            found = TimingCache(machine, options.timing_cache)
        yield found
        with _named(options):
            found.save()
        return
    path = kept.path("times", hashlib.sha256(machine.encode()).hexdigest() + ".json")
    found = _common(machine, path, kept)
    yield found
    try:
        found.save()
        if path is not None and found.fresh:
            kept.added(path.stat().st_size)
    except OSError as e:
        kept.refused(e)


def _common(machine: str, path: Path | None, kept: Cache) -> TimingCache:
    """The times in the common cache; none where it cannot be read, or is damaged."""
    try:
        try:
            found = TimingCache(machine, path)
        except BuildError as e:
            log.warning("times of kernels are taken anew: %s", e)
            os.unlink(path or "")
            return TimingCache(machine, path)
        if path is not None:
            used(path)
        return found
    except OSError as e:
        kept.refused(e)
        return TimingCache(machine)


@contextmanager
def _named(options: Options) -> Iterator[None]:
    """BuildError where the file of times that the user named cannot be read or written."""
    try:
        yield
    except OSError as e:
        raise BuildError(f"the timing cache {options.timing_cache} cannot be used: {e.strerror or e}; give another file with --timing-cache") from e


# ---- CPUs ----

class ForCpu:
    """See `BackEnd`."""

    spares = 0

    def __init__(self, options: Options, target: Target, compiler: Compiler, clock: search.Timing | None):
        self.target, self.clock = target, clock
        self.runs_on: Mapping[str, Any] = runs_on_cpu(target.isa)
        self.meta: Mapping[str, Any] = {"threads": target.threads}
        self._compiler, self._tell = compiler, teller(options)

    def together(self, placed: Placed, choices: Choices) -> tuple[Placed, Choices, Sequence[str]]:
        return placed, choices, ()                                # a launch is a claim of tiles here, which takes next to nothing

    def code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        self._tell("link", 0, 1)
        return choices, self._compiler.link(self._compiler.objects({c.kernel.symbol: c.kernel.source for c in choices.values()}))

    def agreed(self, plain: Engine) -> Engine:
        return plain                                              # it has no others


@contextmanager
def _cpu(options: Options, weights: int, kept: Cache) -> Iterator[BackEnd]:
    target, machine = _describe_cpu(options)
    between = passing(weights, target.l3)
    lacking, times_any = lacks(target.isa), options.level > 0 and options.load_tactics is None
    if lacking and times_any:
        log.warning("nothing is timed, tactics are guessed: the engine needs %s", lacking)
    with Compiler(target.isa, kept, options.cc, jobs=cpu.default_threads()) as compiler, \
            _timing(options, _cpu_key(machine, target, between, options), kept) as times:
        bench = CpuBench(compiler, target.threads, between)
        clock = _clock(options, target, bench, times) if times_any and not lacking else None
        yield ForCpu(options, target, compiler, clock)


def _describe_cpu(options: Options) -> tuple[Target, Mapping[str, Any]]:
    """(what code is made for, the CPU here)"""
    machine = cpu.describe()
    caches = machine["caches"]
    sizes = {name: caches.get(key, usual) for name, key, usual in (("l1", "l1d", 32 << 10), ("l2", "l2", 512 << 10), ("l3", "l3", 32 << 20))}
    isa = options.target.partition(":")[2] or best(machine["features"])
    if isa not in ISAS:
        raise InputError(f"target {options.target!r}: kernels for CPUs are made for {', '.join(ISAS)}")
    of = ISAS[isa]
    return Target(isa=isa, lanes=of.lanes, registers=of.registers, threads=options.threads or cpu.default_threads(), **sizes), machine


def _cpu_key(machine: Mapping[str, Any], target: Target, between: int, options: Options) -> str:
    """What times depend on besides the region: the CPU, the threads, the bytes of weights between two uses of the same ones, the compiler and the templates."""
    return "|".join(map(str, (machine["vendor"], machine["family"], machine["cpu_model"], machine["stepping"], target.isa, target.l1, target.l2, target.l3,
                              target.threads, between, compiler_id(options.cc), search.template_hash(target.isa))))


def _clock(options: Options, target: Target, bench: search.Bench, times: TimingCache) -> search.Timing:
    return search.Timing(target, bench, times, rounds=search.ROUNDS[options.level], budget=options.budget, progress=teller(options))


# ---- NVIDIA GPUs ----

class ForGpu:
    """See `BackEnd`. Tactics are timed where a GPU of one of the architectures is here, otherwise guessed by a model of the oldest of them."""

    def __init__(self, options: Options, archs: Sequence[int], target: Target, device: Device | None, compiler: Any, clock: search.Timing | None):
        from pelton.backends.cuda.machine import target as runs_on

        self.target, self.clock, self.spares = target, clock, SPARES[options.level]
        self.runs_on: Mapping[str, Any] = runs_on(archs)
        self.meta: Mapping[str, Any] = {"multiprocessors": target.threads, "gpu": device.name if device and clock else None}
        self._archs, self._compiler, self._tell = archs, compiler, teller(options)
        self._device = device if clock else None
        self._level, self._strict = options.level, options.strict

    def together(self, placed: Placed, choices: Choices) -> tuple[Placed, Choices, Sequence[str]]:
        from pelton.tune import launches  # only engines for GPUs need it

        if not self._level:
            return placed, choices, ()
        runs = launches.found(placed, choices, self.target, self.clock, self._strict)
        all_joined = launches.joined(placed, choices, runs)[0]
        kernels, failed = [_lying(all_joined, run.choice.kernel) for run in runs], dict[str, BuildError]()
        self._compiler.cubins({k.symbol: k.source for k in kernels}, failed=failed)
        for why in failed.values():
            log.warning("some regions are not one launch: %s", why)
        runs = [run for run, k in zip(runs, kernels) if k.symbol not in failed]
        return *launches.joined(placed, choices, runs), [f"{run.title()}: {len(run.tasks)} in one launch ({run.told})" for run in runs]

    def code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        from pelton.backends.cuda.bundle import pack

        choices = {i: c.with_kernels(partial(_lying, placed)) for i, c in choices.items()}
        sources = {k.symbol: k.source for c in choices.values() for k in (c.kernel, *(k for _, k in c.spares)) if k.symbol not in LIBRARIES}
        failed: dict[str, BuildError] = {}
        made = self._compiler.cubins(sources, lambda done: self._tell("compile", done, len(sources) * len(self._archs)), failed)
        for i, c in choices.items():
            if all(k.symbol in failed for k in (c.kernel, *(k for _, k in c.spares))):
                choices[i], more = self._instead(placed, placed.tasks[i], c, failed)
                made |= more
        return {i: c.without(failed) for i, c in choices.items()}, pack(m.cubin for m in made.values() if m.cubin.symbol not in failed)

    def _instead(self, placed: Placed, task: Task, choice: search.Choice, failed: dict[str, BuildError]) -> tuple[search.Choice, Mapping[Any, Made]]:
        """A choice none of whose kernels could be compiled, by another of the first tactics, and its cubins; as it is where these cannot be, either."""
        for template, tactic in candidates(task.region, task.layouts, self.target, self._strict, TRIED)[:TRIED]:
            kernel = _lying(placed, template.emit(task.region, task.layouts, tactic, self.target))
            if kernel.symbol not in failed and kernel.symbol not in LIBRARIES:
                made = self._compiler.cubins({kernel.symbol: kernel.source}, failed=failed)
                if kernel.symbol not in failed:
                    log.warning("%s instead of %s: %s", tactic.name, choice.tactic.name, failed[choice.kernel.symbol])
                    return replace(choice, template=template, tactic=tactic, kernel=kernel, spares=()), made
        return choice, {}

    def agreed(self, plain: Engine) -> Engine:
        from pelton.backends.cuda.device import Stuck  # only engines for GPUs need it
        from pelton.runtime.cuda_tune import agreed

        if self._device is None or not any(s.spares for s in plain.steps):
            return plain
        try:
            return agreed(plain, self._device, self._tell)
        except Stuck:
            raise
        except EngineError as e:
            log.warning("what kernels give was not compared: %s", e)
            return plain


def _lying(placed: Placed, kernel: Kernel) -> Kernel:
    """The kernel for operands as they lie here, of which some may not begin where kernels expect it. Buffers do."""
    from pelton.codegen.triton import emit

    def begins(x: Value | Packed | Workspace) -> bool:
        at = placed.places[x].offset * x.type.dtype.size if isinstance(x, Value) else 0
        return at // emit.ALIGNED * emit.ALIGNED == at
    return emit.lying(kernel, [begins(x) for x in kernel.operands])


@contextmanager
def _gpu(options: Options, kept: Cache) -> Iterator[BackEnd]:
    from pelton.codegen.triton import toolchain as triton_compile
    from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates)
    from pelton.tune.measure_cuda import GpuBench

    archs, device = _gpus(options)
    target = gpu_target(archs, device, options.level, options.precision)
    compiler = triton_compile.Compiler(archs, kept, cpu.default_threads())
    if device is None or not options.level:
        idle = [name for name in ("budget", "timing_cache") if getattr(options, name) is not None]
        if idle:
            log.warning("%s has no effect: nothing is timed %s", " and ".join(idle), "without a GPU" if options.level else "at level 0")
        yield ForGpu(options, archs, target, device, compiler, None)
        return
    with _timing(options, gpu_key(device, compiler.id, target), kept) as times:
        yield ForGpu(options, archs, target, device, compiler, _clock(options, target, GpuBench(compiler, device), times))


def _gpus(options: Options) -> tuple[tuple[int, ...], Device | None]:
    """The architectures to build for, and the GPU here where it is of one of them."""
    from pelton.backends.cuda.machine import ARCHITECTURES, fitting

    device = gpu_here()
    unknown = set(options.architectures or ()).difference(ARCHITECTURES, (device.arch,) if device else ())
    if unknown:
        raise InputError(f"target {options.target!r}: there are no GPUs {_spelled(unknown)}; kernels are made for {_spelled(ARCHITECTURES)}")
    archs = options.architectures or ((device.arch,) if device else COMMON)
    return archs, device if device and fitting(archs, device.arch) is not None else None


def _spelled(archs: Iterable[int]) -> str:
    return ", ".join(f"sm_{a}" for a in sorted(archs))


def gpu_here() -> Device | None:
    """The GPU of this machine; None where there is none."""
    from pelton.backends.cuda.driver import device

    try:
        return device()
    except EngineError as e:
        log.info("tactics for GPUs are guessed: %s", e)
        return None


def gpu_target(archs: Sequence[int], device: Device | None = None, level: int = 3, precision: str = "fp32") -> Target:
    """What tactics are chosen for: `threads` are multiprocessors, `lanes` the threads of a warp. Those of the GPU, else of what stands for the oldest
    architecture. Templates that ask for a version of Triton are those that no GPU has run yet, which only the highest level tries."""
    from pelton.backends.cuda.machine import usual
    from pelton.codegen.triton.toolchain import release

    of = device or usual(min(archs))
    known = {**(device.libraries if device else {}), **({"triton": release()} if level >= max(SPARES) else {})}
    return Target(isa=",".join(f"sm_{a}" for a in archs), lanes=32, l1=of.l1, l2=of.l2, l3=of.l2, threads=of.multiprocessors,
                  libraries=tuple(sorted(known.items())), tf32=precision == "tf32")


def gpu_key(device: Device, compiler: str, target: Target) -> str:
    """What times depend on besides the region: the GPU, its driver, the compiler and the templates."""
    return "|".join(map(str, (device.name, f"sm_{device.arch}", device.multiprocessors, device.l2, f"CUDA {device.cuda}", target.isa, compiler,
                              search.template_hash(target.isa), *(["tf32"] if target.tf32 else []))))
