"""Times Pelton's packages for browsers beside onnxruntime-web and TF.js in headless Chromium.

    python -m benchmarks.web [--page benchmarks/web/results.md] [--rounds 5] [--level 2] [NETWORK …]

`make bench-web` installs what this needs into build/web: npm packages and the wheel of silero-vad. Chromium and node
come from the system. All runtimes are in one page, each with one thread, and run in turns on the same random input; a
round has at least 5 runs and 50 ms of each. Times are medians over rounds of the rounds' medians. Two threads of
Pelton are timed beside one, both in workers. The time to load is that of a new page until the first outputs.

The exit status is 1 if a network cannot be exported, or if outputs differ by more than 1e-4 of the largest magnitude
from those of onnxruntime-web.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx

from . import results, tfjs
from .networks import NETWORKS
from .results import NetworkFigures

FOLDER = Path("build/web")
DRIVER = Path(__file__).parent / "driver.mjs"
CLOSING = 10  # seconds in which Chromium ends
LOADS = 3  # pages in which the time to load is measured
NAMES = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64"}


class WebError(Exception):
    """Says why a network was not measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(
        prog="benchmarks.web", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("networks", nargs="*", metavar="NETWORK", help=f"{', '.join(NETWORKS)}; default: all")
    ask.add_argument("--page", type=Path, help="write the figures to this file")
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--level", type=int, default=2, help="of optimization, for `pelton export`")
    a = ask.parse_args(arguments)
    if unknown := [name for name in a.networks if name not in NETWORKS]:
        ask.error(f"there is no network {unknown[0]!r}; there are {', '.join(NETWORKS)}")
    if a.rounds < 1:
        ask.error(f"--rounds is 1 or more, got {a.rounds}")
    figures: list[NetworkFigures] = []
    failures: list[str] = []
    try:
        with driver() as pipes:
            for name in a.networks or NETWORKS:
                try:
                    figures.append(measure(name, a.rounds, a.level, pipes))
                    print(results.line(figures[-1]), flush=True)
                    failures += results.wrong(figures[-1])
                except WebError as e:
                    failures.append(f"{name}: {e}")
    except WebError as e:
        failures.append(str(e))
    if a.page and figures:
        a.page.write_text(results.page(figures, versions(), rounds=a.rounds, level=a.level), "utf-8")
    print("\n".join(failures), file=sys.stderr, end="\n" * bool(failures))
    return bool(failures)


def measure(name: str, rounds: int, level: int, pipes: tuple[IO[str], IO[str]]) -> NetworkFigures:
    """Writes a network for all runtimes, and has Chromium run it. Raises WebError."""
    network, models = NETWORKS[name], FOLDER / "models"
    models.mkdir(parents=True, exist_ok=True)
    path = models / f"{name}.onnx"
    try:
        network.write(path, FOLDER)
        if network.images:
            tfjs.write(path, models / f"{name}.tfjs.json", models / f"{name}.tfjs.bin")
    except (FileNotFoundError, tfjs.TfjsError) as e:
        raise WebError(str(e)) from e
    request = {
        "network": {"name": name, "inputs": write_inputs(name, path)},
        "runtimes": [runtime for runtime in results.RUNTIMES if network.images or runtime != "tfjs"],
        "rounds": rounds,
        "loads": LOADS,
    }
    export(name, path, level)
    answer = ask_driver(pipes, request)
    if "error" in answer:
        raise WebError(answer["error"])
    return NetworkFigures(name, network.title, **answer)


def write_inputs(name: str, path: Path) -> list[dict[str, Any]]:
    """Draws a network's inputs and writes each to a file; returns their names, types and shapes."""
    random, described = np.random.default_rng(1), []
    for i, port in enumerate(onnx.load(path).graph.input):
        tensor = port.type.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim]
        array = np.ascontiguousarray(NETWORKS[name].draw(random, port.name, shape))
        kind = NAMES[tensor.elem_type]
        if array.dtype != kind:
            raise WebError(f"input {port.name!r} is {kind}, and {array.dtype} was drawn")
        (path.parent / f"{name}.{i}.bin").write_bytes(array.tobytes())
        described.append({"name": port.name, "type": kind, "shape": shape})
    return described


def export(name: str, path: Path, level: int) -> None:
    """Runs `pelton export`; raises WebError with what it says."""
    folder = FOLDER / "pelton" / name
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pelton", "export", str(path), "-o", str(folder), "--name", name]
    command += ["--target", "wasm", "--level", str(level), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise WebError(f"`pelton export` ended with status {done.returncode}: {done.stderr.strip()}")


@contextmanager
def driver() -> Iterator[tuple[IO[str], IO[str]]]:
    """Starts node with Chromium: a pipe for requests, and one of answers. Raises WebError if something is missing."""
    if not (FOLDER / "node_modules").is_dir():
        raise WebError(f"there are no packages in {FOLDER}: run `make bench-web`")
    node, chromium = shutil.which("node"), shutil.which("chromium")
    if not node or not chromium:
        raise WebError(f"{'chromium' if node else 'node'} is not installed: apt install chromium nodejs npm")
    command = [node, str(DRIVER), str(FOLDER), chromium]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        try:
            yield child.stdin, child.stdout
        finally:
            child.stdin.close()
            try:
                child.wait(CLOSING)
            except subprocess.TimeoutExpired:
                child.kill()  # Chromium ends with its pipe


def ask_driver(pipes: tuple[IO[str], IO[str]], request: dict[str, Any]) -> dict[str, Any]:
    questions, answers = pipes
    try:
        questions.write(json.dumps(request) + "\n")
        questions.flush()
        line = answers.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise WebError(f"{DRIVER.name} has ended without an answer; its message is above")
    return json.loads(line)


def versions() -> dict[str, str]:
    """Returns the versions of the npm packages that are compared."""
    packages = ("onnxruntime-web", "@tensorflow/tfjs-backend-wasm")
    files = {name: FOLDER / "node_modules" / name / "package.json" for name in packages}
    return {name: json.loads(file.read_text("utf-8"))["version"] for name, file in files.items()}


if __name__ == "__main__":
    sys.exit(main())
