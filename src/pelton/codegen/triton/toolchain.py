"""Compiles Triton text to cubins, ahead of time and without a GPU, with a content-addressed cache of them."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import linecache
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from importlib import metadata
from typing import Any

from pelton.logs import Logger
from pelton.engine.cubin import Cubin, TensorMap
from pelton.system.cache import Cache
from pelton.system.temporary import temporary_folder
from pelton.errors import BuildError
from pelton.targets import typical

from . import workers
from .emit import ALIGNED

# the Triton whose Gluon has maps in im2col mode: 3.9
GLUON = 30900
_SUM_OF_TWO = re.compile(r"add\.s16x2\s+(%\w+), (%\w+), (%\w+);")  # in PTX
CUBIN = {f.name for f in fields(Cubin)} - {"image"}  # cached beside the image


@dataclass(frozen=True)
class CompiledCubin:
    """A cubin, and the registers and spilled bytes that it takes per thread; None if the tool that counts them is
    missing."""

    cubin: Cubin
    registers: int | None
    spilled: int | None


def version() -> str:
    """Returns the compiler's name and version, for cache keys; raises BuildError if it is missing."""
    try:
        import triton
    except ImportError:
        raise BuildError(
            'building engines for CUDA needs the compiler triton: pip install "pelton[build,cuda]"'
        ) from None
    return f"triton {triton.__version__}"


@cache
def release() -> int:
    """Returns the compiler's version as 30900, 0 if it is missing. Does not import it, which is slow."""
    try:
        numbers = re.findall(r"\d+", metadata.version("triton"))
    except metadata.PackageNotFoundError:
        return 0
    major, minor, patch = (int(n) for n in (*numbers, 0, 0)[:3])
    return 10000 * major + 100 * minor + patch


def load(text: str, name: str) -> dict[str, Any]:
    """Returns the names that a kernel's source defines. Triton reads the source of functions again by their file, here
    one in memory."""
    file = f"<{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text, file, "exec"), names)
    return names


def read_phased(text: str) -> int:
    """Returns the PHASED constant of a kernel's source, 0 if it has none: see `Cubin.phased`."""
    return int((re.findall(r"^PHASED = tl\.constexpr\((\d)\)$", text, re.M) or [0])[0])


def read_tensor_maps(text: str) -> tuple[TensorMap, ...]:
    """Returns the tensor maps that a kernel's source declares for its operands."""
    match = re.search(r"^MAPS = (.*)$", text, re.M)
    return tuple(map(TensorMap.of, ast.literal_eval(match[1]))) if match else ()


def _described(pointer: str, of: TensorMap) -> str:
    """Returns Gluon's type of a map of a pointer's data; boxes in shared memory have the layout of the tensor cores."""
    from triton.experimental.gluon import language as gl

    dtype = {"*fp16": gl.float16, "*bf16": gl.bfloat16}[pointer]
    block = list(reversed(of.box))
    lies = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return f"tensordesc{'_im2col' if of.lower else ''}<{pointer[1:]}{block},{lies!r}>"


