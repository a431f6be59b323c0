"""Reports of passes: the applied and the rejected rules, as plain data."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field


@dataclass
class PassReport:
    """One pass over one graph; nodes are named as in the model file (`conv1+bn1` if several became one)."""

    name: str
    before: int = 0  # nodes
    after: int = 0
    fired: dict[str, list[str]] = field(default_factory=dict)  # rule → its new nodes, in order
    rejected: dict[str, dict[str, str]] = field(default_factory=dict)  # rule → node → reason
    says: str = ""  # a summary for users

    def fire(self, rule: str, node: str) -> None:
        self.fired.setdefault(rule, []).append(node)

    def reject(self, rule: str, node: str, reason: str) -> None:
        self.rejected.setdefault(rule, {})[node] = reason

    def __str__(self) -> str:
        done = ", ".join(f"{rule} {len(nodes)}×" for rule, nodes in self.fired.items())
        return f"{self.name}: {self.before} → {self.after} nodes" + (f" ({done})" if done else "")


@dataclass
class Report:
    """The reports of all passes of one run, in order."""

    passes: list[PassReport] = field(default_factory=list)

    def then(self, other: Report) -> Report:
        """Returns the reports of these passes and then of those."""
        return Report([*self.passes, *other.passes])

    def of(self, names: Container[str]) -> Report:
        """Returns the reports of the passes with one of the names."""
        return Report([p for p in self.passes if p.name in names])

    def fired(self) -> dict[str, list[str]]:
        """Maps each rule to its nodes, over all passes."""
        total: dict[str, list[str]] = {}
        for p in self.passes:
            for rule, nodes in p.fired.items():
                total.setdefault(rule, []).extend(nodes)
        return total

    def rejected(self) -> dict[str, dict[str, str]]:
        """Maps rule → node → reason, of the last pass that tried the rule: a later success cancels a rejection."""
        last: dict[str, dict[str, str]] = {}
        for p in self.passes:
            for rule in (*p.fired, *p.rejected):
                last[rule] = p.rejected.get(rule, {})
        return {rule: nodes for rule, nodes in last.items() if nodes}

    def __str__(self) -> str:
        return "\n".join(map(str, self.passes))
