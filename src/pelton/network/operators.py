"""Every declared operator, built in or a plugin's, as a method of networks; `make operators` lists them for editors in
`operators.pyi`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pelton.errors import near
from pelton.ir.graph import Value
from pelton.ir.types import DType
from pelton.ops import REGISTRY, Op, get

from .tensor import Operand, NetworkTensor


class Operators:
    """Methods that apply one operator: `net.top_k(x, k=5, axis=1)`.

    Operands come first, attributes as keywords; `axis` and `axes` may count from the end. `name` names the layer and
    its results. Layers whose usual arguments differ from the operator's are separate methods (`layers.py`).
    """

    def apply(
        self, op: Op | str, operands: Sequence[Operand], attrs: Mapping[str, Any] | None = None, name: str = ""
    ) -> tuple[NetworkTensor, ...]:
        """Adds a layer of an operator; returns all its tensors."""
        raise NotImplementedError

    def tensor_of(self, operand: Operand) -> NetworkTensor:
        """Returns an operand as a tensor; a constant for an array or a number."""
        raise NotImplementedError

    def wrap(self, value: Value) -> NetworkTensor:
        """Returns a value of this network as a tensor."""
        raise NotImplementedError

    def constant(self, array: Any, name: str = "constant", dtype: str | DType | None = None) -> NetworkTensor:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            op = None if name.startswith("_") else get(name.rstrip("_"))
        except KeyError:
            op = None
        if op is None or op.kind == "nested":
            known = [k for k, o in REGISTRY.items() if o.kind != "nested"]
            raise AttributeError(f"networks have no operator {name!r}{near(name, known)}", name=name, obj=self)
        return functools.partial(_applied, self, op)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(n for n, o in REGISTRY.items() if o.kind != "nested")})


def _applied(network: Operators, op: Op, *operands: Any, name: str = "", **attrs: Any) -> Any:
    """Returns the method of `Operators` that applies an operator."""
    outputs = network.apply(op, operands, attrs, name)
    return outputs[0] if len(outputs) == 1 else outputs
