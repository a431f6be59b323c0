"""Compiles C to machine code: clang of the ziglang wheel, a content-addressed cache of objects, one ELF per engine."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache, cache
from pathlib import Path

from pelton.system.cache import Cache
from pelton.system.temporary import temporary_folder
from pelton.errors import BuildError

from pelton.targets import ISAS
from pelton.codegen.template import SOURCES
from pelton.plugins.includes import with_included


FLAGS = (
    "-std=c23",
    "-O3",
    "-ffreestanding",
    "-fsigned-char",  # the masks that comparisons of bytes give are vectors of char
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-stack-protector",
    "-fvisibility=default",
    "-g0",
    "-w",
)
_ONCE: dict[tuple[str, ...], bytes] = {}  # results that every build needs, compiled once per process
# how `link` makes one file of an engine's kernels: a shared object, or an object to be linked again
SHARED = "ld.lld -shared -nostdlib --no-undefined --build-id=none -z noexecstack --strip-all --gc-sections".split()
RELOCATABLE, RELOCATABLE_ELF = ("wasm-ld", "-r"), ("ld.lld", "-r")


@lru_cache(maxsize=1)
def zig() -> str:
    """Returns the path of the ziglang wheel's binary; raises BuildError if the wheel is missing."""
    try:
        import ziglang
    except ImportError:
        raise BuildError(
            'building engines needs the compiler of the ziglang wheel: pip install "pelton[build]"'
        ) from None
    return os.path.join(os.path.dirname(ziglang.__file__), "zig")


@cache
def compiler_id(cc: str | None = None) -> str:
    """Returns the compiler's version line, a part of cache keys; raises BuildError if it does not run."""
    command = [cc, "--version"] if cc else [zig(), "clang", "--version"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as e:
        raise BuildError(
            f"the C compiler {command[0]!r} fails with --version ({e}); set another one with Options.cc"
        ) from None


@lru_cache(maxsize=1)
def headers() -> str:
    """Returns the hash of all headers that kernels include."""
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(SOURCES.glob("*.h")))).hexdigest()


