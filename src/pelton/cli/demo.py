"""`pelton demo`: builds the included network, and shows its answers on pictures, its speed, and commands to try."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import arguments, arrays, build, demo_page, output, parsers, peers, run, text, timing

if TYPE_CHECKING:
    from pelton.runtime import Context, Engine

TOP = 3  # number of classes for a picture of the user's
IMAGE = "32x32 scale=1 lanczos rgb"
EXAMPLES = """The network is a ResNet-20 trained on CIFAR-10 (ten classes, 32×32 pixels). The pictures are 50 of
CIFAR-10's test set (Krizhevsky 2009), five of each class. Both are included in Pelton.

examples:
  pelton demo
  pelton demo --html demo.html                 all pictures, and the engine, on a page of `pelton view`
  pelton demo --picture dog.jpg --level 0      classifies another picture"""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "demo",
        help="build the included ResNet-20 and classify pictures",
        description="Builds an engine of the included ResNet-20, and classifies pictures from CIFAR-10's test set.",
        epilog=EXAMPLES,
    )
    either = command.add_mutually_exclusive_group()
    either.add_argument("--picture", metavar="FILE", help="picture to classify instead")
    either.add_argument(
        "--html", metavar="FILE", help="write the page of `pelton view`, with all pictures and their classes"
    )
    command.add_argument(
        "--level",
        type=parsers.int_in_range(0, 5, "level"),
        default=3,
        metavar="N",
        help="tuning effort, 0 to 5 (default 3)",
    )
    arguments.add_threads(command)
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    if args.html is not None:
        arrays.check_target(args.html)
        demo_page.pillow()  # raises an error before the build
    picture = read_picture(args.picture) if args.picture is not None else None
    data = resources.files("pelton") / "data"
    model, labels = (data / "resnet20_cifar10.onnx").read_bytes(), tuple((data / "cifar10.txt").read_text().split())
    shapes = {"image": (1, 3, 32, 32)}
    options = {"level": args.level, "threads": args.threads, "shapes": shapes, "image": IMAGE, "labels": labels}
    start = time.monotonic()
    engine = build.build_engine(model, options, quiet=args.quiet)
    print(f"An engine of a ResNet-20 for this machine, built in {time.monotonic() - start:.1f} s:")
    print(build.summary(engine))
    context = engine.context(threads=args.threads)
    result: dict[str, Any] = {"engine": build.facts(engine)}
    if picture is not None:
        feeds, scores = _classify(context, engine, picture)
        demo_page.show_in_terminal([(picture, [])])
        print(f"\n{args.picture}, of which it sees 32×32 pixels:")
        print("\n".join(run.top_classes(scores[None], TOP, labels)))
        result |= {"picture": args.picture, "top": run.best(scores[None], TOP, labels)[0]}
    else:
        feeds, answers = _answer(context, engine, data, labels)
        print("\n" + "\n".join(demo_page.in_words(answers)))
        result |= {"pictures": len(answers.pictures), "right": int(answers.right.sum())}
    times = timing.Times(timing.measure(lambda: context.run(feeds), 1.0, 0.2))
    speed = (
        f"one run: {times.latency()['median']:.3f} ms (median of {len(times.ns)}),"
        f" {text.count(context.threads, 'thread')}"
    )
    print(f"\n{speed}")
    timings = _beside_onnxruntime(engine, model, feeds, context.threads) if find_spec("onnxruntime") else []
    if timings:
        print(peers.table(timings))
        speed += "\n" + peers.table(timings)
    else:
        print(
            f"to compare with ONNX Runtime: {shlex.quote(sys.executable)} -m pip install onnxruntime, then run the"
            " demo again"
        )
    result |= {"threads": context.threads, "runs": len(times.ns), "latency_ms": times.latency()}
    output.emit(args, {**result, "vs": [m.json() for m in timings]})
    if args.html is not None:
        arrays.replace(args.html, [_page(engine, demo_page.sample(answers, speed)).encode()])
    print("\n" + "\n".join(_next_steps(str(data / "resnet20_cifar10.onnx"))))
    if args.html is not None:
        where = Path(args.html).resolve().as_uri()
        print(f"\n{args.html}: the engine's steps as a graph, and all {len(answers.pictures)} pictures; open {where}")


def read_picture(path: str) -> np.ndarray:
    """Returns a picture's middle as the network's input: uint8 [32, 32, 3]. Raises InputError if unreadable."""
    from pelton import preprocessing

    return preprocessing.parse(IMAGE).array(path, (1, 32, 32, 3), np.uint8)[0]


def _classify(context: Context, engine: Engine, picture: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns (inputs, scores of the classes) for a picture, uint8 [32, 32, 3]."""
    feeds = {engine.inputs[0].name: np.ascontiguousarray(picture.transpose(2, 0, 1)[None], dtype=np.float32)}
    return feeds, context.run(feeds)[engine.outputs[0].name][0]


