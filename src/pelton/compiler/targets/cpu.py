"""Builds for CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pelton.logs import Logger
from pelton.backends import cpu
from pelton.backends.cpu import load_code
from pelton.backends.cpu.machine import target as runs_on
from pelton.codegen.c.toolchain import ClangCompiler, compiler_id
from pelton.codegen.template import Target
from pelton.engine.plan import EnginePlan
from pelton.errors import InputError
from pelton.ir.types import BF16, F16, F32, DType
from pelton.options import Options
from pelton.plan import brief
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Placed
from pelton.backends.cpu.check import check_runs_here, lacks
from pelton.system.cache import Cache
from pelton.targets import ISAS, best
from pelton.tuning import measure_wasm, search
from pelton.tuning.canaries import Guard
from pelton.tuning.measure import CpuBench, weight_traffic
from pelton.tuning.tasks import at_several_sizes, is_of_plugin
from pelton.tuning.timing_cache import template_hash

from .interface import BackEnd, Choices, create_timing, open_timing_cache, progress_reporter

# The number of further kernels for each step in engines for other machines, by level.
ALTERNATIVES = {0: 0, 1: 0, 2: 0, 3: 2, 4: 4, 5: 8}
MAX_DOWNLOADED = 1.1  # packed weights of engines that are downloaded, relative to the model's own
HALVES: Mapping[str, DType] = {"fp16": F16, "bf16": BF16}  # by precision

log = Logger("pelton.build")


class CpuBackEnd:
    """See `BackEnd`."""

    def __init__(
        self, options: Options, target: Target, compiler: ClangCompiler, timing: search.Timing | None, guard: Guard
    ):
        self.target, self.timing = target, timing
        # kernels that cannot be timed here are timed where the engine runs
        replays = options.load_tactics or options.refit
        travels = lacks(target.isa) and not target.level.relocatable
        self.alternatives = ALTERNATIVES[options.level] if travels and not replays else 0
        self.runs_on: Mapping[str, Any] = runs_on(target.isa)
        self.meta: Mapping[str, Any] = {"threads": target.threads}
        self._compiler, self._guard, self._tell = compiler, guard, progress_reporter(options)

    def merge_launches(self, placed: Placed, choices: Choices) -> tuple[Placed, Choices, Sequence[str]]:
        # a launch is a claim of tiles here, at almost no cost
        return placed, choices, ()

    def generate_code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        kernels = [k for c in choices.values() for k in (c.kernel, *(k for _, k in c.alternatives))]
        sources = {k.symbol: k.source for k in kernels}
        objects = self._compiler.objects(sources, lambda done: self._tell("compile", done, len(sources)))
        self._tell("link", 0, 1)
        return choices, self._compiler.link(objects)

    def schedule(self, tasks: Sequence[ScheduledTask]) -> list[ScheduledTask]:
        return brief.serialized(tasks)

    def check_kernels(self, plain: EnginePlan, placed: Placed, choices: Choices) -> EnginePlan:
        """Runs plugin kernels between canaries, also untimed ones; logs a warning where this CPU cannot."""
        own = [(placed.tasks[i], c.kernel) for i, c in choices.items() if is_of_plugin(placed.tasks[i])]
        lacking = lacks(self.target.isa)
        if own and lacking:
            log.warning(
                "plugin kernels were not checked for writes out of bounds (%s): the engine needs %s; build it"
                " once on such a CPU",
                ", ".join(dict.fromkeys(task.region.title() for task, _ in own)),
                lacking,
            )
        elif own:
            with load_code(plain.code) as loaded:
                for task, kernel in own:
                    for sized, known in at_several_sizes(task, kernel):
                        self._guard.check(loaded, known, sized)
        return plain


def check_requirements(options: Options) -> None:
    describe(options)
    if options.check:
        check_runs_here(options.target, "check")
    compiler_id(options.cc)


def describe_target(options: Options) -> tuple[Target, Mapping[str, Any]]:
    target, _ = describe(options)
    return target, runs_on(target.isa)


def runs_here(options: Options) -> bool:
    return lacks(describe(options)[0].isa) is None


def precision(options: Options) -> frozenset[str]:
    """Returns the passes: f32 is fastest on CPUs; strict builds round as the model does."""
    return frozenset({"integers", "computed", "quantized", "widen"} | (set() if options.strict else {"halves"}))


@contextmanager
def back_end(options: Options, weights: int, kept: Cache) -> Iterator[BackEnd]:
    target, machine = describe(options)
    between = weight_traffic(weights, target.l3)
    times_any = options.level > 0 and options.load_tactics is None
    if times_any and (reason := _untimed(target)):
        log.warning("kernels are not timed, a cost model chooses: %s", reason)
    with (
        ClangCompiler(target.isa, kept, options.cc, jobs=cpu.default_threads()) as compiler,
        open_timing_cache(options, _key(machine, target, between, options), kept) as times,
    ):
        guard = Guard(compiler, kept)
        bench = _bench(compiler, target, between, guard)
        timing = create_timing(options, target, bench, times) if times_any and bench is not None else None
        yield CpuBackEnd(options, target, compiler, timing, guard)


def _untimed(target: Target) -> str | None:
    """Returns the reason why no kernel is timed here, or None."""
    if target.level.is_wasm:
        return None if measure_wasm.node() else "those for WebAssembly are timed by node, which is not installed"
    lacking = lacks(target.isa)
    if target.level.is_thumb:
        return f"the engine needs {lacking}"
    return f"the engine needs {lacking}; `pelton tune` times them there" if lacking else None


def _bench(compiler: ClangCompiler, target: Target, between: int, guard: Guard) -> search.Bench | None:
    """Returns what times kernels; None where nothing can."""
    if _untimed(target):
        return None
    if target.level.is_wasm:
        return measure_wasm.WasmBench(compiler, between)
    return CpuBench(compiler, target.threads, between, guard)


def describe(options: Options) -> tuple[Target, Mapping[str, Any]]:
    """Returns (the target of code generation, the CPU here)."""
    machine = cpu.describe()
    isa = options.target.partition(":")[2] or best(machine, bf16=options.precision == "bf16")
    if isa not in ISAS:
        raise InputError(f"target {options.target!r}: kernels for CPUs are made for {', '.join(ISAS)}")
    of = ISAS[isa]
    caches = machine["caches"] if of.arch == machine["arch"] else {}
    sizes = {
        name: caches.get(key, usual)
        for name, key, usual in (("l1", "l1d", 32 << 10), ("l2", "l2", 512 << 10), ("l3", "l3", 32 << 20))
    }
    return (
        Target(
            isa=isa,
            lanes=of.lanes,
            registers=of.registers,
            threads=1 if of.small else options.threads or cpu.default_threads(),
            max_packed=options.max_packed or (MAX_DOWNLOADED if of.relocatable else Target.max_packed),
            half=HALVES.get(options.precision, F32),
            **sizes,
        ),
        machine,
    )


def _key(machine: Mapping[str, Any], target: Target, between: int, options: Options) -> str:
    """Returns the key of times besides the region: the CPU, the threads, the bytes of weights between two uses of the
    same ones, the compiler and the templates."""
    return "|".join(
        map(
            str,
            (
                machine["vendor"],
                machine["family"],
                machine["cpu_model"],
                machine["stepping"],
                target.isa,
                target.l1,
                target.l2,
                target.l3,
                target.threads,
                between,
                compiler_id(options.cc),
                measure_wasm.version() if target.level.is_wasm and measure_wasm.node() else "",
                template_hash(target.isa),
            ),
        )
    )
