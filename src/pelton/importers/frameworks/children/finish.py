"""What other scripts of this folder do to a model that tf2onnx wrote: operators that ONNX lacks, order, names."""

import re

import onnx


def finish(target: str, inputs: list[str], outputs: list[str]) -> None:
    """Rewrites the model at `target`: inputs in the order of these names, as far as they are its own, and outputs
    called output_0, output_1, … in that order, with these names where they are free."""
    model = onnx.load(target)
    graph = model.graph
    mend(graph)
    order = {name: i for i, name in enumerate(inputs)}
    sort(graph.input, lambda v: order.get(v.name, len(order)))
    numbers = {v.name: int(v.name[7:]) for v in graph.output if re.fullmatch(r"output_\d+", v.name)}
    if len(numbers) == len(graph.output):
        sort(graph.output, lambda v: numbers[v.name])
        taken = {name for node in graph.node for name in (*node.input, *node.output)} | {v.name for v in graph.input}
        if sorted(numbers.values()) == list(range(len(outputs))) == list(range(len(set(outputs) - taken))):
            for value, name in zip(graph.output, outputs):
                graph.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
                value.name = name
    onnx.save(model, target)


def sort(values, key) -> None:
    """Sorts a repeated field of a message by a function of its elements."""
    found = sorted(values, key=key)
    copies = [type(v).FromString(v.SerializeToString()) for v in found]
    del values[:]
    values.extend(copies)


def mend(graph: onnx.GraphProto) -> None:
    """Writes 1 - Erf(x) for Erfc(x), which tf2onnx leaves as it is."""
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                mend(attribute.g)
        if node.op_type == "Erfc" and not node.domain:
            (x,), (y,) = node.input, node.output
            one = onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [1.0])
            nodes += [
                onnx.helper.make_node("Constant", [], [f"{y}/one"], value=one),
                onnx.helper.make_node("CastLike", [f"{y}/one", x], [f"{y}/like"]),
                onnx.helper.make_node("Erf", [x], [f"{y}/erf"]),
                onnx.helper.make_node("Sub", [f"{y}/like", f"{y}/erf"], [y], name=node.name),
            ]
        else:
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
