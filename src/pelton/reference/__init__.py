"""Host steps: single nodes without a kernel, run by their reference. Loaded only for engines with such steps."""

from .host import check_call, function, run_node, run_text

__all__ = ["check_call", "function", "run_node", "run_text"]
