"""Pelton behind the `onnx.backend.base.Backend` interface: `prepare(model).run(inputs)`, as the onnx package's backend tests call it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

from pelton.build import build
from pelton.errors import InputError
from pelton.options import Options


class PeltonRep(BackendRep):
    """A model that is built for the shapes of the inputs it is first run with, and again for other shapes."""

    def __init__(self, model: onnx.ModelProto, options: Options):
        self._model, self._options = model, options
        self._engines: dict[tuple, Any] = {}
        self._stored = {i.name: i for i in model.graph.initializer}
        self._names = [i.name for i in model.graph.input]

    @property
    def engines(self) -> tuple[Any, ...]:
        """What has been built so far."""
        return tuple(self._engines.values())

    def run(self, inputs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
        """The outputs, in the model's order. Inputs may leave out those that the model has initializers for."""
        given = inputs if isinstance(inputs, dict) else dict(zip(self._names if len(inputs) == len(self._names) else
                                                                 [n for n in self._names if n not in self._stored], inputs))
        fed = {}
        for name, value in given.items():
            if name in self._stored:
                if not np.array_equal(numpy_helper.to_array(self._stored[name]), value):
                    raise InputError(f"input {name!r} has a value in the model, which engines keep as a constant; remove its initializer to feed it")
            else:
                fed[name] = value
        shapes = {n: tuple(np.shape(a)) for n, a in fed.items() if isinstance(a, np.ndarray)}
        key = tuple(sorted(shapes.items()))
        if key not in self._engines:
            self._engines[key] = build(self._model, options=self._options, shapes=shapes)
        found = self._engines[key].run(fed)
        return tuple(found[o.name] for o in self._model.graph.output)


class PeltonBackend(Backend):
    """Engines for the CPU, built without timing unless `options` says otherwise."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", options: Options | None = None, **_: Any) -> PeltonRep:
        if not cls.supports_device(device):
            raise InputError(f"device {device!r} is not available; this version runs on 'CPU'")
        return PeltonRep(model, options or Options(level=0))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU"


prepare = PeltonBackend.prepare
run_model = PeltonBackend.run_model
supports_device = PeltonBackend.supports_device
