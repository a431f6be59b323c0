"""Layers of Darknet that read several layers: routes, shortcuts, products."""

from __future__ import annotations

import numpy as np

from pelton.network import NetworkTensor

from .reading import SectionReading, channels, reads


@reads("route")
def route(r: SectionReading) -> NetworkTensor:
    """Concatenates the channels of several layers; with groups, one part of each."""
    s = r.section
    layers = [r.layer(index, "layers") for index in s.numbers("layers")]
    if not layers:
        raise s.refuse("it needs the option layers=, the layers that it joins")
    groups, group = s.integer("groups", 1, 1), s.integer("group_id", 0)
    if len(layers) == 1 and groups == 1:
        return layers[0]
    images = [r.image(x) for x in layers]
    if len({x.shape[2:] for x in images}) > 1:
        sizes = ", ".join(f"{x.shape[2]} × {x.shape[3]}" for x in images)
        raise s.refuse(f"the layers that it joins must be of one size, they are {sizes}", "layers")
    if group >= groups or any(channels(x) % groups for x in images):
        raise s.refuse(
            f"groups={groups} must divide {', '.join(str(channels(x)) for x in images)} channels, and group_id be"
            f" below it, got {group}",
            "groups",
        )
    parts = [r.net.split(x, groups, 1)[group] if groups > 1 else x for x in images]
    return parts[0] if len(parts) == 1 else r.net.concat(parts, 1)


@reads("shortcut")
def shortcut(r: SectionReading) -> NetworkTensor:
    """Adds other layers to the layer before, in as many channels as both have; weighted in AlexeyAB's Darknet."""
    s, x = r.section, r.image()
    indices = s.numbers("from")
    if not indices:
        raise s.refuse("it needs the option from=, the layers that it adds")
    others = [r.image(r.layer(index, "from")) for index in indices]
    factors = _shortcut_weights(r, len(others) + 1, channels(x))
    total = x if factors is None else x * factors[0]
    alpha, beta = s.number("alpha", 1), s.number("beta", 1)
    for i, other in enumerate(others):
        other = _spread(r, other, x)
        if factors is not None:
            other = other * factors[i + 1][: channels(other)]
        total = _added(r, total if alpha == 1 else total * alpha, other if beta == 1 else other * beta)
    return r.activated(total, "linear")


def _spread(r: SectionReading, other: NetworkTensor, x: NetworkTensor) -> NetworkTensor:
    """Subsamples a larger image to x's size, and keeps the channels that x has too."""
    common = min(channels(x), channels(other))
    other = other[:, :common]
    (h, w), (height, width) = x.shape[2:], other.shape[2:]
    if (h, w) == (height, width):
        return other
    step = width // w
    if step < 2 or (h * step, w * step) != (height, width):
        raise r.section.refuse(
            f"the layers that it adds must be of its size, {h} × {w}, or a multiple, got {height} × {width}", "from"
        )
    return other[:, :, ::step, ::step]


def _added(r: SectionReading, x: NetworkTensor, other: NetworkTensor) -> NetworkTensor:
    missing = channels(x) - channels(other)
    return x + (r.net.pad(other, ((0, 0), (0, missing), (0, 0), (0, 0))) if missing else other)


def _shortcut_weights(r: SectionReading, layers: int, count: int) -> list[np.ndarray] | None:
    """Returns the factor of each layer, one or [channels, 1, 1], normalized; None if there are none."""
    s = r.section
    kind, norm = s.text("weights_type", "none"), s.text("weights_normalization", "none")
    per_channel = {"none": None, "per_feature": False, "per_layer": False, "per_channel": True}
    if kind not in per_channel or norm not in ("none", "relu", "avg_relu", "softmax"):
        raise s.refuse(
            "weights_type must be none, per_feature or per_channel, and weights_normalization none, relu or"
            f" softmax, got {kind} and {norm}"
        )
    if per_channel[kind] is None:
        return None
    factors = r.weights.take(s, "scale", layers, count if per_channel[kind] else 1).astype(np.float64)
    if norm != "none":
        factors = np.exp(factors - factors.max(0)) if norm == "softmax" else np.maximum(factors, 0)
        factors = factors / (factors.sum(0) + 1e-4)
    return [f.astype(np.float32).reshape(-1, 1, 1) if per_channel[kind] else f.astype(np.float32) for f in factors]


@reads("scale_channels")
def scale_channels(r: SectionReading) -> NetworkTensor:
    """Multiplies another layer by one factor per channel, or per pixel with `scale_wh`."""
    s, x, other = r.section, r.image(), r.source()
    expected = (1, *other.shape[2:]) if s.flag("scale_wh") else (channels(other), 1, 1)
    if x.shape[1:] != expected:
        raise s.refuse(
            f"the preceding layer must have {list(expected)} outputs, one factor each, got {list(x.shape[1:])}"
        )
    return r.activated(other * x, "linear")


@reads("sam")
def sam(r: SectionReading) -> NetworkTensor:
    """Multiplies another layer by the one before."""
    x, other = r.image(), r.source()
    if x.shape != other.shape:
        raise r.section.refuse(f"both layers must be of one size, got {list(x.shape[1:])} and {list(other.shape[1:])}")
    return r.activated(other * x, "linear")
