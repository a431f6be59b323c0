"""Readers of operators that split texts: the number of parts depends on data, so that only scripts run them."""

from __future__ import annotations

from pelton.ops.expressions import compiled_safely

from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads


@reads("StringNormalizer")
def string_normalizer(n: Reading) -> tuple[Binding, ...]:
    if n.input(0).type.rank not in (1, 2) or n.attr("case_change_action") not in ("NONE", "LOWER", "UPPER"):
        raise n.refuse(
            "StringNormalizer needs a vector of texts or a row of them, and NONE, LOWER or UPPER, got"
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
