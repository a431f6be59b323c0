"""Descriptions of the conversion from pictures to inputs: one line, parsed strictly, or a file of Hugging Face."""

from __future__ import annotations

import math
import os
from typing import Any

from pelton.errors import InputAbsent, InputError

from . import huggingface
from .pictures import CHANNELS, FILTERS, Preprocessing

EXAMPLES = """for example
  "224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 rgb"  height x width; values become (value / 255 - mean) / std
  "224x224 shorter=256 bicubic"                               the shorter side resized to 256 pixels, the middle cut out
  "640x640 letterbox"                                         the whole picture, grey around it (letterbox=0: black)
  "416x416 stretch"                                           the whole picture, its proportions not kept
  "224x224 scale=1 mean=104,117,123 bgr crop=0.875"           values 0 to 255, channels blue first, the middle 87.5 %
  preprocessor_config.json                                    as Hugging Face's file says"""
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
KEYS = ("mean", "std", "scale", "crop", "stretch", "shorter", "letterbox")
LARGEST = 1 << 15  # pixels of a side


def is_picture(path: str) -> bool:
    """Returns True if a file name has the suffix of a picture."""
    return path.lower().endswith(SUFFIXES)


def parse(text: str | os.PathLike[str]) -> Preprocessing:
    """Parses a description such as "224x224 mean=0.5 std=0.25 rgb", or reads the .json file that it names; raises
    InputError with examples if it is neither."""
    text = os.fspath(text)
    if text.lower().endswith(".json"):
        return huggingface.read(text)
    fields: dict[str, Any] = {}
    for word in text.split():
        for key, value in _parse_word(word).items():
            if key in fields:
                both = "stretch, crop=, shorter= and letterbox exclude each other" if key == "fit" else ""
                raise _error(text, both or f"{word!r} has {key} twice")
            fields[key] = value
    if "height" not in fields:
        raise _error(text, "it names no size")
    count = CHANNELS[fields.get("channels", "rgb")]
    for key, shown in (("mean", "mean"), ("std", "std"), ("fill", "letterbox")):
        if len(fields.get(key, (0,))) not in (1, count):
            raise _error(text, f"{shown} has {len(fields[key])} numbers for {count} channel{'s' * (count > 1)}")
    made = Preprocessing(**fields)
    if made.floor and not made.resized:
        raise _error(text, "floor belongs to shorter= or stretch=HEIGHTxWIDTH")
    needed = (made.height, made.width) if made.fit == "stretch" else (max(made.height, made.width),)
    if any(have < want for have, want in zip(made.resized, needed)):
        raise _error(text, f"a picture {'x'.join(map(str, made.resized))} is smaller than {made.height}x{made.width}")
    return made


def describe(image: str | os.PathLike[str]) -> str:
    """Returns a description in words: the text itself, or that of the file it names. Raises as `parse` does."""
    if not isinstance(image, (str, os.PathLike)):
        raise InputError(f"image is a description of how pictures become inputs, got {image!r}; {EXAMPLES}")
    text, made = os.fspath(image), parse(image)
    return str(made) if text.lower().endswith(".json") else text


def _parse_word(word: str) -> dict[str, Any]:
    key, equals, value = word.partition("=")
    if not equals:
        if word in CHANNELS:
            return {"channels": word}
        if word in FILTERS:
            return {"resample": word}
        if word in ("stretch", "letterbox"):
            return {"fit": word}
        if word == "floor":
            return {"floor": True}
        if size := _size(word):
            return {"height": size[0], "width": size[1]}
        raise _error(
            word,
            "it is no size, channel order (rgb, bgr, gray), filter"
            f" ({', '.join(FILTERS)}), 'stretch', 'letterbox' or 'floor', nor one of {_keys()} with a value",
        )
    if key not in KEYS:
        raise _error(word, f"only {_keys()} take values")
    if key == "stretch":
        if not (size := _size(value)):
            raise _error(word, "stretch needs the height and width before cropping, as in 256x256")
        return {"fit": key, "resized": size}
    try:
        numbers = tuple(float(v) for v in value.split(","))
    except ValueError:
        raise _error(word, f"{value!r} is no list of numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise _error(word, "the numbers must be finite")
    if key in ("mean", "std"):
        if key == "std" and 0 in numbers:
            raise _error(word, "std divides and cannot be 0")
        return {key: numbers}
    if key == "letterbox":
        if any(not 0 <= n <= 255 or n != int(n) for n in numbers):
            raise _error(word, "letterbox needs the colour of the border, integers up to 255")
        return {"fit": key, "fill": numbers}
    if key == "shorter":
        if len(numbers) != 1 or not 1 <= numbers[0] <= LARGEST or numbers[0] != int(numbers[0]):
            raise _error(word, f"shorter is one whole number from 1 to {LARGEST}")
        return {"fit": key, "resized": (int(numbers[0]),)}
    if len(numbers) != 1 or not numbers[0] > 0 or (key == "crop" and numbers[0] > 1):
        raise _error(word, f"{key} is one number above 0" + (" and up to 1" if key == "crop" else ""))
    return {key: numbers[0], **({"fit": "cut"} if key == "crop" else {})}


def _keys() -> str:
    return ", ".join(f"{k}=" for k in KEYS)


def _size(text: str) -> tuple[int, int] | None:
    """Parses (height, width) from a text such as 224x320."""
    height, x, width = text.partition("x")
    if x and all(t.isdecimal() and len(t) < 9 and 0 < int(t) <= LARGEST for t in (height, width)):
        return int(height), int(width)
    return None


def _error(text: str, why: str) -> InputError:
    return InputError(f"{text!r} does not describe how pictures become inputs: {why}; {EXAMPLES}")


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
