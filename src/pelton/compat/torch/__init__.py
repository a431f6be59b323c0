"""`torch.compile(model, backend="pelton")`: graphs that dynamo captures as cached engines."""

from .backend import compile_graph

__all__ = ["compile_graph"]
