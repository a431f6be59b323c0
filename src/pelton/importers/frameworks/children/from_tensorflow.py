"""Run by the interpreter that has TensorFlow: from_tensorflow.py TARGET SOURCE writes a SavedModel folder or a frozen
GraphDef as ONNX. A refusal is the last line printed, with exit status 3."""

import os
import sys

from finish import finish

OPSET = "18"
NO_OUTPUTS = {"Assert", "Const", "NoOp", "Placeholder"}  # operations that nobody reads, and that are no results


def refuse(text: str) -> None:
    print(text, flush=True)
    sys.exit(3)


def of_folder(source: str) -> list[str]:
    """The arguments of tf2onnx for a SavedModel: its serving signature, else the only one."""
    from tensorflow.core.protobuf import saved_model_pb2

    found = saved_model_pb2.SavedModel()
    with open(os.path.join(source, "saved_model.pb"), "rb") as file:
        found.ParseFromString(file.read())
    graphs = {tuple(g.meta_info_def.tags): sorted(g.signature_def) for g in found.meta_graphs}
    tags = next((t for t in graphs if "serve" in t), next(iter(graphs), ()))
    names = [name for name in graphs.get(tags, ()) if not name.startswith("_")]
    chosen = "serving_default" if "serving_default" in names else ""
    if not chosen and len(names) == 1:
        (chosen,) = names
    if not chosen:
        refuse(
            f"a SavedModel needs a signature serving_default, or a single one, it has {', '.join(names) or 'none'}:"
            " save it with tf.saved_model.save(model, folder, signatures=model.call.get_concrete_function("
            "tf.TensorSpec([None, 224, 224, 3])))"
        )
    return ["--saved-model", source, "--tag", ",".join(tags), "--signature_def", chosen]


def of_file(source: str) -> list[str]:
    """The arguments of tf2onnx for a frozen graph: placeholders are inputs, what no operation reads is an output."""
    import tensorflow as tf

    definition = tf.compat.v1.GraphDef()
    with open(source, "rb") as file:
        definition.ParseFromString(file.read())
    variables = [n.name for n in definition.node if n.op in ("VariableV2", "VarHandleOp", "Variable")]
    if variables:
        refuse(
            f"it is not frozen: it has variables ({', '.join(variables[:4])}), whose values are in a checkpoint; freeze"
            " it with tf.compat.v1.graph_util.convert_variables_to_constants, or save a SavedModel"
        )
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
        operations = graph.get_operations()
    inputs = [op.outputs[0].name for op in operations if op.type == "Placeholder"]
    results = [op for op in operations if op.type not in NO_OUTPUTS and not any(t.consumers() for t in op.outputs)]
    outputs = [t.name for op in results for t in op.outputs]
    if not outputs:
        refuse("every operation of the graph is read by another one, so that it has no outputs")
    given = ["--graphdef", source, "--inputs", ",".join(inputs), "--outputs", ",".join(outputs)]
    return [*given, *renamed("--rename-inputs", inputs), *renamed("--rename-outputs", outputs)]


def renamed(option: str, names: list[str]) -> list[str]:
    """Names of operations in place of those of their first results: x for x:0."""
    return [option, ",".join(name.removesuffix(":0") for name in names)] if names else []


def run(given: list[str], target: str) -> None:
    """Runs tf2onnx with arguments."""
    import tf2onnx.convert

    sys.argv = ["tf2onnx", *given, "--output", target, "--opset", OPSET]
    tf2onnx.convert.main()


def main(target: str, source: str) -> None:
    run(of_folder(source) if os.path.isdir(source) else of_file(source), target)
    finish(target, [], [])


if __name__ == "__main__":
    main(*sys.argv[1:])
