"""Recurrent layers, and wrappers around layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.network import NetworkTensor

from ..config import LayerConfig, flattened
from ..held import HeldTensor
from ..reading import KerasReading, reads

GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
# Keras' name → ONNX's, its alpha and beta
FUNCTIONS: dict[str, tuple[str, float | None, float | None]] = {
    "tanh": ("Tanh", None, None),
    "sigmoid": ("Sigmoid", None, None),
    "relu": ("Relu", None, None),
    "softsign": ("Softsign", None, None),
    "softplus": ("Softplus", None, None),
    "linear": ("Affine", 1.0, 0.0),
    "elu": ("Elu", 1.0, None),
}
HARD_SIGMOID = {2: ("HardSigmoid", 0.2, 0.5), 3: ("HardSigmoid", 1 / 6, 0.5)}
SEQUENCE = ("unroll", "implementation", "zero_output_for_mask", "dropout", "recurrent_dropout")


def _of_cell(layer: LayerConfig) -> list[str]:
    return ["cell/kernel", "cell/recurrent_kernel", *["cell/bias"] * layer.flag("use_bias", True)]


@reads("LSTM", "GRU", "SimpleRNN", variables=_of_cell, masks=True, arguments=True)
def recurrent(r: KerasReading) -> list[HeldTensor]:
    x, states = _called(r)
    return _returned(r, *_layer(r, r.layer, x, states, r.layer.flag("go_backwards", False)))


def _called(r: KerasReading) -> tuple[NetworkTensor, list[NetworkTensor]]:
    """Returns a sequence [time, batch, features], and the states of the call."""
    r.layer.ignore(*SEQUENCE)
    r.layer.expect(stateful=False, time_major=False, constants=None, num_constants=None)
    inputs = flattened([r.args, r.kwargs.get("initial_state")])
    inputs = [x for x in inputs if x is not None]
    r.expect_arguments("initial_state")
    if not all(isinstance(x, HeldTensor) for x in inputs):
        raise r.refuse("is called with something else than tensors")
    x, *states = inputs
    r.checked(x, (3,))
    t = x.tensor() if x.dtype.is_float else r.net.cast(x.tensor(), to="f32")
    return r.net.transpose(t, (1, 0, 2)), [s.tensor() for s in states]


def _returned(
    r: KerasReading, steps: NetworkTensor, states: Sequence[NetworkTensor], backwards: bool
) -> list[HeldTensor]:
    """Returns a layer's outputs from all steps [time, batch, units], in the order of time, and from its last states."""
    if r.layer.flag("return_sequences", False):
        steps = r.net.flip(steps, 0) if backwards else steps
        y = r.net.transpose(steps, (1, 0, 2))
    else:
        y = states[0]
    return [r.of(t) for t in (y, *(states if r.layer.flag("return_state", False) else ()))]


def _layer(
    r: KerasReading,
    layer: LayerConfig,
    x: NetworkTensor,
    states: Sequence[NetworkTensor],
    backwards: bool,
) -> tuple[NetworkTensor, list[NetworkTensor], bool]:
    """Computes all steps in the order of time, and the last states, h first."""
    kind = layer.type.removesuffix("Cell")
    units, gates = layer.integer("units"), GATES[kind]
    layer.ignore("dropout", "recurrent_dropout")
    of = KerasReading(r.net, layer, r.scope, r.weights, [], {})
    prefix = "" if layer.type.endswith("Cell") else "cell/"
    features = r.number(x.shape[2], "the number of features")
    kernel = of.variable(f"{prefix}kernel", features, gates * units)
    recurrent_kernel = of.variable(f"{prefix}recurrent_kernel", units, gates * units)
    after = kind == "GRU" and layer.flag("reset_after", layer.version > 2)
    bias = _biases(of, prefix, gates * units, after)
    order = (0, 3, 1, 2) if kind == "LSTM" else range(gates)  # in Keras i, f, c, o
    w, u = (_gates(k.T, order, units)[None] for k in (kernel, recurrent_kernel))
    b = np.concatenate([_gates(part, order, units) for part in bias])[None]
    if len(states) not in (0, 1 + (kind == "LSTM")):
        raise layer.refuse(f"receives {len(states)} states")
    begin = [r.net.unsqueeze(s, 0) for s in states]
    attrs: dict[str, Any] = {"direction": "reverse" if backwards else "forward", **_functions(layer, kind)}
    if kind == "GRU":
        attrs["linear_before_reset"] = after
    run = getattr(r.net, {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "rnn"}[kind])
    steps, *last = run(x, w, u, b, *begin, **attrs)
    return r.net.squeeze(steps, 1), [r.net.squeeze(s, 0) for s in last], backwards


