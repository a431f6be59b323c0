"""Layers that resize or crop images, and those that change them only in training."""

from __future__ import annotations

from pelton.ir.dims import is_known
from pelton.network import Network, NetworkTensor

from ..held import HeldTensor
from ..reading import KerasReading, reads

METHODS = ("nearest", "bilinear", "bicubic")
IN_TRAINING = (
    *("RandomBrightness", "RandomContrast", "RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom"),
    *("RandomGrayscale", "RandomHue", "RandomSaturation", "RandomShear", "RandomErasing", "RandomPerspective"),
    *("RandomGaussianBlur", "RandomColorJitter", "RandomColorDegeneration", "RandomSharpness", "RandomInvert"),
    *("RandomPosterization", "RandAugment", "MixUp", "CutMix", "AugMix"),
)


def resized(net: Network, x: NetworkTensor, size: tuple[int, ...], method: str) -> NetworkTensor:
    """Resizes [batch, channels, height, width] as tf.image.resize does without antialiasing."""
    if x.shape[2:] == size:
        return x
    if method == "nearest":
        return net.resize(x, size, mode="nearest", coordinates="tf_half_pixel_for_nn", nearest="floor")
    if method == "bilinear":
        return net.resize(x, size, mode="linear", coordinates="half_pixel")
    return net.resize(x, size, mode="cubic", coordinates="half_pixel", cubic_a=-0.5, exclude_outside=True)


@reads("UpSampling1D")
def upsampling_1d(r: KerasReading) -> HeldTensor:
    x, (size,) = r.input((3,)), r.layer.integers("size", 1)
    return r.of_image(_repeated(r, r.image(x, False), (size,)), False)


@reads("UpSampling2D", "UpSampling3D")
def upsampling(r: KerasReading) -> HeldTensor:
    axes, first = int(r.layer.type[-2]), r.is_channels_first()
    size = r.layer.integers("size", axes)
    method = r.layer.choice("interpolation", *METHODS, default="nearest")
    x = r.image(r.floats((axes + 2,)), first)
    if method == "nearest":
        return r.of_image(_repeated(r, x, size), first)
    known = [r.number(d, "the size of its image") for d in x.shape[2:]]
    return r.of_image(resized(r.net, x, tuple(n * s for n, s in zip(known, size)), method), first)


def _repeated(r: KerasReading, x: NetworkTensor, size: tuple[int, ...]) -> NetworkTensor:
    if len(size) == 2 or len(size) == 1:
        return r.net.upsample(x, size)
    batch, channels, *space = x.shape
    wide = r.net.reshape(x, (batch, channels, *(d for n in space for d in (n, 1))))
    wide = r.net.expand(wide, (batch, channels, *(d for n, s in zip(space, size) for d in (n, s))))
    return r.net.reshape(wide, (batch, channels, *(n * s for n, s in zip(space, size))))


@reads("Resizing")
def resizing(r: KerasReading) -> HeldTensor:
    first = r.is_channels_first()
    size = (r.layer.integer("height"), r.layer.integer("width"))
    method = r.layer.choice("interpolation", *METHODS, default="bilinear")
    r.layer.expect(crop_to_aspect_ratio=False, pad_to_aspect_ratio=False, antialias=False)
    r.layer.ignore("fill_mode", "fill_value")
    return r.of_image(resized(r.net, r.image(r.floats((4,)), first), size, method), first)


@reads("CenterCrop")
def center_crop(r: KerasReading) -> HeldTensor:
    first = r.is_channels_first()
    size = (r.layer.integer("height"), r.layer.integer("width"))
    x = r.image(r.floats((4,), casts=True), first)
    if not is_known(*x.shape[2:]) or any(n < s for n, s in zip(x.shape[2:], size)):
        raise r.refuse(f"crops {list(x.shape[2:])} to the larger {list(size)}")
    starts = tuple((n - s) // 2 for n, s in zip(x.shape[2:], size))
    ends = tuple(start + s for start, s in zip(starts, size))
    return r.of_image(r.net.slice(x, starts=starts, ends=ends, axes=(2, 3), steps=(1, 1)), first)


@reads(*IN_TRAINING)
def unchanged(r: KerasReading) -> HeldTensor:
    r.layer.ignore(*r.layer.options)
    return r.floats()
