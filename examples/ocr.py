"""Reads a page: one network finds the lines, another one reads them; both take pictures of many sizes (PP-OCRv6).

pip install 'pelton[build]' pillow scipy scikit-image && pip install --no-deps rapidocr
python examples/ocr.py [page.png]
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pelton
from pelton import preprocessing
from PIL import Image
from scipy import ndimage
from skimage import data

spec = importlib.util.find_spec("rapidocr")
MODELS = Path(spec and spec.origin or "").parent / "models"


def prepare(image: Image.Image, width: int, height: int) -> np.ndarray:
    """f32[1, 3, height, width] from -1 to 1, blue first."""
    return preprocessing.parse(f"{height}x{width} stretch mean=0.5 std=0.5 bgr").array(image, (1, 3, height, width))


def find(engine: pelton.Engine, image: Image.Image) -> list[tuple[int, int, int, int]]:
    """The boxes of lines from top to bottom. The network marks their cores, which are grown by half their height."""
    width, height = (max(32, round(side / 32) * 32) for side in image.size)
    labels, _ = ndimage.label(engine(prepare(image, width, height))[0, 0] > 0.3)
    found = []
    for rows, columns in ndimage.find_objects(labels):
        more = (rows.stop - rows.start) // 2
        box = (columns.start - more, rows.start - more, columns.stop + more, rows.stop + more)
        found.append(tuple(round(v * s / t) for v, s, t in zip(box, image.size * 2, (width, height) * 2)))
    return sorted(found, key=lambda box: box[1])


def read(engine: pelton.Engine, image: Image.Image, letters: list[str]) -> tuple[str, float]:
    """(text, how sure) of a line: the likeliest letter of every column, each run of one letter once (CTC)."""
    chances = engine(prepare(image, max(48, round(48 * image.width / image.height)), 48))[0]
    best = chances.argmax(1)
    taken = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
    return "".join(letters[c] for c in best[taken]), float(chances.max(1)[taken].sum()) / max(1, taken.sum())


image = preprocessing.open_picture(sys.argv[1] if len(sys.argv) > 1 else data.page()).convert("RGB")
finder, reader = (pelton.build(MODELS / f"PP-OCRv6_{name}_small.onnx", level=0) for name in ("det", "rec"))
said = {p.key: p.value for p in onnx.load(MODELS / "PP-OCRv6_rec_small.onnx").metadata_props}
for box in find(finder, image):
    text, sure = read(reader, image.crop(box), ["", *said["character"].splitlines(), " "])
    if text:
        print(f"{sure:.2f}  {text}")
