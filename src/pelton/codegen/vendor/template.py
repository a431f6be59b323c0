"""Base of templates that a vendor library computes: tactics like any others, chosen only if timed as faster."""

from __future__ import annotations

from pelton.engine.library import WORK, name
from pelton.engine.work import CHOICES, KINDS
from pelton.ir.graph import Value
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template
from pelton.plan.layout import Layouts
from pelton.plan.region import Region


class LibraryTemplate(Template):
    """A template named after its library. One tactic for each algorithm to time; none is a guess."""

    dynamic = False
    multiplies_bytes = False
    timed_only = True

    def describe(self, region: Region, layouts: Layouts) -> tuple[dict[str, int], tuple[Value | Packed, ...]] | None:
        """Returns the fields of the library's descriptor, without version and choice, and the operands; None if the
        library does not support an operand's layout."""
        raise NotImplementedError

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        if self.describe(region, layouts) is not None:
            for choice in range(CHOICES):
                yield Tactic(self.name, target.isa, (("CHOICE", choice), ("VERSION", target.version(self.name))))

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return ()

    def is_exact(self, tactic: Tactic) -> bool:
        return True

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        spec = self.describe(region, layouts)
        if spec is None:
            raise AssertionError(f"{self.name} does not take {region.title()}")
        fields = dict(spec[0])
        if target.tf32 and KINDS[fields["kind"]] == "f32":
            fields["kind"] = KINDS.index("tf32")
        what = WORK[self.name](tactic["VERSION"], tactic["CHOICE"], **fields)
        return Kernel(f'"""{region.title()} by {name(what, tactic.isa)}."""\n', self.name, spec[1], 1, what.dims())
