"""Host steps: single nodes that no kernel covers, run by their reference. Loaded only for engines that have such
steps."""

from .host import check_call, function, run_node, run_text

__all__ = ["check_call", "function", "run_node", "run_text"]
