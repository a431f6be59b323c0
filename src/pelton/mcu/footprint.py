"""Memory that an engine takes of a micro-controller, in bytes of its compiled sources."""

from __future__ import annotations

from typing import Any

from pelton.record import record


@record(frozen=True)
class Footprint:
    """Sizes in bytes: machine code of the kernels, tables with the engine's functions, weights and the arena; and the
    functions that a program must have besides (`memcpy`, a compiler's own)."""

    kernels: int
    tables: int
    weights: int
    ram: int
    needs: tuple[str, ...] = ()

    @property
    def flash(self) -> int:
        return self.kernels + self.tables + self.weights

    def json(self) -> dict[str, Any]:
        """Returns the sizes for programs."""
        return {
            "flash": self.flash,
            "kernels": self.kernels,
            "tables": self.tables,
            "weights": self.weights,
            "ram": self.ram,
            "needs": list(self.needs),
        }
