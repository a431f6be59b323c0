"""Sessions, values and bindings under the name of the module in which ONNX Runtime defines them."""

from .onnxruntime_pybind11_state import __getattr__ as __getattr__
