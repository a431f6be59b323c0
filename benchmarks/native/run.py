"""What it takes to run a network in C: bytes to ship, load, first run, a run, and what a call costs, beside others.

    python benchmarks/native/run.py MODEL … [--peers-python PYTHON] [--threads N] [--rounds N] [--output TABLE.md]

Models have one input and one output of f32 and known sizes. Runtimes take turns; medians of rounds, each a process of
its own. ONNX Runtime is the library in its wheel, by its C interface; ncnn is run by its Python package, with pnnx to
convert. The cost of a call is the time of a network that adds one number. PYTHON has onnxruntime, ncnn and pnnx.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

import pelton
from pelton.config import FOLDER

HERE = Path(__file__).parent
FIND = "import onnxruntime, pathlib; print(*pathlib.Path(onnxruntime.__file__).parent.glob('capi/libonnxruntime.so.*'))"


def said(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def one_number() -> onnx.ModelProto:
    """y = x + x of one element."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "one", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+", type=Path)
    ask.add_argument("--peers-python", default=sys.executable)
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--rounds", type=int, default=7)
    ask.add_argument("--output", type=Path)
    a = ask.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, library = Path(made), said(a.peers_python, "-c", FIND)
        ours, theirs = folder / "ours", folder / "ort"
        said("cc", "-O2", HERE / "ours.c", f"-I{FOLDER}", f"-L{FOLDER}", "-lpelton", f"-Wl,-rpath,{FOLDER}", "-o", ours)
        said("cc", "-O2", "-std=gnu17", HERE / "ort.c", "-ldl", "-o", theirs)
        onnx.save(one_number(), folder / "one number.onnx")
        rows = [["model", "runtime", "bytes to ship", "load ms", "first run ms", "run ms"]]
        for model in [*a.models, folder / "one number.onnx"]:
            rows += measured(model, folder, ours, theirs, library, a)
    heads = ["---", "---", *["---:"] * 4]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], heads, *rows[1:]))
    print(table)
    if a.output:
        a.output.write_text(table + "\n")
    return 0


def measured(
    model: Path, folder: Path, ours: Path, theirs: Path, library: str, a: argparse.Namespace
) -> list[list[str]]:
    """The rows of one model."""
    graph = onnx.load(model, load_external_data=False).graph
    (x,) = (i for i in graph.input if i.name not in {t.name for t in graph.initializer})
    shape = [max(d.dim_value, 1) for d in x.type.tensor_type.shape.dim]
    engine = folder / f"{model.stem}.pelton"
    pelton.build(model, shapes={x.name: tuple(shape)}, threads=a.threads).save(engine)
    copies = folder / "ncnn"
    copies.mkdir(exist_ok=True)
    commands = {
        "ncnn": [a.peers_python, HERE / "of_ncnn.py", model, copies, a.threads, *shape],
        "Pelton": [ours, engine, a.threads],
        "ONNX Runtime": [theirs, library, model, a.threads, x.name, graph.output[0].name, *shape],
    }
    shipped = {
        "Pelton": Path(FOLDER, "libpelton.so").stat().st_size + engine.stat().st_size,
        "ONNX Runtime": Path(library).stat().st_size + model.stat().st_size,
    }
    times: dict[str, list[list[float]]] = {name: [] for name in commands}
    for i in range(a.rounds):
        for name in sorted(commands, reverse=bool(i % 2)):
            *size, load, first, run = map(int, said(*commands[name]).split())
            shipped.setdefault(name, sum(size))  # ncnn prints its own
            times[name].append([ns / 1e6 for ns in (load, first, run)])
    return [
        [model.stem, name, f"{shipped[name]:,}", *(f"{statistics.median(t):.4g}" for t in zip(*times[name]))]
        for name in ("Pelton", "ONNX Runtime", "ncnn")
    ]


if __name__ == "__main__":
    sys.exit(main())
