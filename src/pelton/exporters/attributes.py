"""A node's attributes as its writer sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pelton.ir.graph import Node


class Attributes(Mapping[str, Any]):
    """A node's attributes, which track reads: a writer that ignores one would write another op."""

    def __init__(self, node: Node):
        self._node, self._read = node, set[str]()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._node.attrs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._node.attrs)

    def __len__(self) -> int:
        return len(self._node.attrs)

    def ignored(self) -> str | None:
        """Returns an attribute, with its value, that differs from its default and was not read; None if none does."""
        defaults = self._node.op.attrs
        unread = ((k, v) for k, v in self._node.attrs.items() if k not in self._read)
        return next((f"{k} = {v}" for k, v in unread if v != defaults.get(k)), None)
