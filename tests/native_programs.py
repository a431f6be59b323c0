"""Programs of tests/native: C that uses the library without Python. `make test-native` runs them under sanitizers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pelton import native

HERE = Path(__file__).parent / "native"
SOURCES = Path(native.PATH).parent
FOR_PYTHON = ("ports.c",)


def compiled(name: str, folder: Path, compiler: Sequence[str], *flags: str) -> Path:
    """The program `name`, with the library's sources in it."""
    sources = [p for p in sorted(SOURCES.glob("*.c")) if p.name not in FOR_PYTHON]
    made = folder / name
    command = [*compiler, "-std=gnu2x", "-g", "-Wall", "-Wextra", f"-I{SOURCES}", *flags, str(HERE / f"{name}.c")]
    done = subprocess.run(
        [*command, *map(str, sources), "-o", str(made), "-lpthread", "-ldl", "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def run(program: Path, *arguments: object, **environment: str) -> str:
    """The output of a program, which has to end well."""
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, timeout=3000, env=environment or None
    )
    assert done.returncode == 0, f"{program.name} ended with {done.returncode}: {done.stdout}{done.stderr[-5000:]}"
    return done.stdout.strip()


def main(folder: Path) -> int:
    """Mutations under ASan and UBSan, threads under TSan, by the gcc or clang of the system."""
    sys.path.insert(0, str(HERE.parent))
    from test_native_programs import carrying_engine, engine_files

    compiler = next((c for c in ("gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        print("neither gcc nor clang is installed: apt install gcc")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    engines = engine_files(folder) | {"carrying": carrying_engine(folder)}
    checked = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1".split()
    mutate = compiled("mutate", folder, [compiler], *checked)
    for seed, engine in enumerate(engines.values()):
        print(f"mutate under ASan and UBSan, {engine.name}:", run(mutate, engine, 2000, seed))
    fast = compiled("mutate", folder, [compiler], "-O2")
    for seed, engine in enumerate(engines.values(), 100):
        print(f"mutate, {engine.name}:", run(fast, engine, 8000, seed))
    interface = compiled("interface", folder, [compiler], *checked)
    print("interface under ASan and UBSan:", run(interface, engines["static"], engines["cnn"], engines["carrying"]))
    print("contexts:", run(compiled("memory", folder, [compiler], "-O2"), engines["cnn"], 10_000))
    raced = compiled("threads", folder, [compiler], "-fsanitize=thread", "-O1")
    print("threads under TSan:", run(raced, 20, *engines.values(), TSAN_OPTIONS="halt_on_error=1"))
    for system, flags in (("here", ()), ("any POSIX system", ("-DPELTON_POSIX",))):
        claims = compiled("claims", folder, [compiler], "-fsanitize=thread", "-O1", *flags)
        print(f"claims under TSan, {system}:", run(claims, 4, TSAN_OPTIONS="halt_on_error=1 die_after_fork=0"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
