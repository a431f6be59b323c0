"""Reads Hugging Face's `preprocessor_config.json`, the picture steps of transformers' image processors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from pelton.errors import InputAbsent, InputError

from .pictures import FILTERS, Preprocessing

# Image processors without further steps, and the meaning of a size of one number: a square (True) or the shorter side
# (`default_to_square`).
SQUARE = {
    "beit": True,
    "bit": False,
    "blip": True,
    "chineseclip": False,
    "clip": False,
    "convnext": False,
    "deit": True,
    "mobilenetv1": False,
    "mobilenetv2": False,
    "mobilevit": False,
    "pvt": True,
    "rtdetr": False,
    "segformer": True,
    "siglip": False,
    "vit": True,
}
SUFFIXES = ("imageprocessor", "imageprocessorfast", "imageprocessorpil", "featureextractor")
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's codes
assert set(RESAMPLE) == set(FILTERS)
READ = {
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor"),
    *("do_normalize", "image_mean", "image_std", "do_pad", "pad_size", "do_flip_channel_order", "default_to_square"),
}
# Keys for labels and annotations, for the form of results, or for pictures that are not RGB (converted here).
HARMLESS = {
    *("image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "do_reduce_labels"),
    *("reduce_labels", "format", "do_convert_annotations", "data_format", "input_data_format", "return_tensors"),
    *("device", "disable_grouping", "_valid_processor_keys", "model_input_names"),
}
WARPED = 384  # from this size on, ConvNeXT's pictures are stretched, not cut (Liu et al. 2022, and transformers)


class _Refused(Exception):
    """The reason why a file is rejected."""


def read(path: str | os.PathLike[str]) -> Preprocessing:
    """Reads a file `preprocessor_config.json`. Raises InputError, naming the key, for steps that Pelton does not have,
    for an open input size, and for missing keys."""
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
    except FileNotFoundError as e:
        raise InputAbsent(f"{path} cannot be read: {e.strerror}", path) from None
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(
            f"{path} cannot be read as JSON: {getattr(e, 'strerror', None) or e}; expected Hugging Face's"
            " preprocessor_config.json"
        ) from None
    try:
        return _describe(config)
    except (_Refused, OverflowError) as e:
        raise InputError(
            f'{path} does not determine one input size: {e}; describe the preprocessing instead, as in "224x224'
            ' shorter=256 mean=0.485,0.456,0.406 std=0.229,0.224,0.225"'
        ) from None


def _describe(found: Any) -> Preprocessing:
    if isinstance(found, dict) and isinstance(found.get("image_processor"), dict):
        found = found["image_processor"]  # a processor_config.json holds several processors
    if not isinstance(found, dict):
        raise _Refused("it is no object with keys")
    kind = _kind(found)
    for key, value in found.items():
        if key not in READ | HARMLESS and value not in (None, False):
            raise _Refused(f"the step {key!r} ({json.dumps(value)}) is not known here")
    fields = {"fit": "stretch", **_placed(found, kind)}
    if _flag(found, "do_rescale", True):
        fields["scale"] = _number(found, "rescale_factor", 1 / 255)
    else:
        fields["scale"] = 1.0
    if "do_normalize" not in found and "image_mean" in found and kind != "mobilevit":  # mobilevit has no such step
        raise _Refused("'do_normalize' is missing")
    if _flag(found, "do_normalize", False):
        fields |= {"mean": _numbers(found, "image_mean"), "std": _numbers(found, "image_std")}
        if 0 in fields["std"]:
            raise _Refused("'image_std' has a 0")
    if _flag(found, "do_flip_channel_order", False):
        if "mean" in fields:
            raise _Refused("'do_flip_channel_order' besides 'do_normalize' is not known here")
        fields["channels"] = "bgr"
    return Preprocessing(**fields)


def _kind(found: Mapping[str, Any]) -> str:
    """Returns the image processor's name: "vit" of ViTImageProcessor, ViTImageProcessorFast and ViTFeatureExtractor."""
    name = found.get("image_processor_type") or found.get("feature_extractor_type")
    if not isinstance(name, str):
        raise _Refused("'image_processor_type' is missing")
    kind = next((name.lower()[: -len(s)] for s in SUFFIXES if name.lower().endswith(s)), name.lower())
    if kind not in SQUARE:
        raise _Refused(f"'image_processor_type' is {name}, whose steps are not known here (those of {_known()} are)")
    return kind


def _known() -> str:
    return ", ".join(sorted(SQUARE))


