"""Readers of one step of the optimizers Adagrad, Adam and Momentum, pointwise over each of their tensors."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.ir.graph import Value
from pelton.ir.types import DType

from pelton.importers.onnx.node import Reading, Binding, reads

_TRAINING = "ai.onnx.preview.training"


class TrainingStep:
    """Arithmetic in the element type of one tensor; converts numbers, learning rate and step count to it."""

    def __init__(self, n: Reading, dtype: DType):
        self.n, self.dtype = n, dtype
        self.rate, self.count = n.cast(n.reshape(n.input(0), ()), dtype), n.cast(n.reshape(n.input(1), ()), dtype)

    def __call__(self, op: str, *operands: Value | float) -> Value:
        return self.n.emit(op, *(x if isinstance(x, Value) else self.n.constant(x, self.dtype) for x in operands))

    def regularize(self, x: Value, gradient: Value) -> Value:
        """Adds the gradient of the L2 penalty on weights."""
        norm = self.n.attr("norm_coefficient", 0.0)
        return self("add", self("mul", x, norm), gradient) if norm else gradient

    def after_first_step(self, first: Value | float, after: Value | float) -> Value:
        """Returns `first` in the first step, `after` in later ones."""
        return self("where", self("greater", self.count, 0.0), after, first)

    def mix(self, old: Value, new: Value, share: float) -> Value:
        return self("add", self("mul", old, share), self("mul", new, 1 - share))


def _tensors(n: Reading, kinds: int) -> list[tuple[Value, ...]]:
    """Groups the inputs, which come by kind, as (tensor, gradient, states…) per tensor."""
    rest = [n.input(i) for i in range(2, len(n.bindings))]
    if not rest or len(rest) % kinds:
        raise n.refuse(
            f"{n.op} needs a learning rate, a step count and {kinds} tensors for each trained one, got {len(rest)}"
            " tensors"
        )
    count = len(rest) // kinds
    return list(zip(*(rest[i * count : (i + 1) * count] for i in range(kinds))))


def _by_kind(found: Sequence[tuple[Value, ...]]) -> tuple[Binding, ...]:
    return tuple(v for kind in zip(*found) for v in kind)


@reads("Adagrad", domain=_TRAINING)
def adagrad(n: Reading) -> tuple[Binding, ...]:
    """Takes steps that shrink with the sum of squared gradients."""
    updates = []
    for x, gradient, squares in _tensors(n, 3):
        at = TrainingStep(n, x.type.dtype)
        rate = at("div", at.rate, at("add", at("mul", at.count, n.attr("decay_factor", 0.0)), 1.0))
        g = at.regularize(x, gradient)
        total = at("add", squares, at("mul", g, g))
        updates.append(
            (at("sub", x, at("div", at("mul", rate, g), at("add", at("sqrt", total), n.attr("epsilon", 0.0)))), total)
        )
    return _by_kind(updates)


@reads("Adam", domain=_TRAINING)
def adam(n: Reading) -> tuple[Binding, ...]:
    """Takes steps by running means of gradients and of their squares, corrected for their bias towards zero."""
    alpha, beta, updates = n.attr("alpha"), n.attr("beta"), []
    for x, gradient, mean, squares in _tensors(n, 4):
        at = TrainingStep(n, x.type.dtype)
        g = at.regularize(x, gradient)
        mean, squares = at.mix(mean, g, alpha), at.mix(squares, at("mul", g, g), beta)
        corrected = at(
            "div", at("sqrt", at("sub", 1.0, at("pow", beta, at.count))), at("sub", 1.0, at("pow", alpha, at.count))
        )
        rate = at.after_first_step(at.rate, at("mul", at.rate, corrected))
        moved = at("sub", x, at("div", at("mul", rate, mean), at("add", at("sqrt", squares), n.attr("epsilon", 0.0))))
        shrink = n.attr("norm_coefficient_post", 0.0)
        updates.append((at("mul", moved, 1 - shrink) if shrink else moved, mean, squares))
    return _by_kind(updates)


@reads("Momentum", domain=_TRAINING)
def momentum(n: Reading) -> tuple[Binding, ...]:
    """Takes steps by a decaying sum of gradients; mode nesterov looks one step ahead."""
    alpha, updates = n.attr("alpha"), []
    for x, gradient, velocity in _tensors(n, 3):
        at = TrainingStep(n, x.type.dtype)
        g = at.regularize(x, gradient)
        velocity = at(
            "add", at("mul", velocity, alpha), at("mul", g, at.after_first_step(1.0, at("mul", 1.0, n.attr("beta"))))
        )
        along = at("add", g, at("mul", velocity, alpha)) if n.attr("mode") == "nesterov" else velocity
        updates.append((at("sub", x, at("mul", at.rate, along)), velocity))
    return _by_kind(updates)
