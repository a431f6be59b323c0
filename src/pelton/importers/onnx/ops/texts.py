"""Readers of string operators with data-dependent output shapes, which only scripts run."""

from __future__ import annotations

from pelton.ops.expressions import compiled_safely

from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads


@reads("StringNormalizer")
def string_normalizer(n: Reading) -> tuple[Binding, ...]:
    if n.input(0).type.rank not in (1, 2) or n.attr("case_change_action") not in ("NONE", "LOWER", "UPPER"):
        raise n.refuse(
            "StringNormalizer needs strings of shape [n] or [1, n], and case_change_action NONE, LOWER or UPPER, got"
            f" {n.input(0).type} and {n.attr('case_change_action')!r}"
        )
    raise n.data_dependent_control()


@reads("Tokenizer", domain=MICROSOFT)
def tokenizer(n: Reading) -> tuple[Binding, ...]:
    for expression in (n.attr("tokenexp"), *(n.attr("separators") or ())):
        if expression:
            try:
                compiled_safely(expression)
            except ValueError as e:
                raise n.refuse(str(e)) from None
    raise n.data_dependent_control()