def _placed(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns the resizing and cutting of the picture."""
    if not _flag(found, "do_resize", True):
        raise _Refused("'do_resize' is false, and pictures have all sizes")
    code = found.get("resample")
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < len(RESAMPLE):
        raise _Refused(f"'resample' is {json.dumps(code)}, expected a code of Pillow's filters, 0 to 5")
    square = _flag(found, "default_to_square", SQUARE[kind])
    height, width, shorter = _size(found, "size", square)
    if kind == "convnext":
        placed = _convnext(found, height, shorter)
    elif _cut(found):
        placed = _middle(found, (shorter,) if shorter else (height, width))
    elif shorter:
        raise _Refused("'size' is that of the shorter side, without 'do_center_crop': the other one is left open")
    else:
        placed = {"height": height, "width": width}
    if _flag(found, "do_pad", False) and found.get("pad_size") is not None:
        if _size(found, "pad_size", True)[:2] != (placed["height"], placed["width"]):
            raise _Refused("'do_pad' to a 'pad_size' that is not the size is not known here")
    return placed | {"resample": RESAMPLE[code]}


def _cut(found: Mapping[str, Any]) -> bool:
    if "do_center_crop" not in found and "crop_size" in found:
        raise _Refused("'crop_size' needs 'do_center_crop'")
    return _flag(found, "do_center_crop", False)


def _middle(found: Mapping[str, Any], resized: tuple[int, ...]) -> dict[str, Any]:
    height, width, shorter = _size(found, "crop_size", True)
    if shorter:
        raise _Refused("'crop_size' has 'shortest_edge', expected 'height' and 'width'")
    needed = (height, width) if len(resized) == 2 else (max(height, width),)
    if any(have < want for have, want in zip(resized, needed)):
        raise _Refused(
            f"'crop_size' {height}x{width} is larger than the resized picture, {'x'.join(map(str, resized))}"
        )
    fit = "stretch" if len(resized) == 2 else "shorter"
    return {"height": height, "width": width, "fit": fit, "resized": resized, "floor": True}


def _convnext(found: Mapping[str, Any], height: int, shorter: int) -> dict[str, Any]:
    """Returns ConvNeXT's placement: cut out of a picture larger by 1 / crop_pct, or stretched."""
    if _cut(found):
        raise _Refused("'do_center_crop' of a ConvNeXT, with 'crop_pct', is not supported")
    if not shorter:
        raise _Refused("'size' of a ConvNeXT must be 'shortest_edge'")
    if shorter >= WARPED:
        return {"height": shorter, "width": shorter}
    resized = int(shorter / _number(found, "crop_pct", 224 / 256))
    if resized < shorter:
        raise _Refused("'crop_pct' is above 1")
    return {"height": shorter, "width": shorter, "fit": "shorter", "resized": (resized,), "floor": True}


def _size(found: Mapping[str, Any], key: str, square: bool) -> tuple[int, int, int]:
    """Returns (height, width, shorter side) of a size in any of its forms; zeros for missing values."""
    size = found.get(key)
    if isinstance(size, (list, tuple)) and len(size) == 2:
        size = {"height": size[0], "width": size[1]}
    elif not isinstance(size, dict):
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    size = {k: v for k, v in size.items() if v is not None}
    if set(size) not in ({"height", "width"}, {"shortest_edge"}):
        raise _Refused(
            f"{key!r} is {json.dumps(found.get(key))}, expected 'height' and 'width', 'shortest_edge' alone, or a"
            " number"
        )
    for v in size.values():
        if isinstance(v, bool) or not isinstance(v, int) or not 0 < v <= 1 << 15:
            raise _Refused(f"{key!r} is {json.dumps(found.get(key))}, expected whole numbers from 1 to {1 << 15}")
    return size.get("height", 0), size.get("width", 0), size.get("shortest_edge", 0)


def _flag(found: Mapping[str, Any], key: str, default: bool) -> bool:
    value = found.get(key)
    if value is not None and not isinstance(value, bool):
        raise _Refused(f"{key!r} is {json.dumps(value)}, expected true or false")
    return default if value is None else value


def _number(found: Mapping[str, Any], key: str, default: float) -> float:
    value = found.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not value > 0:
        raise _Refused(f"{key!r} is {json.dumps(value)}, expected a number above 0")
    return float(value)


def _numbers(found: Mapping[str, Any], key: str) -> tuple[float, ...]:
    value = found.get(key)
    values = value if isinstance(value, (list, tuple)) else [value]
    fine = all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    if not fine or len(values) not in (1, 3):
        raise _Refused(f"{key!r} is {json.dumps(value)}, expected one number or three")
    return tuple(map(float, values))
