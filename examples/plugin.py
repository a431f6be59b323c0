"""An operator of one's own: one function of a scalar, which becomes part of the kernel of the layer before it.

    pip install 'pelton[build]'
    python examples/plugin.py

docs/plugins.md goes on from here, to operators with kernels in C or Triton.
"""

from typing import Any

import numpy as np
import onnx
import pelton
from onnx import helper
from pelton.plugins import scalar as sc


@pelton.register
class HardMish(pelton.Plugin):
    """x · clip(x + shift, 0, 2) / 2, element by element."""

    onnx = ("com.example", "HardMish")  # the domain and the type of nodes in ONNX models
    shift: float = 2.0  # an attribute, and its default

    def scalar(self, x: Any) -> Any:
        return x * sc.minimum(sc.maximum(x + self.shift, 0.0), 2.0) * 0.5


def model() -> onnx.ModelProto:
    """A product and the operator, as an exporter would write them."""
    weight = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("HardMish", ["product"], ["y"], domain="com.example", shift=1.5),
    ]
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", s]) for n, s in (("x", 64), ("y", 32))]
    graph = helper.make_graph(nodes, "example", ports[:1], ports[1:], [onnx.numpy_helper.from_array(weight, "weight")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)])


engine = pelton.build(model(), level=0)
x = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
y = engine.run({"x": x})["y"]

product = x @ onnx.numpy_helper.to_array(model().graph.initializer[0])
want = product * np.clip(product + 1.5, 0, 2) / 2
print(f"{len(engine.steps)} step for the product and HardMish; right: {np.allclose(y, want, atol=1e-5)}")