class TritonCompiler:
    """Compiles kernel sources for some architectures (80 for sm_80), and caches cubins on disk by content. `cache` None
    keeps them for this process only.

    jobs: processes that compile side by side; 1 compiles in this one.
    """

    def __init__(self, archs: Sequence[int] = (80, 90), cache: Cache | None = None, jobs: int = 2):
        self.archs, self.jobs = tuple(archs), jobs
        self.compiled = self.reused = 0
        self._cache, self.id = cache, version()
        self._memory: dict[str, CompiledCubin] = {}

    def cubins(
        self,
        sources: Mapping[str, str],
        progress: Callable[[int], None] = lambda done: None,
        failed: dict[str, BuildError] | None = None,
        archs: Sequence[int] | None = None,
    ) -> dict[tuple[str, int], CompiledCubin]:
        """Compiles symbol → source to (symbol, architecture) → cubin, for these architectures, by default all of its
        own. `progress` is called with the number of finished cubins. `failed`, if given, collects failures, symbol →
        reason; otherwise the first one is raised."""
        wanted = [(s, arch) for s in sources for arch in archs or self.archs]
        out = {w: made for w in wanted if (made := self._known(sources[w[0]], w[1])) is not None}
        missing = [w for w in wanted if w not in out]

        def keep(w: tuple[str, int], result: Callable[[], CompiledCubin]) -> None:
            progress(len(out))
            try:
                out[w] = self._keep(sources[w[0]], w[1], result())
            except BuildError as e:
                if failed is None:
                    raise
                failed.setdefault(w[0], e)

        if self.jobs > 1 and len(missing) > 1:
            with workers.pool(min(self.jobs, len(missing)), compile_cubin) as submit:
                running = {w: submit(w[0], sources[w[0]], w[1]) for w in missing}
                for w, job in running.items():
                    keep(w, job.result)
        else:
            for w in missing:
                keep(w, partial(compile_cubin, w[0], sources[w[0]], w[1]))
        return {w: out[w] for w in wanted if w in out}

    def _key(self, text: str, arch: int) -> str:
        return hashlib.sha256(f"{self.id}\nsm_{arch}\n{text}".encode()).hexdigest()

    def _known(self, text: str, arch: int) -> CompiledCubin | None:
        key = self._key(text, arch)
        if key not in self._memory and self._cache is not None:
            data = self._cache.read("cubins", f"{key[:2]}/{key}.cubin")
            if data is None:
                return None
            table, _, image = data.partition(b"\n")
            entry = json.loads(table)
            if entry["cubin"].keys() != CUBIN:  # of another version
                return None
            maps = tuple(TensorMap.of([*m.values()]) for m in entry["cubin"].pop("maps"))
            self._memory[key] = CompiledCubin(
                Cubin(image=image, maps=maps, **entry["cubin"]), entry["registers"], entry["spilled"]
            )
            self.reused += 1
        return self._memory.get(key)

    def _keep(self, text: str, arch: int, made: CompiledCubin) -> CompiledCubin:
        self.compiled += 1
        key = self._key(text, arch)
        self._memory[key] = made
        if self._cache is not None:
            entry = asdict(made)
            image = entry["cubin"].pop("image")
            self._cache.store("cubins", f"{key[:2]}/{key}.cubin", json.dumps(entry).encode() + b"\n" + image)
        return made


def _inspect_stages(backend: Any = None, stages: dict[str, Any] | None = None, *_: Any) -> tuple[str, str] | None:
    """Triton's hook: inserts `split_sums` behind the stage that makes PTX. Without stages, returns an addition to
    Triton's cache key, which is unused."""
    if stages is None:
        return "", ""
    plain = stages["ptx"]
    stages["ptx"] = lambda source, metadata: split_sums(plain(source, metadata))
    return None


def split_sums(ptx: str) -> str:
    """Splits sums of two i16 in one register in PTX: ptxas up to 12.9, which comes with Triton before 3.9, adds 0
    instead of a constant to the upper one."""
    return _SUM_OF_TWO.sub(
        r"{ .reg .b16 %al, %ah, %bl, %bh; mov.b32 {%al, %ah}, \2; mov.b32 {%bl, %bh}, \3;"
        r" add.s16 %al, %al, %bl; add.s16 %ah, %ah, %bh; mov.b32 \1, {%al, %ah}; }",
        ptx,
    )


