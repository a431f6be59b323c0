"""Two engines side by side: their steps, aligned by the layers of the model that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .data import Described, layers_of


def align(left: Described, right: Described) -> list[dict[str, Any]]:
    """Returns rows in the order of execution; each holds the steps of both engines that share layers, directly or
    through others; "left" and "right" are step numbers. Steps without common layers have rows of their own with an
    empty side. Every step is in one row."""
    sides = (left.steps, right.steps)
    parent = {(side, i): (side, i) for side in (0, 1) for i in range(len(sides[side]))}

    def find(node: tuple[int, int]) -> tuple[int, int]:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    by_layer: dict[str, tuple[int, int]] = {}
    for node in parent:
        for name in layers_of(sides[node[0]][node[1]]):
            parent[find(node)] = find(by_layer.setdefault(name, node))
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for node in parent:
        row = rows.setdefault(find(node), {"left": [], "right": [], "layers": []})
        row["left" if node[0] == 0 else "right"].append(node[1])
        named = layers_of(sides[node[0]][node[1]])
        row["layers"] = list(dict.fromkeys([*row["layers"], *named]))
    return _merged(list(rows.values()))


def _merged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorts rows by their first step on the left; a row of the right alone follows the row of the step before it."""
    at = {i: row for row in rows for i in row["right"]}
    place: dict[int, float] = {}
    for row in rows:
        if row["left"]:
            place[id(row)] = row["left"][0]
    for i in sorted(at):
        if id(at[i]) not in place:
            place[id(at[i])] = place[id(at[i - 1])] + 1e-4 if i else -1.0
    return sorted(rows, key=lambda row: place[id(row)])
