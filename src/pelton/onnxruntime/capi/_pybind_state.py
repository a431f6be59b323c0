"""The native module under the name by which ONNX Runtime's own Python imports it."""

from .onnxruntime_pybind11_state import *  # noqa: F403
from .onnxruntime_pybind11_state import __getattr__ as __getattr__
