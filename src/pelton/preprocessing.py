"""How a picture becomes an input: a description in one line, parsed strictly, and the preparation it asks for
(Pillow)."""

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
  "224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 rgb"    height x width; values become (value / 255 - mean) / std
  "416x416 stretch"                                             the whole picture, its proportions not kept
  "224x224 scale=1 mean=104,117,123 bgr crop=0.875"             values 0 to 255, channels blue first, the middle 87.5 %"""
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")


@dataclass(frozen=True)
class Picture:
    """What to do with a picture: cut out its middle (or stretch it), resize, order the channels, then (value · scale -
    mean) / std."""

    height: int
    width: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1 / 255
    channels: str = "rgb"
    crop: float = 1.0  # of the largest centred rectangle with the input's proportions
    stretch: bool = False
    resample: str = "bilinear"

    def axis(self, shape: Sequence[int]) -> int:
        """Which axis of an input holds the channels; InputError where the input does not take such pictures."""
        count = CHANNELS[self.channels]
        for axis, want in ((1, (count, self.height, self.width)), (3, (self.height, self.width, count))):
            # what a run decides fits
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
        """One picture (a file, a Pillow image or an array [height, width(, 3)] of uint8) as an input of shape [1, …];
        floats, or uint8 as they are."""
        axis, dtype = self.axis(shape), np.dtype(dtype)
        pixels = np.asarray(self._resized(opened(picture)))
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels[:, :, ::-1] if self.channels == "bgr" else pixels
        if dtype == np.uint8:
            if (self.mean, self.std) != ((0.0,), (1.0,)):
                raise InputError("the input takes the bytes of pictures as they are: mean= and std= have no place here")
            values = pixels
        elif dtype.kind == "f":
            values = (pixels * self.scale - np.array(self.mean)) / np.array(self.std)
        else:
            raise InputError(f"pictures can be inputs of floats or of uint8, this one takes {dtype}")
        return np.ascontiguousarray(np.moveaxis(values, 2, 0) if axis == 1 else values, dtype=dtype)[None]

    def _resized(self, image: Image) -> Image:
        from PIL import Image as pillow

        image = image.convert("L" if self.channels == "gray" else "RGB")
        if not self.stretch:
            unit = min(image.width / self.width, image.height / self.height) * self.crop
            width, height = max(1, round(unit * self.width)), max(1, round(unit * self.height))
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))
        return image.resize((self.width, self.height), pillow.Resampling[self.resample.upper()])


def is_picture(path: str) -> bool:
    """Whether a file name is one of a picture."""
    return path.lower().endswith(SUFFIXES)


def parse(text: str) -> Picture:
    """The description in a line such as "224x224 mean=0.5 std=0.25 rgb"; InputError with examples for anything else."""
    words = text.split()
    given: dict[str, Any] = {}
    for word in words:
        for key, value in _read(word).items():
            if key in given:
                raise _wrong(text, f"{word!r} says {key} a second time")
            given[key] = value
    if "height" not in given:
        raise _wrong(text, "it names no size")
    if given.get("stretch") and "crop" in given:
        raise _wrong(text, "stretch and crop= exclude each other")
    count = CHANNELS[given.get("channels", "rgb")]
    for key in ("mean", "std"):
        if len(given.get(key, (0,))) not in (1, count):
            raise _wrong(text, f"{key} has {len(given[key])} numbers for {count} channel{'s' * (count > 1)}")
    return Picture(**given)


def _read(word: str) -> dict[str, Any]:
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
        raise _wrong(
            word,
            "it is no size, channel order (rgb, bgr, gray), 'stretch' or filter (nearest, bilinear, bicubic, lanczos)",
        )
    if key not in ("mean", "std", "scale", "crop"):
        raise _wrong(word, "only mean=, std=, scale= and crop= take values")
    try:
        numbers = tuple(float(v) for v in value.split(","))
    except ValueError:
        raise _wrong(word, f"{value!r} is no list of numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise _wrong(word, "the numbers have to be finite")
    if key in ("mean", "std"):
        if key == "std" and 0 in numbers:
            raise _wrong(word, "std divides and cannot be 0")
        return {key: numbers}
    if len(numbers) != 1 or not numbers[0] > 0 or (key == "crop" and numbers[0] > 1):
        raise _wrong(word, f"{key} is one number above 0" + (" and up to 1" if key == "crop" else ""))
    return {key: numbers[0]}


def _wrong(text: str, why: str) -> InputError:
    return InputError(f"{text!r} does not describe how pictures are prepared: {why}; {EXAMPLES}")


def opened(picture: str | os.PathLike[str] | np.ndarray | Image) -> Image:
    """A picture as a Pillow image, turned upright; InputError for what is none."""
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError:
        raise InputError("pictures need Pillow: pip install pillow") from None
    if isinstance(picture, np.ndarray):
        if (
            picture.dtype != np.uint8
            or picture.ndim not in (2, 3)
            or picture.shape[2:] not in ((), (3,))
            or 0 in picture.shape
        ):
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
    """The names of classes in a text file, one per line; InputError where it has none or cannot be read."""
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
