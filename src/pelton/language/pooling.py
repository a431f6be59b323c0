"""From the rows of a text's tokens to its embedding, as a folder of sentence-transformers describes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import ModelAbsent, ModelError

from .safetensors import read, tensors_of
from .source import LanguageSettings, read_json

if TYPE_CHECKING:
    from pelton.network import Network, NetworkTensor

MODULES, SINGLE = "modules.json", "model.safetensors"
# in the order in which several are joined
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = ("Tanh", "Identity")


@dataclass(frozen=True)
class DenseLayer:
    """A product behind pooling. folder: of its file. tanh: behind it."""

    folder: Path
    inner: int
    width: int
    bias: bool
    tanh: bool


@dataclass(frozen=True)
class Pooling:
    """How embeddings are made of rows of tokens.

    modes: "cls" (the first token's row), "max", "mean", "mean_sqrt_len_tokens" (the sum, divided by the root of the
    length), "weightedmean" (weights are places, from 1 on), "lasttoken"; several are joined. dense: products behind.
    normalize: to a length of 1. folder: of the transformer. files: that were read.
    """

    modes: tuple[str, ...]
    dense: tuple[DenseLayer, ...]
    normalize: bool
    folder: Path
    files: tuple[Path, ...]


def pooling_of(folder: Path) -> Pooling | None:
    """Returns the pooling of a folder; None if it has no modules.json. Raises ModelError for modules that are not
    supported, naming them, and for damaged files."""
    path = folder / MODULES
    if not path.is_file():
        return None
    transformer, modes, dense, normalize, files = folder, tuple[str, ...](), list[DenseLayer](), False, [path]
    for kind, name in _modules(path):
        at = folder / name
        if normalize:
            raise ModelError(f"{path}: a module behind Normalize is not supported, got {kind!r}")
        if kind == "Transformer":
            transformer = at
        elif kind == "Pooling" and not modes:
            modes = _modes(LanguageSettings(read_json(at / "config.json"), at / "config.json"))
            files.append(at / "config.json")
        elif kind == "Dense" and modes:
            dense.append(_dense(at))
            files += [at / "config.json", at / SINGLE]
        elif kind == "Normalize" and modes:
            normalize = True
        else:
            raise ModelError(f"{path}: the module {kind!r} is not supported at this place")
    if not modes:
        raise ModelError(f"{path} has no module Pooling")
    return Pooling(modes, tuple(dense), normalize, transformer, tuple(files))


def _modules(path: Path) -> list[tuple[str, str]]:
    """Returns the kind and the folder of each module."""
    modules = read_json(path, list)
    known = all(
        isinstance(m, dict) and isinstance(m.get("type"), str) and isinstance(m.get("path"), str) for m in modules
    )
    if not modules or not known:
        raise ModelError(f"{path} must be a list of modules, each with a type and a path")
    for m in modules:
        if m["path"] and Path(m["path"]).name != m["path"]:
            raise ModelError(f"{path} names {m['path']!r}, which is no folder beside it")
    return [(m["type"].rpartition(".")[2], m["path"]) for m in modules]


def _modes(settings: LanguageSettings) -> tuple[str, ...]:
    modes = tuple(mode for flag, mode in FLAGS.items() if settings.flag(flag))
    if not settings.flag("include_prompt", True):
        raise ModelError(f"{settings.path}: include_prompt false is not supported")
    named: Any = settings.value("pooling_mode")
    if named is not None and not modes:
        modes = tuple(named) if isinstance(named, list) else (named,)
    unknown = settings.unknown({"word_embedding_dimension", "embedding_dimension"})
    if unknown or not modes or any(mode not in FLAGS.values() for mode in modes):
        raise ModelError(
            f"{settings.path}: the pooling {unknown or list(modes)} is not supported, only {', '.join(FLAGS)}"
        )
    return modes


def _dense(folder: Path) -> DenseLayer:
    settings = LanguageSettings(read_json(folder / "config.json"), folder / "config.json")
    activation = settings.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise ModelError(
            f"{settings.path}: the activation {activation!r} is not supported, only {', '.join(ACTIVATIONS)}"
        )
    if not (folder / SINGLE).is_file():
        raise ModelAbsent(f"{folder} has no {SINGLE}; weights are read from safetensors files alone", folder / SINGLE)
    inner, width = settings.whole("in_features"), settings.whole("out_features")
    return DenseLayer(folder, inner, width, settings.flag("bias", True), activation == "Tanh")


def pooled(net: Network, x: NetworkTensor, valid: NetworkTensor, pooling: Pooling) -> NetworkTensor:
    """Adds pooling of x, f32 [batch, tokens, width], and the products behind it; returns f32 [batch, width].

    valid: bool [batch, tokens], true for tokens of the texts. Raises ModelError for weights of another shape.
    """
    batch, count, width = x.shape
    counted = net.reshape(valid, (batch, count, 1))
    own = net.where(counted, x, np.float32(0))  # whatever rows behind the end of a text have
    length = net.reduce_sum(net.cast(counted, "f32"), axes=1)  # [batch, 1, 1]
    place = net.reshape(net.iota(count, "f32"), (1, count, 1))

    def of(mode: str) -> NetworkTensor:
        if mode == "cls":
            return x[:, :1]
        if mode == "max":
            return net.reduce_max(net.where(counted, x, np.float32(-np.inf)), axes=1)
        if mode == "lasttoken":
            return net.reduce_sum(net.where(net.equal(place, length - 1), x, np.float32(0)), axes=1)
        if mode == "weightedmean":
            return net.reduce_sum(own * (place + 1), axes=1) / (length * (length + 1) / 2)
        total = net.reduce_sum(own, axes=1)
        return total / (length if mode == "mean" else net.sqrt(length))

    parts = [net.reshape(of(mode), (batch, width)) for mode in pooling.modes]
    y = parts[0] if len(parts) == 1 else net.concat(parts, axis=1)
    for i, layer in enumerate(pooling.dense):
        stored = tensors_of(layer.folder / SINGLE)
        arrays = {name: read(stored[name]) for name in ("linear.weight", "linear.bias") if name in stored}
        shapes = {name: a.shape for name, a in arrays.items()}
        expected = {"linear.weight": (layer.width, layer.inner)} | (
            {"linear.bias": (layer.width,)} if layer.bias else {}
        )
        if shapes != expected or y.shape[1] != layer.inner:
            raise ModelError(
                f"{layer.folder / SINGLE} has tensors {shapes}, expected {expected} behind {y.shape[1]} numbers"
            )
        y = net.linear(y, arrays["linear.weight"], arrays.get("linear.bias"), name=f"dense{i}")
        y = net.tanh(y) if layer.tanh else y
    return y
