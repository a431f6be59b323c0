"""Heads of decoders: logits of the rows that a run keeps alone, instead of all of a prompt's."""

from __future__ import annotations

from pelton.errors import InputError
from pelton.ir.graph import Node, Value
from pelton.network import Network, NetworkTensor
from pelton.ops.words import codebook_linear, matmul, quantized_linear

ROWS = "logit_rows"  # the input with the numbers of the rows
KEPT = "kept"  # the dimension of these rows
PRODUCTS = (matmul, quantized_linear, codebook_linear)


def kept_rows(net: Network, x: NetworkTensor, most: int) -> NetworkTensor:
    """Adds an input with numbers of rows; returns these rows of x [batch, tokens, …]. most: of them."""
    return net.gather(x, net.input(ROWS, f"i64[{KEPT}=1..1..{most}]"), axis=1)


def keep_rows(net: Network, logits: NetworkTensor, name: str, most: int) -> str | None:
    """Adds an output with the logits of some rows, or, where the head is of another form, of the last row.

    Returns the input with the numbers of these rows; None for the last row.
    """
    chain, value = list[tuple[Node, Value]](), logits.value
    while (node := net.builder.makers.get(value)) is not None and (node.op in PRODUCTS or node.op.kind == "pointwise"):
        variable = [v for v in node.inputs if v not in net.builder.constants]
        if len(variable) != 1 or variable[0].type.rank != 3:
            break
        chain.insert(0, (node, variable[0]))
        value = variable[0]
        if node.op in PRODUCTS:
            break
    if not chain or chain[0][0].op not in PRODUCTS:
        net.output(logits[:, -1:], name)
        return None
    y = kept_rows(net, net.wrap(value), most)
    for node, before in chain:
        operands = [y if v is before else net.wrap(v) for v in node.inputs]
        try:
            (y,) = net.apply(node.op, operands, node.attrs)
        except InputError:  # constants that fit all rows alone
            net.output(logits[:, -1:], name)
            return None
    net.output(y, name)
    return ROWS
