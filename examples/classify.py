"""Classifies pictures: the engine holds how they become inputs, and the names of the classes.

pip install 'pelton[build]' pillow
python examples/classify.py [picture.jpg …]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pelton
from pelton import preprocessing

DATA = Path(pelton.__file__).parent / "data"  # a ResNet-20 of CIFAR-10's ten classes, and some of its test pictures


def build(path: Path) -> None:
    """Once, where there is time. `image` may also name a preprocessor_config.json of Hugging Face."""
    labels = preprocessing.read_labels(DATA / "cifar10.txt")
    engine = pelton.build(
        DATA / "resnet20_cifar10.onnx",
        shapes={"image": "1..10..64x3x32x32"},  # batches of 1 to 64, fastest at 10
        image="32x32 scale=1 lanczos rgb",
        labels=labels,
        level=0,
    )
    engine.save(path)


def classify(engine: pelton.Engine, pictures: Sequence[str | np.ndarray]) -> list[str]:
    """A line for each picture, of a file or uint8 [height, width, 3]."""
    prepare = preprocessing.parse(engine.meta["image"])
    batch = np.concatenate([prepare.array(p, engine.inputs[0].shape) for p in pictures])
    scores = engine.run({"image": batch})["logits"]
    chances = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    return [f"{engine.meta['labels'][c]:10} {row[c]:.2f}" for row, c in zip(chances, scores.argmax(1))]


if __name__ == "__main__":
    build(Path("cifar10.pelton"))
    engine = pelton.load("cifar10.pelton")  # from here on numpy and Pillow are enough
    pictures = sys.argv[1:] or list(np.load(DATA / "cifar10_pictures.npz")["pictures"][::5])  # one of each class
    print("\n".join(classify(engine, pictures)))
