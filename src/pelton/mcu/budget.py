"""Says whether an engine fits into a micro-controller, layer by layer, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from pelton.engine.plan import EnginePlan
from pelton.record import record

from . import elf
from .footprint import Footprint
from .memory import StaticMemory, lifetimes, static_memory, total
from .targets import core_of
from .write import compiled, refuse

SHARE = 4  # a scratch or a kernel of this part of a limit is worth a word


@record(frozen=True)
class LayerMemory:
    """Memory of one step, in bytes: `live` in the arena while it runs, of which `scratch` is its kernel's own; `code`
    of its kernel, `weights` that no earlier step reads. Steps that share a kernel count it once."""

    name: str
    op: str
    tactic: str
    live: int
    scratch: int
    weights: int
    code: int


@record(frozen=True)
class Budget:
    """An engine beside the memory of a micro-controller, in bytes; None is no limit.

    peak: the number of the layer with the largest `live`. as_int8: expected flash and RAM with INT8 layers, None if no
    layer computes in floats.
    """

    core: str
    footprint: Footprint
    layers: Sequence[LayerMemory]
    ram: int | None
    flash: int | None
    peak: int
    as_int8: tuple[int, int] | None

    @property
    def fits(self) -> bool:
        """True if the engine is within both limits."""
        of = self.footprint
        return (self.ram is None or of.ram <= self.ram) and (self.flash is None or of.flash <= self.flash)

    @property
    def over(self) -> tuple[str, ...]:
        """The limits that it exceeds, as sentences."""
        rows = (("RAM", self.footprint.ram, self.ram), ("flash", self.footprint.flash, self.flash))
        return tuple(
            f"{what}: {need:,} bytes of {limit:,}, {need - limit:,} too many"
            for what, need, limit in rows
            if limit is not None and need > limit
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """What would make it smaller, the most helpful first; empty if it fits."""
        return () if self.fits else tuple(self._advice())

    def _advice(self) -> Iterator[str]:
        of, over_ram = self.footprint, self.ram is not None and self.footprint.ram > self.ram
        over_flash = self.flash is not None and of.flash > self.flash
        if self.as_int8:
            flash, ram = self.as_int8
            yield (
                f"--precision int8 with --calibration: about {flash:,} bytes of flash and {ram:,} of RAM are expected,"
                f" instead of {of.flash:,} and {of.ram:,}"
            )
        if over_ram and self.layers:
            top = self.layers[self.peak]
            yield (
                f"layer {self.peak}, {top.name}, takes the most RAM ({top.live:,} bytes): fewer channels, a stride or a"
                " smaller image there lower it"
            )
            if top.scratch * SHARE > top.live:
                yield (
                    f"its kernel takes {top.scratch:,} bytes of scratch; smaller tiles ({top.tactic}, in a file of"
                    " --save-tactics for --load-tactics) take less"
                )
        if over_flash and self.flash is not None:
            widest = max(self.layers, key=lambda x: x.weights)
            longest = max(self.layers, key=lambda x: x.code)
            if longest.code * SHARE > self.flash:
                yield (
                    f"{longest.name} has {longest.code:,} bytes of code; smaller tiles ({longest.tactic}, in a file of"
                    " --save-tactics for --load-tactics) take less"
                )
            yield f"{widest.name} has the most weights ({widest.weights:,} bytes)"

    def json(self) -> dict[str, Any]:
        """Returns the same for programs."""
        return {
            "core": self.core,
            "fits": self.fits,
            "footprint": self.footprint.json(),
            "limits": {"ram": self.ram, "flash": self.flash},
            "peak": self.peak,
            "layers": [asdict(layer) for layer in self.layers],
            "over": list(self.over),
            "advice": list(self.advice),
        }


def budget(plan: EnginePlan, ram: int | None = None, flash: int | None = None) -> Budget:
    """Compiles the sources of an engine and measures them. Raises InputError if no micro-controller runs it."""
    refuse(plan)
    memory = static_memory(plan)
    _, footprint = compiled(plan, "engine", memory)
    layers = _layers(plan, memory)
    peak = max(range(len(layers)), key=lambda i: layers[i].live, default=0)
    core, _ = core_of(plan.target["isa"])
    return Budget(core, footprint, layers, ram, flash, peak, _as_int8(plan, footprint))


def _layers(plan: EnginePlan, memory: StaticMemory) -> tuple[LayerMemory, ...]:
    code = elf.functions(bytes(plan.code)) if plan.steps else {}
    layers, seen = [], set[int]()
    for step, live in zip(plan.steps, memory.live):
        mine = {a.buffer for a in step.args if a.buffer in memory.constants} - seen
        seen |= mine
        layers.append(
            LayerMemory(
                name=step.name,
                op=str(step.info.get("op", "")),
                tactic=str(step.info.get("tactic", "")).partition("@")[0],
                live=live,
                scratch=int(step.scratch),
                weights=sum(int(plan.buffers[b].size) for b in mine),
                code=code.pop(step.symbol, 0),
            )
        )
    return tuple(layers)


def _as_int8(plan: EnginePlan, of: Footprint) -> tuple[int, int] | None:
    """Estimates (flash, RAM) if products of floats were of INT8: their weights and the f32 values between layers take a
    quarter. Inputs and outputs, scratch and code are as they are."""
    in_floats = [s for s in plan.steps if _multiplies_floats(s)]
    if not in_floats:
        return None
    floats = {t.slice.buffer for s in plan.steps for t in s.outputs if t.dtype == "f32"}
    lives = {
        key: replace(life, size=life.size // 4) if key in floats and plan.buffers[key].kind == "arena" else life
        for key, life in lifetimes(plan).items()
    }
    ram = total(plan, lives)
    weights = {a.buffer: plan.buffers[a.buffer].size for s in in_floats for a in s.args}
    held = sum(int(size) for b, size in weights.items() if plan.buffers[b].kind == "constant")
    return of.flash - held * 3 // 4, ram


def _multiplies_floats(step: Any) -> bool:
    """True for a step that INT8 would replace: a product or a convolution by a kernel of floats."""
    ops = set(str(step.info.get("op", "")).split("+"))
    return bool(ops & {"convolution", "matmul", "linear"}) and "int8" not in str(step.info.get("tactic", ""))
