"""Counts the instructions of an engine's kernels for micro-controllers, step by step, under QEMU.

    python -m benchmarks.mcu.kernel_counts [NETWORK …] [--level thumb_m4 …]

Needs qemu-user (7) and gcc. Kernels run as a user process: the instructions are those of a micro-controller, the counts
leave out what a program does around its kernels. Outputs must have the bytes of an engine for x86-64.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pelton
from pelton import native
from pelton.bundle import tables
from pelton.engine.plan import EnginePlan
from pelton.backends.cpu import describe
from pelton.targets import ISAS, best

from ..arm import counter
from .networks import NETWORKS, sample

FOLDER = Path(__file__).parent
QEMU = ("qemu-arm", "-cpu", "max")  # the plugin's interface is that of QEMU 7, whose Cortex-M fail as user processes


@dataclass(frozen=True)
class StepCount:
    """Instructions of a step's kernel."""

    name: str
    tactic: str
    instructions: int


@dataclass(frozen=True)
class KernelCounts:
    """Counts of an engine's kernels; code, weights and memory in bytes (memory without inputs and outputs)."""

    steps: tuple[StepCount, ...]
    code: int
    weights: int
    arena: int
    scratch: int
    output: bytes

    @property
    def instructions(self) -> int:
        return sum(s.instructions for s in self.steps)


def machine(level: str) -> list[str]:
    """Returns the options of zig for programs of a level, without an operating system."""
    isa = ISAS[level]
    (cpu,) = (flag.partition("=")[2].partition("+")[0] for flag in isa.flags if flag.startswith("-mcpu="))
    suffix = "hf" if "-mfloat-abi=hard" in isa.flags else ""
    return ["-target", f"thumb-freestanding-eabi{suffix}", f"-mcpu={cpu.replace('-', '_')}"]


def words_source(plan: EnginePlan) -> tuple[str, tables.BundleMemory]:
    """Writes the tables of an engine of known sizes, and lays out its memory."""
    where = tables.memory(plan, "net")
    listed = tables.listing(plan, where)
    declared = "\n".join(f"extern kernel {symbol};" for symbol in dict.fromkeys(s.symbol for s in plan.steps))
    steps = "\n".join(f"    {{{s.symbol}, {f}, {s.tiles * s.phases}}}," for s, f in zip(plan.steps, listed.firsts))
    patches = "\n".join(f"    {{{word}, {port}, {offset}}}," for word, port, offset in listed.patches)
    return (
        f"""{declared}
static const _Alignas(64) char net_weights[] = {{
#embed "weights.bin"
}};
static _Alignas(64) char net_memory[{max(where.arena, 1)}], scratch[{max(where.scratch, 1)}];
static args words[] = {{
{chr(10).join(listed.words)}
}};
static const bundle_patch patches[] = {{
{patches}
}};
static const bundle_step steps[] = {{
{steps}
}};
""",
        where,
    )


def count_kernels(plan: EnginePlan, x: np.ndarray, folder: Path) -> KernelCounts:
    """Runs an engine for a level of micro-controllers with one input and one output, and counts its steps."""
    level, ((taken,), (made,)) = plan.target["isa"], (plan.inputs, plan.outputs)
    text, where = words_source(plan)
    (folder / "words.inc").write_text(text)
    (folder / "weights.bin").write_bytes(where.weights)
    (folder / "kernels.o").write_bytes(bytes(plan.code))
    sizes = [f"-DIN_BYTES={taken.nbytes}", f"-DOUT_BYTES={made.nbytes}", '-DWORDS="words.inc"']
    flags = [
        "-std=c23",
        "-O2",
        "-static",
        "-fno-sanitize=all",
        "-fomit-frame-pointer",
        f"-I{folder}",
        f"-I{Path(native.PATH).parent}",
    ]
    flags += [f"--embed-dir={folder}"]
    command = [sys.executable, "-m", "ziglang", "cc", *machine(level), *flags, *sizes]
    counter.run([*command, FOLDER / "run_kernels.c", folder / "kernels.o", "-o", folder / "run"])
    (folder / "input.bin").write_bytes(np.ascontiguousarray(x).tobytes())
    shell = f'{" ".join(QEMU)} -plugin {counter.plugin()} "$0" < "$1" > "$2"'
    done = counter.run(["sh", "-c", shell, folder / "run", folder / "input.bin", folder / "output.bin"])
    _, *counts = (int(line.split()[0]) for line in done.stderr.splitlines())
    assert len(counts) == len(plan.steps)
    steps = tuple(StepCount(s.name, s.info.get("tactic", ""), n) for s, n in zip(plan.steps, counts))
    return KernelCounts(
        steps,
        code_size(folder / "kernels.o"),
        len(where.weights),
        where.arena,
        where.scratch,
        (folder / "output.bin").read_bytes(),
    )


def code_size(path: Path) -> int:
    """Returns the bytes of code and constants in an object's sections."""
    listed = counter.run(["size", "-A", path]).stdout.splitlines()
    rows = [line.split() for line in listed if line.startswith((".text", ".rodata", ".data"))]
    return sum(int(row[1]) for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    assert __doc__
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("networks", nargs="*", metavar="NETWORK", help=f"{', '.join(NETWORKS)}; default: all")
    ask.add_argument("--level", action="append", choices=[level for level, isa in ISAS.items() if isa.is_thumb])
    a = ask.parse_args(arguments)
    failed = False
    for name in a.networks or NETWORKS:
        network = NETWORKS[name].build(True)
        (taken,) = network.inputs
        x = sample(tuple(map(int, taken.shape)), np.random.default_rng(1))
        here = pelton.build(network, target=f"cpu:{best(describe())}", level=0, threads=1)
        expected = np.asarray(here(x))
        for level in a.level or ["thumb_m4"]:
            engine = pelton.build(network, target=f"cpu:{level}", level=0, threads=1)
            with tempfile.TemporaryDirectory() as folder:
                counts = count_kernels(engine.plain, x, Path(folder))
            equal = counts.output == expected.tobytes()
            failed |= not equal
            for s in counts.steps:
                print(f"{s.instructions:12,}  {s.tactic:60} {s.name}")
            print(
                f"{name}, {level}: {counts.instructions:,} instructions, code {counts.code:,} B, weights"
                f" {counts.weights:,} B, arena {counts.arena:,} B, scratch {counts.scratch:,} B,"
                f" {'equal bytes' if equal else 'WRONG'}",
                flush=True,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
