"""`torch.compile(model, backend="pelton")`: graphs that dynamo captures as cached engines."""

from .compile import compile_graph

__all__ = ["compile_graph"]
