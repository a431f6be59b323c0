"""Judges INT8 models on pictures: python -m benchmarks.litert.accuracy PEER FOLDER [--page FILE]

FOLDER has networks for CIFAR-10, NAME_cifar10.onnx (input `image`, RGB from 0 to 255; output of ten classes), and
cifar10_calibration.npz and cifar10_test.npz with pictures `x`, u8[n, 32, 32, 3], and classes `y`. Each network is
converted by `pelton convert --calibration` with every calibrator and run by LiteRT. --page replaces the table between
the marks of a page.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import pelton
from pelton.calibration.calibrators import CALIBRATORS
from pelton.cli import main as command

from ..serve.page import replace_part
from .__main__ import headed, row, version

MARKS = ("<!-- python -m benchmarks.litert.accuracy: begin -->", "<!-- python -m benchmarks.litert.accuracy: end -->")


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("peer")
    ask.add_argument("folder", type=Path)
    ask.add_argument("--page", type=Path)
    given = ask.parse_args()
    lines, pictures = list[str](), 0
    for model in sorted(given.folder.glob("*_cifar10.onnx")):
        shares, pictures = judged(model, given.folder, given.peer)
        cells = [f"{100 * share:.2f} %" for share in shares.values()]
        lines += [row([model.stem, *cells])] if lines else [*headed(["network", *shares], 1), row([model.stem, *cells])]
    print("\n".join(lines))
    if given.page:
        about = f"{pictures:,} test pictures, ai-edge-litert {version(given.peer)}:"
        replace_part(given.page, *MARKS, ["", about, "", *lines, ""])
    return 0


def judged(model: Path, data: Path, peer: str) -> tuple[dict[str, float], int]:
    """Returns the shares of right classes, of floats in Pelton and integers in LiteRT, and the number of pictures."""
    with np.load(data / "cifar10_test.npz") as test, np.load(data / "cifar10_calibration.npz") as known:
        x, classes, typical = (test["x"], test["y"], known["x"])
    images = x.astype(np.float32)
    engine = pelton.build(str(model), shapes={"image": f"{len(x)}x3x32x32"}, level=0)
    (logits,) = engine.run({"image": np.ascontiguousarray(np.moveaxis(images, -1, 1))}).values()
    shares = {"floats": float((logits.argmax(1) == classes).mean())}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "typical.npz", image=np.ascontiguousarray(np.moveaxis(typical.astype(np.float32), -1, 1)))
        for kind in CALIBRATORS:
            path = folder / f"{kind}.tflite"
            command(["convert", str(model), "-o", str(path), "--calibration", str(folder / "typical.npz")]
                    + ["--calibrator", kind, "--quiet"])  # fmt: skip
            np.savez(path.with_suffix(".npz"), image=images)
        subprocess.run([peer, Path(__file__).with_name("peer.py"), folder], check=True, capture_output=True)
        for kind in CALIBRATORS:
            with np.load(folder / f"{kind}.out.npz") as outputs:
                (scores,) = outputs.values()
            shares[f"INT8, {kind}"] = float((scores.argmax(1) == classes).mean())
    return shares, len(x)


if __name__ == "__main__":
    sys.exit(main())
