"""How pictures become inputs: a description in one line, parsed strictly, and the steps it describes (by Pillow)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import InputAbsent, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

EXAMPLES = """for example
  "224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 rgb"  height x width; values become (value / 255 - mean) / std
  "416x416 stretch"                                           the whole picture, its proportions not kept
  "224x224 scale=1 mean=104,117,123 bgr crop=0.875"           values 0 to 255, channels blue first, the middle 87.5 %"""
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes an input: center crop (or stretch), resize, channel order, (value · scale - mean) / std."""

    height: int
    width: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1 / 255
    channels: str = "rgb"
    crop: float = 1.0  # fraction of the largest centered rectangle with the input's proportions
    stretch: bool = False
    resample: str = "bilinear"

    def axis(self, shape: Sequence[int]) -> int:
        """The axis of the channels, 1 or 3, in an input of this shape; raises InputError if no such picture fits it."""
        count = CHANNELS[self.channels]
        for axis, want in ((1, (count, self.height, self.width)), (3, (self.height, self.width, count))):
            # dynamic dimensions fit any size
            if len(shape) == 4 and all(d == w or not isinstance(d, int) for d, w in zip(shape[1:], want)):
                return axis
        raise InputError(
            f"pictures of {self.height}x{self.width} (height x width) with {count} channel{'s' * (count > 1)} need an"
            f" input of shape [n, {count}, {self.height}, {self.width}] or [n, {self.height}, {self.width}, {count}],"
            f" this one has {list(shape)}"
        )

    def array(
        self,
        picture: str | os.PathLike[str] | np.ndarray | Image,
        shape: Sequence[int],
        dtype: np.dtype | type = np.float32,
    ) -> np.ndarray:
        """One picture as an input: an array [1, c, h, w] or [1, h, w, c], whichever fits `shape`.

        picture: a file, a Pillow image or an array [height, width(, 3)] of uint8. dtype: a float type, or uint8 for the
        bytes without scale, mean and std. Raises InputError for anything else.
        """
        axis, dtype = self.axis(shape), np.dtype(dtype)
        pixels = np.asarray(self._resize(open_picture(picture)))
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        elif self.channels == "bgr":
            pixels = pixels[:, :, ::-1]
        if dtype == np.uint8:
            if (self.mean, self.std) != ((0.0,), (1.0,)):
                raise InputError("the input is uint8 and takes the bytes of pictures; leave out mean= and std=")
            values = pixels
        elif dtype.kind == "f":
            values = (pixels * self.scale - np.array(self.mean)) / np.array(self.std)
        else:
            raise InputError(f"pictures become inputs of floats or of uint8, this input is {dtype}")
        return np.ascontiguousarray(np.moveaxis(values, 2, 0) if axis == 1 else values, dtype=dtype)[None]

    def _resize(self, image: Image) -> Image:
        from PIL import Image as pillow

        image = image.convert("L" if self.channels == "gray" else "RGB")
        if not self.stretch:
            unit = min(image.width / self.width, image.height / self.height) * self.crop
            width, height = max(1, round(unit * self.width)), max(1, round(unit * self.height))
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))
        return image.resize((self.width, self.height), pillow.Resampling[self.resample.upper()])


def is_picture(path: str) -> bool:
    """Whether a file name has the suffix of a picture."""
    return path.lower().endswith(SUFFIXES)


def parse(text: str) -> Preprocessing:
    """Parses a description such as "224x224 mean=0.5 std=0.25 rgb"; raises InputError with examples if it is none."""
    words = text.split()
    given: dict[str, Any] = {}
    for word in words:
        for key, value in _parse_word(word).items():
            if key in given:
                raise _error(text, f"{word!r} says {key} a second time")
            given[key] = value
    if "height" not in given:
        raise _error(text, "it names no size")
    if given.get("stretch") and "crop" in given:
        raise _error(text, "stretch and crop= exclude each other")
    count = CHANNELS[given.get("channels", "rgb")]
    for key in ("mean", "std"):
        if len(given.get(key, (0,))) not in (1, count):
            raise _error(text, f"{key} has {len(given[key])} numbers for {count} channel{'s' * (count > 1)}")
    return Preprocessing(**given)


def _parse_word(word: str) -> dict[str, Any]:
    key, equals, value = word.partition("=")
    if not equals:
        if word in CHANNELS:
            return {"channels": word}
        if word in FILTERS:
            return {"resample": word}
        if word == "stretch":
            return {"stretch": True}
        height, x, width = word.partition("x")
        if x and height.isdecimal() and width.isdecimal() and 0 < int(height) <= 1 << 15 and 0 < int(width) <= 1 << 15:
            return {"height": int(height), "width": int(width)}
        raise _error(
            word,
            "it is no size, channel order (rgb, bgr, gray), 'stretch' or filter (nearest, bilinear, bicubic, lanczos)",
        )
    if key not in ("mean", "std", "scale", "crop"):
        raise _error(word, "only mean=, std=, scale= and crop= take values")
    try:
        numbers = tuple(float(v) for v in value.split(","))
    except ValueError:
        raise _error(word, f"{value!r} is no list of numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise _error(word, "the numbers have to be finite")
    if key in ("mean", "std"):
        if key == "std" and 0 in numbers:
            raise _error(word, "std divides and cannot be 0")
        return {key: numbers}
    if len(numbers) != 1 or not numbers[0] > 0 or (key == "crop" and numbers[0] > 1):
        raise _error(word, f"{key} is one number above 0" + (" and up to 1" if key == "crop" else ""))
    return {key: numbers[0]}


def _error(text: str, why: str) -> InputError:
    return InputError(f"{text!r} does not describe how pictures become inputs: {why}; {EXAMPLES}")


def open_picture(picture: str | os.PathLike[str] | np.ndarray | Image) -> Image:
    """Opens a picture as a Pillow image, rotated as its EXIF data says; raises InputError if it cannot be read."""
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError:
        raise InputError("pictures need Pillow: pip install pillow") from None
    if isinstance(picture, np.ndarray):
        has_shape = picture.ndim in (2, 3) and picture.shape[2:] in ((), (3,)) and 0 not in picture.shape
        if picture.dtype != np.uint8 or not has_shape:
            raise InputError(
                f"a picture as an array is uint8 [height, width] or [height, width, 3], got {picture.dtype}"
                f" {list(picture.shape)}"
            )
        return pillow.fromarray(picture)
    if isinstance(picture, pillow.Image):
        return picture
    try:
        with pillow.open(picture) as image:
            return ImageOps.exif_transpose(image).copy()
    except FileNotFoundError as e:
        raise InputAbsent(f"the picture {os.fspath(picture)} cannot be read: {e.strerror}", picture) from None
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as e:
        raise InputError(
            f"the picture {os.fspath(picture)} cannot be read: {getattr(e, 'strerror', None) or e}"
        ) from None


def read_labels(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Reads the names of classes, one per line of a text file; raises InputError if it is empty or cannot be read."""
    try:
        with open(path, encoding="utf-8") as f:
            labels = tuple(line.strip() for line in f.read().rstrip().splitlines())
    except FileNotFoundError as e:
        raise InputAbsent(
            f"the labels {os.fspath(path)} cannot be read: {e.strerror}; expected a text file with one class per line",
            path,
        ) from None
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(
            f"the labels {os.fspath(path)} cannot be read: {getattr(e, 'strerror', None) or e}; "
            "expected a text file with one class per line"
        ) from None
    if not labels or "" in labels:
        raise InputError(
            f"the labels {os.fspath(path)} have {'an empty line' if labels else 'no lines'}; "
            "expected one class per line, in the order of the outputs"
        )
    return labels