def _answer(
    context: Context, engine: Engine, data, labels: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], demo_page.Answers]:
    """Returns the inputs of one run, and the network's answers on all included pictures; shows some on capable
    terminals."""
    with np.load(io.BytesIO((data / "cifar10_pictures.npz").read_bytes())) as archive:
        pictures, classes = archive["pictures"], archive["classes"]
    runs = [_classify(context, engine, picture) for picture in pictures]
    probable, _ = run.probabilities(np.stack([scores for _, scores in runs]).astype(np.float64))
    answers = demo_page.Answers(pictures, classes, probable, labels)
    demo_page.show_in_terminal([(pictures[i], demo_page.caption(answers, i)) for i in demo_page.telling(answers)])
    return runs[0][0], answers


def _beside_onnxruntime(
    engine: Engine, model: bytes, feeds: dict[str, np.ndarray], threads: int
) -> list[peers.Measured]:
    """Times the engine and ONNX Runtime in turns."""
    with tempfile.TemporaryDirectory(prefix="pelton-demo-") as folder:
        path, onnx = os.path.join(folder, "engine.pelton"), os.path.join(folder, "model.onnx")
        engine.save(path)
        with open(onnx, "wb") as f:
            f.write(model)
        return peers.compare(path, onnx, feeds, ["onnxruntime"], threads=threads, seconds=1.5, rounds=5, folder=folder)


def _page(engine: Engine, sample: Mapping[str, Any]) -> str:
    """Returns the explorer's page of the engine, with the pictures."""
    from pelton import __version__
    from pelton.explorer.data import Described
    from pelton.explorer.page import page

    return page([Described(engine.plain)], {"version": __version__, "peak": None}, sample)


def program() -> str:
    """Returns this command's name for a shell here: its name if on the path, else the path of its file."""
    own = os.path.join(os.path.dirname(sys.executable), "pelton")
    path = shutil.which("pelton")
    if path is not None and (not os.path.exists(own) or os.path.samefile(path, own)):
        return "pelton"
    if not os.access(own, os.X_OK):
        return f"{shlex.quote(sys.executable)} -m pelton"
    near = os.path.relpath(own)
    return shlex.quote(own if near.startswith(os.pardir) else near)


def _next_steps(model: str) -> list[str]:
    pelton, near = program(), os.path.relpath(model)
    model = shlex.quote(model if near.startswith(os.pardir) else near)
    rows = [
        (f"{pelton} bench {model} --layers", "# the time of each step"),
        (f"{pelton} explain {model}", "# each stage of the build, and its reasons"),
        (f"{pelton} build {model} -o demo.pelton", "# an engine file, which runs with numpy alone"),
        (f"{pelton} demo --html demo.html", "# all pictures and answers, and the engine, on a page"),
    ]
    heading = "next steps, with this network or another model:"
    return [heading, text.table(rows, "ll", indent="  ", heading=False)]
