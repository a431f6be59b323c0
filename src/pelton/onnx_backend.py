"""Pelton behind the `onnx.backend.base.Backend` interface: `prepare(model).run(inputs)`, as the onnx package's backend
tests call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from onnx.backend.base import Backend, BackendRep

from pelton.errors import InputError
from pelton.options import Options

if TYPE_CHECKING:
    from pelton.builder.specialize import Fitted


class PeltonRep(BackendRep):
    """A model, built for the inputs of its first run, and again for inputs that need another engine."""

    def __init__(self, model: onnx.ModelProto, options: Options):
        from pelton.builder.specialize import Fitted

        self._fitted: Fitted = Fitted(model, options)

    @property
    def engines(self) -> tuple[Any, ...]:
        """The engines built so far."""
        return self._fitted.engines

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **_: Any) -> tuple[Any, ...]:
        """Returns the outputs, in the model's order. Inputs with initializers in the model are optional."""
        fitted = self._fitted
        names = fitted.names if len(inputs) == len(fitted.names) else fitted.required
        outputs = fitted.run(inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs)))
        return tuple(outputs[name] for name in fitted.outputs)


class PeltonBackend(Backend):
    """Engines for the CPU, built without timing unless `options` says otherwise."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", options: Options | None = None, **_: Any
    ) -> PeltonRep:
        if not cls.supports_device(device):
            raise InputError(f"device {device!r} is not available; this version runs on 'CPU'")
        return PeltonRep(model, options or Options(level=0))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU"


prepare = PeltonBackend.prepare
run_model = PeltonBackend.run_model
supports_device = PeltonBackend.supports_device