def compile_source(symbol: str, text: str, arch: int) -> Any:
    """Compiles a source by Triton (`asm` holds its stages). Raises BuildError if that fails, or ignores the options."""
    from triton import compile, knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.errors import TritonError

    maps = {m.operand: m for m in read_tensor_maps(text)}
    if maps and release() < GLUON:
        newer = f"{GLUON // 10000}.{GLUON // 100 % 100}"
        raise BuildError(
            f"kernel {symbol} needs tensor maps, which {version()} does not support: install triton {newer} or newer"
        )
    source = load(text, symbol)
    types, multiples = source["SIGNATURE"], source["MULTIPLES"]
    if maps:
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource  # noqa: F811
    if not all(multiples[i] for i in maps):
        raise BuildError(f"kernel {symbol} has tensor maps that do not begin at multiples of {ALIGNED} bytes")
    types = tuple(_described(t, maps[i]) if i in maps else t for i, t in enumerate(types))
    options = {"num_warps": source["WARPS"], "num_stages": source["STAGES"], "num_ctas": 1, "enable_fp_fusion": True}
    attrs = {(0, i): [["tt.divisibility", ALIGNED]] for i, known in enumerate(multiples) if known and i not in maps}
    output = io.StringIO()  # a failing assembler prints its whole input
    with (
        temporary_folder() as folder,
        knobs.compilation.scope(),
        knobs.cache.scope(),
        knobs.runtime.scope(),
        contextlib.redirect_stdout(output),
    ):
        knobs.cache.dir, knobs.compilation.always_compile, knobs.compilation.disable_line_info = folder, True, True
        knobs.runtime.add_stages_inspection_hook = _inspect_stages
        try:
            made = compile(
                ASTSource(source[symbol], {"a": types}, {}, attrs), target=GPUTarget("cuda", arch, 32), options=options
            )
        except (TritonError, RuntimeError) as e:  # its passes raise the latter
            raise BuildError(
                f"compiling kernel {symbol} ({text.splitlines()[0].strip(chr(34))}) for sm_{arch} failed:"
                f" {str(e).strip()[:2000]}"
            ) from e
    kept = {name: getattr(made.metadata, name) for name in options}
    if kept != options:
        raise BuildError(f"triton compiled kernel {symbol} with {kept} instead of {options}")
    return made


def compile_cubin(symbol: str, text: str, arch: int) -> CompiledCubin:
    """Returns the cubin of a kernel for an architecture. Raises BuildError as `compile_source`."""
    return extract_cubin(compile_source(symbol, text, arch), text, arch)


def extract_cubin(found: Any, text: str, arch: int) -> CompiledCubin:
    """Extracts the cubin from Triton's result. Raises BuildError if no GPU of that architecture could run it."""
    about, image = found.metadata, found.asm["cubin"]
    if about.shared > typical(arch).block:
        raise BuildError(
            f"kernel {about.name} needs {about.shared} bytes of shared memory, but a block of sm_{arch} has"
            f" {typical(arch).block}"
        )
    cubin = Cubin(
        symbol=about.name,
        arch=arch,
        image=image,
        shared=about.shared,
        warps=about.num_warps,
        clusters=about.num_ctas,
        scratch=about.global_scratch_size,
        align=max(1, about.global_scratch_align),
        phased=read_phased(text),
        maps=_maps(text, about),
    )
    return CompiledCubin(cubin, *_resources(image))


def _maps(text: str, about: Any) -> tuple[TensorMap, ...]:
    """Returns the maps of a compiled kernel. Raises BuildError if it was compiled for others."""
    wanted = read_tensor_maps(text)
    for m, meta in zip(wanted, about.tensordesc_meta or (), strict=True):
        if (tuple(reversed(meta["block_size"])), meta["swizzle"], meta["is_im2col"]) != (
            m.box,
            m.swizzle,
            bool(m.lower),
        ):
            raise BuildError(f"kernel {about.name} was to fetch boxes of {m.box}, and fetches {meta}")
        if why := m.rejection():
            raise BuildError(f"kernel {about.name} has a tensor map with {why}, which no GPU supports")
    return wanted


def _resources(image: bytes) -> tuple[int | None, int | None]:
    """Returns (registers, bytes spilled) per thread, as counted by the cubin tool in Triton's wheel (spills show as
    stack); None for those that it does not count."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        try:
            usage = subprocess.run(
                [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        except (OSError, subprocess.CalledProcessError) as e:
            Logger("pelton.build").warning("registers and spills are not known: %s", e)
            return None, None
    registers, stack = (re.search(rf"{word}:(\d+)", usage) for word in ("REG", "STACK"))
    return int(registers[1]) if registers else None, int(stack[1]) if stack else None