def _biases(of: KerasReading, prefix: str, size: int, both: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the biases of the input and of the state."""
    if not of.layer.flag("use_bias", True):
        return np.zeros(size, np.float32), np.zeros(size, np.float32)
    if both:
        own, recurrent = of.variable(f"{prefix}bias", 2, size)
        return own, recurrent
    return of.variable(f"{prefix}bias", size), np.zeros(size, np.float32)


def _gates(rows: np.ndarray, order: Sequence[int], units: int) -> np.ndarray:
    """Reorders the rows of gates."""
    return np.concatenate([rows[g * units : (g + 1) * units] for g in order])


def _functions(layer: LayerConfig, kind: str) -> dict[str, Any]:
    """Returns the activation functions as ONNX attributes."""
    options = (
        [("activation", "tanh")]
        if kind == "SimpleRNN"
        else [("recurrent_activation", "sigmoid"), ("activation", "tanh")]
    )
    functions = []
    for option, usual in options:
        name = layer.option(option, usual)
        known = HARD_SIGMOID[layer.version] if name == "hard_sigmoid" else FUNCTIONS.get(str(name))
        if known is None:
            raise layer.refuse(f"has the unknown {option} {name!r:.60}")
        functions.append(known)
    if kind == "LSTM":
        functions.append(functions[1])  # of the cell, and of its output
    if [name for name, _, _ in functions] == ["Sigmoid", "Tanh", "Tanh"][: len(functions)] and kind != "SimpleRNN":
        return {}
    return {
        "activations": tuple(name for name, _, _ in functions),
        "activation_alpha": tuple(a for _, a, _ in functions if a is not None),
        "activation_beta": tuple(b for _, _, b in functions if b is not None),
    }


# --- cells


def _cell_variables(layer: LayerConfig) -> list[str]:
    return ["kernel", "recurrent_kernel", *["bias"] * layer.flag("use_bias", True)]


@reads("LSTMCell", "GRUCell", "SimpleRNNCell", variables=_cell_variables)
def cell(r: KerasReading) -> HeldTensor:
    raise r.refuse("is called outside of an RNN")


def _cells(layer: LayerConfig) -> list[tuple[str, LayerConfig]]:
    """Returns the cells of StackedRNNCells; their paths follow from their classes like those of layers."""
    configs, used, cells = layer.option("cells"), dict[str, int](), []
    for one in configs if isinstance(configs, list) else []:
        child = LayerConfig.of(one, layer.version, f"layer {layer.name!r}")
        name = {"LSTMCell": "lstm_cell", "GRUCell": "gru_cell", "SimpleRNNCell": "simple_rnn_cell"}.get(child.type)
        if name is None or not child.is_own:
            raise layer.refuse(f"has a cell of the unknown class {child.type}")
        used[name] = used.get(name, -1) + 1
        cells.append((f"cells/{name}_{used[name]}" if used[name] else f"cells/{name}", child))
    return cells


@reads("StackedRNNCells", within=_cells)
def stacked(r: KerasReading) -> HeldTensor:
    raise r.refuse("is called outside of an RNN")


def _one(option: str):
    def within(layer: LayerConfig) -> list[tuple[str, LayerConfig]]:
        return [(option, LayerConfig.of(layer.option(option), layer.version, f"layer {layer.name!r}"))]

    return within


@reads("RNN", within=_one("cell"), masks=True, arguments=True)
def of_cells(r: KerasReading) -> list[HeldTensor]:
    (inner,) = r.scope.within(r.layer)
    r.layer.ignore("cell")
    cells = r.scope.within(inner) if inner.type == "StackedRNNCells" else [inner]
    if not cells or not all(
        c.is_own and c.type.removesuffix("Cell") in GATES and c.type.endswith("Cell") for c in cells
    ):
        raise r.refuse(f"has a cell of the unknown class {inner.type}")
    if inner.type == "StackedRNNCells":
        inner.ignore("cells")
        inner.expect(reverse_state_order=False)
        inner.check_policy()
        inner.check_rest()
    backwards = r.layer.flag("go_backwards", False)
    x, states = _called(r)
    if states and len(cells) > 1:
        raise r.refuse("receives states of several cells")
    last: list[NetworkTensor] = []
    for one in cells:
        one.check_policy()
        x, cell_states, _ = _layer(r, one, x, states, backwards)
        one.ignore("implementation")
        one.check_rest()
        last += cell_states
    if len(cells) > 1 and r.layer.flag("return_state", False):
        raise r.refuse("outputs states of several cells")
    if len(cells) > 1 and not r.layer.flag("return_sequences", False):
        last = [cell_states[0]]
    return _returned(r, x, last, backwards)


# --- wrappers


def _both(layer: LayerConfig) -> list[tuple[str, LayerConfig]]:
    """Returns the two layers of Bidirectional; without a backward layer, the second is the reversed first."""
    where = f"layer {layer.name!r}"
    forward = LayerConfig.of(layer.option("layer"), layer.version, where)
    if layer.option("backward_layer", None) is not None:
        return [
            ("forward_layer", forward),
            ("backward_layer", LayerConfig.of(layer.option("backward_layer"), layer.version, where)),
        ]
    options = {**forward.options, "go_backwards": not forward.options.get("go_backwards", False)}
    backward = LayerConfig.of({**layer.option("layer"), "config": options}, layer.version, where)
    return [("forward_layer", forward), ("backward_layer", backward)]


@reads("Bidirectional", within=_both, masks=True, arguments=True)
def bidirectional(r: KerasReading) -> list[HeldTensor]:
    forward, backward = r.scope.within(r.layer)
    r.layer.ignore("layer", "backward_layer")
    mode = r.layer.option("merge_mode", "concat")
    sequences = {layer.flag("return_sequences", False) for layer in (forward, backward)}
    with_state = {layer.flag("return_state", False) for layer in (forward, backward)}
    if len(sequences) > 1 or len(with_state) > 1:
        raise r.refuse("has layers with different outputs")
    r.expect_arguments("initial_state")
    inputs = flattened(r.args) + flattened(r.kwargs.get("initial_state") or [])
    x, states = inputs[0], inputs[1:]
    half = len(states) // 2
    ahead, *last = r.scope.apply(forward, [x, *states[:half]])
    back, *last_back = r.scope.apply(backward, [x, *states[half:]])
    if True in sequences:
        back = r.of(r.net.flip(back.tensor(), 1))
    a, b = ahead.tensor(), back.tensor()
    if mode == "concat":
        outputs = [r.of(r.net.concat([a, b], a.rank - 1))]
    elif mode in ("sum", "mul", "ave"):
        y = a * b if mode == "mul" else a + b
        outputs = [r.of(y * 0.5 if mode == "ave" else y)]
    elif mode is None:
        outputs = [ahead, back]
    else:
        raise r.refuse(f"has the merge_mode {mode!r:.60}")
    return [*outputs, *last, *last_back]


@reads("TimeDistributed", within=_one("layer"), masks=True)
def time_distributed(r: KerasReading) -> list[HeldTensor]:
    """Applies the inner layer to each step: steps become samples."""
    (inner,) = r.scope.within(r.layer)
    r.layer.ignore("layer")
    x = r.input()
    if x.rank < 3:
        raise r.refuse(f"needs a sequence, got {list(x.shape)}")
    batch, steps, *rest = x.shape
    outputs = r.scope.apply(inner, [r.of(r.net.reshape(x.tensor(), (batch * steps, *rest)))])
    return [r.of(r.net.reshape(y.tensor(), (batch, steps, *y.shape[1:]))) for y in outputs]
