"""Writers of recurrent layers; their steps become layers whose input weights pass the gates on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.ir.types import DType

from ..writing import Writing, writes
from .rounded import rounded_steps


def _attrs(a: Mapping[str, Any]) -> dict[str, Any]:
    return dict(
        hidden_size=a["hidden"],
        direction=a["direction"],
        activations=list(a["activations"]) or None,
        activation_alpha=list(a["activation_alpha"]) or None,
        activation_beta=list(a["activation_beta"]) or None,
        clip=a["clip"] or None,
    )


@writes("lstm")
def lstm(w: Writing) -> tuple[str, ...]:
    x, weight, recurrent, bias, h, c, peepholes = w.inputs
    known = w.known(6)
    peepholes = "" if known is not None and not known.any() else peepholes
    attrs = dict(_attrs(w.attrs), input_forget=1 if w.attrs["input_forget"] else None)
    return w.emit_all("LSTM", [x, weight, recurrent, bias, "", h, c, peepholes], [None] * 3, **attrs)


@writes("gru")
def gru(w: Writing) -> tuple[str, ...]:
    x, weight, recurrent, bias, h = w.inputs
    attrs = dict(_attrs(w.attrs), linear_before_reset=1 if w.attrs["linear_before_reset"] else None)
    return w.emit_all("GRU", [x, weight, recurrent, bias, "", h], [None] * 2, **attrs)


@writes("rnn")
def rnn(w: Writing) -> tuple[str, ...]:
    x, weight, recurrent, bias, h = w.inputs
    return w.emit_all("RNN", [x, weight, recurrent, bias, "", h], [None] * 2, **_attrs(w.attrs))


def _passing(w: Writing, directions: int, width: int) -> str:
    """Returns input weights [directions, width, directions · width] that pass each direction its own gates."""
    own = np.eye(directions * width).reshape(directions, width, directions * width)
    return w.constant(own, w.type(0).dtype)


def _steps(w: Writing) -> tuple[int, int, DType, dict[str, Any]]:
    a, (directions, width, hidden) = w.attrs, w.type(1).shape
    return (
        directions,
        width,
        w.type(0).dtype,
        dict(hidden_size=hidden, direction=a["direction"], clip=a["clip"] or None),
    )


@writes("lstm_steps")
def lstm_steps(w: Writing) -> tuple[str, ...]:
    if w.attrs["round_state"]:
        return rounded_steps(w)
    gates, recurrent, h, c, peepholes = w.inputs
    directions, width, _, attrs = _steps(w)
    weight = _passing(w, directions, width)
    attrs["input_forget"] = 1 if w.attrs["input_forget"] else None
    return w.emit_all("LSTM", [gates, weight, recurrent, "", "", h, c, peepholes], [None] * 3, **attrs)


@writes("gru_steps")
def gru_steps(w: Writing) -> tuple[str, ...]:
    """Places the recurrent bias of n behind zeros for all other biases."""
    gates, recurrent, bias, h = w.inputs
    directions, width, dtype, attrs = _steps(w)
    zeros = w.constant(np.zeros((directions, 5 * width // 3)), dtype)
    biases = w.emit("Concat", zeros, bias, axis=1)
    attrs["linear_before_reset"] = 1 if w.attrs["linear_before_reset"] else None
    return w.emit_all("GRU", [gates, _passing(w, directions, width), recurrent, biases, "", h], [None] * 2, **attrs)


@writes("rnn_steps")
def rnn_steps(w: Writing) -> tuple[str, ...]:
    gates, recurrent, h = w.inputs
    directions, width, _, attrs = _steps(w)
    attrs["activations"] = [w.attrs["activation"]] * directions
    return w.emit_all("RNN", [gates, _passing(w, directions, width), recurrent, "", "", h], [None] * 2, **attrs)