class ClangCompiler:
    """Compiles kernel sources to objects, and caches them by content: on disk, or in memory alone without a `cache`."""

    def __init__(self, isa: str, cache: Cache | None = None, cc: str | None = None, jobs: int = 2):
        self.isa, self.cc, self.jobs = isa, cc, jobs
        self.compiled = self.reused = 0
        self._cache = cache
        self._memory: dict[str, bytes] = {}
        self._open = ExitStack()
        with _temporary():
            self._work = self._open.enter_context(temporary_folder())
        self._env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=self._work, ZIG_LOCAL_CACHE_DIR=self._work)
        self._prepared: str | None = None
        self._salt = "\n".join((compiler_id(cc), isa, *FLAGS, headers()))
        self._identity = (self._salt, *self._command())

    def __enter__(self) -> "ClangCompiler":
        return self

    def __exit__(self, *_) -> None:
        self._open.close()

    def objects(
        self, sources: Mapping[str, str], progress: Callable[[int], None] = lambda done: None
    ) -> dict[str, bytes]:
        """Returns the object code of sources by symbol; compiles in parallel.

        `progress` is called with the number of finished objects.
        """
        out = {s: o for s, text in sources.items() if (o := self._known(text)) is not None}
        missing = [s for s in sources if s not in out]
        if missing:
            self._prepare()
        with ThreadPoolExecutor(self.jobs) as pool:
            running = [pool.submit(self._compile, s, sources[s]) for s in missing]
            try:
                for s, job in zip(missing, running):
                    progress(len(out))
                    out[s] = job.result()
            except BaseException:
                for job in running:
                    job.cancel()
                raise
        return {s: out[s] for s in sources}

    def link(self, objects: Mapping[str, bytes]) -> bytes:
        """Links kernels in the given order to one shared object without undefined symbols; for targets whose code is
        relocatable, to one object that programs are linked with."""
        isa = ISAS[self.isa]
        if not isa.is_thumb:  # programs for micro-controllers have these functions
            objects = {**objects, "freestanding": self._once("freestanding.c", self._freestanding)}
        relocatable = RELOCATABLE if isa.is_wasm else RELOCATABLE_ELF
        return self._linked(objects, [zig(), *(relocatable if isa.relocatable else SHARED)])

    def _linked(self, objects: Mapping[str, bytes], command: Sequence[str]) -> bytes:
        with _temporary(), tempfile.TemporaryDirectory(dir=self._work) as d:
            for name, code in objects.items():
                Path(d, name + ".o").write_bytes(code)
            output = os.path.join(d, "out.so")
            self._run([*command, "-o", output, *(n + ".o" for n in objects)], "linking the engine's kernels", cwd=d)
            return Path(output).read_bytes()

    def module(self, objects: Mapping[str, bytes], exports: Sequence[str]) -> bytes:
        """Links kernels for WebAssembly to a module with these exports and its memory."""
        objects = {**objects, "freestanding": self._once("freestanding.c", self._freestanding)}
        command = [zig(), "wasm-ld", "--no-entry", "--strip-all", *(f"--export={name}" for name in exports)]
        return self._linked(objects, command)

    def assembly(self, text: str) -> str:
        """Returns the assembly of a source (tests count spills in it)."""
        with tempfile.TemporaryDirectory(dir=self._work) as d:
            Path(d, "k.c").write_text(text, "utf-8")
            self._run([*self._command(), "-S", "-o", os.path.join(d, "k.s"), os.path.join(d, "k.c")], "compiling")
            return Path(d, "k.s").read_text("utf-8")

    def key(self, text: str) -> str:
        """Returns the hash of all inputs of a source's object code."""
        return hashlib.sha256((self._salt + "\n" + with_included(text, SOURCES)).encode()).hexdigest()

    def _known(self, text: str) -> bytes | None:
        key = self.key(text)
        if key not in self._memory and self._cache is not None:
            data = self._cache.read("objects", f"{key[:2]}/{key}.o")
            if data is None:
                return None
            self.reused += 1
            self._memory[key] = data
        return self._memory.get(key)

    def _compile(self, symbol: str, text: str) -> bytes:
        with _temporary(), tempfile.TemporaryDirectory(dir=self._work) as d:
            src, obj = os.path.join(d, symbol + ".c"), os.path.join(d, symbol + ".o")
            Path(src).write_text(text, "utf-8")
            title = text.splitlines()[0].lstrip("/ ")
            self._run([*self._command(), "-c", "-o", obj, src], f"compiling kernel {symbol} ({title})")
            code = Path(obj).read_bytes()
        self.compiled += 1
        key = self.key(text)
        self._memory[key] = code
        if self._cache is not None:
            self._cache.store("objects", f"{key[:2]}/{key}.o", code)
        return code

    def _once(self, source: str, make: Callable[[], bytes]) -> bytes:
        """Returns the result of `make` for a source, shared by all compilers of this process with the same command."""
        key = (source, *self._identity)
        if key not in _ONCE:
            _ONCE[key] = make()
        return _ONCE[key]

    def _freestanding(self) -> bytes:
        return self.objects({"freestanding": (SOURCES / "freestanding.c").read_text("utf-8")})["freestanding"]

    def _prepare(self) -> None:
        """Precompiles vec.h, which saves two thirds of the time to compile a small kernel."""
        if self._prepared is None:
            made = Path(self._work, "vec.pch")

            def make() -> bytes:
                command = [*self._command(), "-x", "c-header", "-o", str(made), str(SOURCES / "vec.h")]
                self._run(command, "compiling vec.h")
                return made.read_bytes()

            with _temporary():
                made.write_bytes(self._once("vec.h", make))
            self._prepared = str(made)

    def _command(self) -> list[str]:
        driver = [self.cc] if self.cc else [zig(), "clang"]
        ready = ["-include-pch", self._prepared] if self._prepared else []
        isa = ISAS[self.isa]
        march = [f"-march={isa.march}"] if isa.march else []
        target = ["-target", isa.triple, *march, *isa.flags]
        position = [] if isa.relocatable else ["-fPIC"]
        small = ["-O2"] if isa.small else []  # the last one counts
        return [*driver, *target, *FLAGS, *small, *position, *ready, "-I", str(SOURCES)]

    def _run(self, command: Sequence[str], what: str, cwd: str | None = None) -> None:
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", env=self._env, cwd=cwd
            )
        except OSError as e:
            raise BuildError(f"{what} failed: {command[0]} does not start: {e.strerror or e}") from e
        if done.returncode < 0:
            name = signal.strsignal(-done.returncode)
            raise BuildError(f"{what} failed: {command[0]} ended by signal {-done.returncode} ({name})")
        if done.returncode:
            message = done.stderr.strip()[:2000] or f"{command[0]} ended with status {done.returncode} and no message"
            raise BuildError(f"{what} failed: {message}")


@contextmanager
def _temporary() -> Iterator[None]:
    """Raises BuildError if temporary files cannot be written."""
    try:
        yield
    except OSError as e:
        raise BuildError(
            f"cannot write temporary files to compile kernels ({e.strerror or e}); set TMPDIR to a folder with"
            " free space"
        ) from e
