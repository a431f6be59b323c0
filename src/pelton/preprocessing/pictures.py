"""From pictures to inputs (resized, cut, padded and normalized by Pillow), and from points of inputs back to
pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pelton.errors import InputAbsent, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
GREY = (114.0,)  # the padding colour that YOLO's networks are trained with
MOST_PIXELS = 1 << 27  # of a picture while it is resized: no input needs more, and a thin one would exhaust memory


class Framing(NamedTuple):
    """`box` (left, top, right, bottom) of the picture is resized to `size` (width, height); the input begins at
    `offset` (x, y) of the result, negative where it is padded."""

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    offset: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of a picture to an input: placed by `fit`, resized by a filter, channels ordered, and each value x
    mapped to (x · scale - mean) / std.

    fit: "cut" takes the largest centered rectangle of the input's proportions (`crop`: a fraction of it) and resizes
    it; "stretch" resizes the whole picture, to `resized` (height, width) if set, and takes its middle; "shorter"
    resizes the shorter side to `resized` pixels, and takes the middle (torchvision's Resize and CenterCrop);
    "letterbox" resizes the whole picture as large as it fits, in the middle of a canvas of colour `fill`.
    floor: an odd pixel left over by the cut is always on the right and at the bottom (transformers), not rounded to
    even (torchvision).
    """

    height: int
    width: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1 / 255
    channels: str = "rgb"
    fit: str = "cut"
    crop: float = 1.0
    resized: tuple[int, ...] = ()
    floor: bool = False
    fill: tuple[float, ...] = GREY  # 0 to 255, of all channels or of each in the input's order
    resample: str = "bilinear"

    def __str__(self) -> str:
        """Returns the description that `pelton.preprocessing.parse` reads."""
        size = "x".join(map(str, self.resized))
        fit = {
            "cut": [f"crop={self.crop!r}"] if self.crop != 1 else [],
            "stretch": [f"stretch={size}" if size else "stretch"],
            "shorter": [f"shorter={size}"],
            "letterbox": [f"letterbox={_numbers(self.fill)}"],
        }[self.fit]
        default = {f.name: f.default for f in fields(self)}
        values = [f"{k}={_numbers(getattr(self, k))}" for k in ("mean", "std") if getattr(self, k) != default[k]]
        scale = [f"scale={self.scale!r}"] if self.scale != default["scale"] else []
        floor = ["floor"] if self.floor else []
        return " ".join([f"{self.height}x{self.width}", *fit, *floor, self.resample, *scale, *values, self.channels])

    def axis(self, shape: Sequence[int | str]) -> int:
        """Returns the channel axis, 1 or 3, of an input of this shape; raises InputError if no such picture fits it."""
        axis = self._axis(shape)
        if axis is None:
            raise InputError(f"{self._needs()}, this one has {_listed(shape)}")
        return axis

    def fitting(self, shapes: Mapping[str, Sequence[Any]]) -> list[str]:
        """Returns the names of the inputs, by their shapes, that accept such pictures; raises InputError, listing all
        inputs, if none does."""
        names = [name for name, shape in shapes.items() if self._axis(shape) is not None]
        if not names:
            listing = ", ".join(f"{name} {_listed(shape)}" for name, shape in shapes.items())
            raise InputError(f"{self._needs()}, got {listing or 'no inputs'}")
        return names

    def _axis(self, shape: Sequence[Any]) -> int | None:
        count = CHANNELS[self.channels]
        for axis, want in ((1, (count, self.height, self.width)), (3, (self.height, self.width, count))):
            # dynamic dimensions fit any size
            if len(shape) == 4 and all(d == w or not isinstance(d, int) for d, w in zip(shape[1:], want)):
                return axis
        return None

    def _needs(self) -> str:
        height, width, count = self.height, self.width, CHANNELS[self.channels]
        return (
            f"pictures of {height}x{width} (height x width) with {count} channel{'s' * (count > 1)} need an input of"
            f" shape [n, {count}, {height}, {width}] or [n, {height}, {width}, {count}]"
        )

    def array(
        self,
        picture: str | os.PathLike[str] | np.ndarray | Image,
        shape: Sequence[int | str],
        dtype: np.dtype | type = np.float32,
    ) -> np.ndarray:
        """Converts one picture to an input: an array [1, c, h, w] or [1, h, w, c], whichever fits `shape`.

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
                raise InputError("the input is uint8, for unscaled pictures; leave out mean= and std=")
            values = pixels
        elif dtype.kind == "f":
            values = (pixels * self.scale - np.array(self.mean)) / np.array(self.std)
        else:
            raise InputError(f"pictures become inputs of floats or of uint8, this input is {dtype}")
        return np.ascontiguousarray(np.moveaxis(values, 2, 0) if axis == 1 else values, dtype=dtype)[None]

    def place(self, width: int, height: int) -> Framing:
        """Places a picture of this many pixels. Raises InputError for one too thin to resize."""
        whole = (0, 0, width, height)
        if self.fit == "cut":
            unit = min(width / self.width, height / self.height) * self.crop
            w, h = max(1, round(unit * self.width)), max(1, round(unit * self.height))
            left, top = (width - w) // 2, (height - h) // 2
            return Framing((left, top, left + w, top + h), (self.width, self.height))
        if self.fit == "stretch":
            size = self.resized[::-1] or (self.width, self.height)
        elif self.fit == "letterbox":
            ratio = min(self.width / width, self.height / height)
            size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        else:
            longer = int(self.resized[0] * max(width, height) / min(width, height))
            size = (self.resized[0], longer) if width <= height else (longer, self.resized[0])
            if size[0] * size[1] > MOST_PIXELS:
                raise InputError(
                    f"a picture of {width}x{height} (width x height) would be resized to {size[0]}x{size[1]}"
                    " before cropping; crop such a thin picture first, or use stretch or letterbox"
                )
        x, y = (self._half(length - wanted) for length, wanted in zip(size, (self.width, self.height)))
        return Framing(whole, (size[0], size[1]), (x, y))

    def boxes_in_picture(self, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Maps boxes of a network to pixels of the picture, clipped to its edges.

        boxes: [..., 4], left, top, right, bottom in pixels of the input. size: the picture's width and height.
        """
        boxes = np.asarray(boxes, np.float64)
        if boxes.shape[-1:] != (4,):
            raise InputError(f"boxes are [..., 4]: left, top, right, bottom; got an array of {list(boxes.shape)}")
        box, resized, offset = self.place(*size)
        begin, scale = np.array(box[:2] * 2), np.array([box[2] - box[0], box[3] - box[1]] * 2) / np.array(resized * 2)
        return np.clip(begin + (boxes + np.array(offset * 2)) * scale, 0, np.array(size * 2))

    def _half(self, over: int) -> int:
        """Returns the share of the leftover pixels on the left or at the top; negative where the input is padded."""
        if over < 0:
            return -(-over // 2)  # as in Ultralytics' LetterBox
        return over // 2 if self.floor else round(over / 2)

    def _resize(self, image: Image) -> Image:
        from PIL import Image as pillow

        image = image.convert("L" if self.channels == "gray" else "RGB")
        box, size, (x, y) = self.place(image.width, image.height)
        image = image.crop(box).resize(size, pillow.Resampling[self.resample.upper()])
        if (self.width, self.height) == size:
            return image
        if self.fit != "letterbox":
            return image.crop((x, y, x + self.width, y + self.height))
        fill = [round(v) for v in (self.fill if len(self.fill) > 1 else self.fill * CHANNELS[self.channels])]
        colour = tuple(fill[::-1] if self.channels == "bgr" else fill)
        canvas = pillow.new(image.mode, (self.width, self.height), colour if len(colour) > 1 else colour[0])
        canvas.paste(image, (-x, -y))
        return canvas


def _listed(shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _numbers(values: Sequence[float]) -> str:
    return ",".join(repr(int(v) if v == int(v) else v) for v in values)


def open_picture(picture: str | os.PathLike[str] | np.ndarray | Image) -> Image:
    """Opens a picture as a Pillow image, rotated by its EXIF data; raises InputError if it cannot be read."""
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError:
        raise InputError('pictures need Pillow: pip install "pelton[image]"') from None
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
