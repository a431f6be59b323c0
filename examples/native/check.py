"""Compiles and runs the examples of C, C++, Rust, Go and JavaScript, and compares what they print with Python's.

    python examples/native/check.py [FOLDER]

Rust and Go are those of Debian, koffi is of npm; what is not installed is named and left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import pelton
from pelton.config import FOLDER

HERE = Path(__file__).parent
DATA = Path(pelton.__file__).parent / "data"


def said(*command: object, **more: Any) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def main(folder: Path) -> int:
    engine = pelton.build(DATA / "resnet20_cifar10.onnx", level=0, shapes={"image": "1..1..8x3x32x32"})
    path = folder / "resnet20.pelton"
    engine.save(path)
    want = engine.run({"image": np.zeros((1, 3, 32, 32), np.float32)})["logits"][0, :4]
    libs = [f"-I{FOLDER}", f"-L{FOLDER}", "-lpelton", f"-Wl,-rpath,{FOLDER}"]
    env = {**os.environ, "LD_LIBRARY_PATH": FOLDER, "CGO_CFLAGS": f"-I{FOLDER}", "CGO_LDFLAGS": f"-L{FOLDER}"}

    def beside(text: str) -> str:
        numbers = [
            float(n) for n in text.replace(",", " ").replace("[", " ").replace("]", " ").split() if _is_number(n)
        ]
        return "as in Python" if np.allclose(numbers[-4:], want, atol=1e-4) else f"other than Python: {text}, {want}"

    found: dict[str, str] = {}
    picture = folder / "picture.ppm"
    pixels = np.load(DATA / "cifar10_pictures.npz")["pictures"][5]
    picture.write_bytes(b"P6 32 32 255\n" + pixels.tobytes())
    said("cc", HERE / "classify.c", "-O2", "-Wall", *libs, "-o", folder / "classify")
    found["C"] = said(folder / "classify", path, picture)
    said("c++", HERE / "times.cpp", "-std=c++17", "-O2", "-Wall", *libs, "-o", folder / "times")
    found["C++"] = said(folder / "times", path)
    if shutil.which("rustc"):
        said("rustc", HERE / "run.rs", "-O", "-L", FOLDER, "-l", "pelton", "-o", folder / "run-rust")
        found["Rust"] = beside(said(folder / "run-rust", path, env=env))
    if shutil.which("go"):
        found["Go"] = beside(said("go", "run", HERE / "run.go", path, env=env))
    if shutil.which("node") and (folder / "node_modules" / "koffi").exists():
        shutil.copy(HERE / "run.mjs", folder)
        found["JavaScript"] = beside(said("node", folder / "run.mjs", f"{FOLDER}/libpelton.so", path, cwd=folder))
    for language in ("C", "C++", "Rust", "Go", "JavaScript"):
        print(f"{language}: {found.get(language, 'not installed here')}")
    return any("other" in text for text in found.values())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        raise SystemExit(main(Path(sys.argv[1]).absolute()))
    with tempfile.TemporaryDirectory() as made:
        raise SystemExit(main(Path(made)))
