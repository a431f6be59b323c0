"""`pelton demo`: classifies a picture with the network that Pelton includes, and says how long that takes."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from pelton.errors import InputError

from . import arguments, build, output, peers, run, text, timing

if TYPE_CHECKING:
    from pelton.runtime import Engine

CAT = "Chelsea, the cat of scikit-image"
TOP = 3  # classes
IMAGE = "32x32 scale=1 lanczos rgb"
EXAMPLES = """The network is a ResNet-20 trained on CIFAR-10 (ten classes, 32×32 pixels) that comes with Pelton; the
picture is Chelsea, the cat of scikit-image.

examples:
  pelton demo
  pelton demo --picture dog.jpg --level 0"""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "demo",
        help="build the ResNet-20 that is included and classify a picture",
        description="Builds an engine of the ResNet-20 that comes with Pelton and classifies a picture.",
        epilog=EXAMPLES,
    )
    command.add_argument("--picture", metavar="FILE", help="classify this picture instead of the cat")
    command.add_argument(
        "--level",
        type=arguments.int_in_range(0, 5, "level"),
        default=3,
        metavar="N",
        help="effort of the build, 0 to 5 (default 3)",
    )
    arguments.add_threads(command)
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    picture = args.picture or cat()
    data = resources.files("pelton") / "data"
    model, labels = (data / "resnet20_cifar10.onnx").read_bytes(), (data / "cifar10.txt").read_text().split()
    options = {
        "level": args.level,
        "threads": args.threads,
        "shapes": {"image": (1, 3, 32, 32)},
        "image": IMAGE,
        "labels": tuple(labels),
    }
    engine = build.build_engine(model, options, quiet=args.quiet)
    if not args.json:
        print("ResNet-20, trained on CIFAR-10:")
        print(build.summary(engine))
    from pelton import preprocessing

    port = engine.inputs[0]
    feeds = {port.name: preprocessing.parse(IMAGE).array(picture, port.shape, port.numpy_dtype)}
    context = engine.context(threads=args.threads)
    found = context.run(feeds)[engine.outputs[0].name]
    if not args.json:
        print(f"\n{args.picture or CAT}:")
        print("\n".join(run.top_classes(found, TOP, labels)))
    times = timing.Times(timing.measure(lambda: context.run(feeds), 1.0, 0.2))
    others = race(engine, model, feeds, context.threads) if find_spec("onnxruntime") else []
    if args.json:
        facts = {"engine": build.facts(engine), "picture": args.picture or CAT, "top": run.best(found, TOP, labels)[0]}
        facts |= {"threads": context.threads, "runs": len(times.ns), "latency_ms": times.latency()}
        output.emit(args, {**facts, "vs": [m.json() for m in others]})
        return
    print(
        f"\none run: {times.latency()['median']:.3f} ms (median of {len(times.ns)}),"
        f" {text.count(context.threads, 'thread')}"
    )
    if others:
        print(peers.table(others))
    else:
        print("to compare with onnxruntime, install it beside Pelton: pip install onnxruntime")


def race(engine: Engine, model: bytes, feeds: Mapping[str, np.ndarray], threads: int) -> Sequence[peers.Measured]:
    """The engine and ONNX Runtime in turns."""
    with tempfile.TemporaryDirectory(prefix="pelton-demo-") as folder:
        path, onnx = os.path.join(folder, "engine.pelton"), os.path.join(folder, "model.onnx")
        engine.save(path)
        with open(onnx, "wb") as f:
            f.write(model)
        return peers.compare(path, onnx, feeds, ["onnxruntime"], threads=threads, seconds=1.5, rounds=5, folder=folder)


def cat() -> np.ndarray:
    """A photograph that comes with scikit-image; InputError where that is missing."""
    try:
        from skimage import data
    except ImportError:
        raise InputError(
            'the demo\'s picture comes with scikit-image: pip install "pelton[demo]", or give a picture with --picture'
        ) from None
    return data.chelsea()
