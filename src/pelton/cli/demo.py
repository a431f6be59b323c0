"""`pelton demo`: classifies a picture with the network that Pelton includes, and says how long that takes."""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib import resources
from importlib.util import find_spec

import numpy as np

from pelton.errors import InputError

from . import arguments, build, peers, run, text, timing

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
    print("ResNet-20, trained on CIFAR-10:")
    print(build.summary(engine))
    from pelton import preprocessing

    port = engine.inputs[0]
    feeds = {port.name: preprocessing.parse(IMAGE).array(picture, port.shape, port.numpy_dtype)}
    context = engine.context(threads=args.threads)
    print(f"\n{args.picture or 'Chelsea, the cat of scikit-image'}:")
    print("\n".join(run.top_classes(context.run(feeds)[engine.outputs[0].name], 3, labels)))
    times = timing.Times(timing.measure(lambda: context.run(feeds), 1.0, 0.2))
    print(
        f"\none run: {times.latency()['median']:.3f} ms (median of {len(times.ns)}),"
        f" {text.count(context.threads, 'thread')}"
    )
    if find_spec("onnxruntime") is None:
        print("to compare with onnxruntime, install it beside Pelton: pip install onnxruntime")
        return
    with tempfile.TemporaryDirectory(prefix="pelton-demo-") as folder:
        path, onnx = os.path.join(folder, "engine.pelton"), os.path.join(folder, "model.onnx")
        engine.save(path)
        with open(onnx, "wb") as f:
            f.write(model)
        print(
            peers.table(
                peers.compare(
                    path, onnx, feeds, ["onnxruntime"], threads=context.threads, seconds=1.5, rounds=5, folder=folder
                )
            )
        )


def cat() -> np.ndarray:
    """A photograph that comes with scikit-image; InputError where that is missing."""
    try:
        from skimage import data
    except ImportError:
        raise InputError(
            'the demo\'s picture comes with scikit-image: pip install "pelton[demo]", or give a picture with --picture'
        ) from None
    return data.chelsea()
