"""Writes a SavedModel folder or a frozen GraphDef as ONNX, in the interpreter that has TensorFlow: from_tensorflow.py
TARGET SOURCE [SIGNATURE]. A refusal is the last line printed, with exit status 3."""

import difflib
import os
import re
import sys

import tensorflow as tf
from frozen import check_type, freeze, leave, refuse, write
from google.protobuf.message import DecodeError
from signature import frozen_signature
from tensorflow.core.protobuf import saved_model_pb2
from weights import take_out

tf1 = tf.compat.v1
NO_OUTPUTS = {"Assert", "Const", "NoOp", "Placeholder"}  # unread operations that are no results
VARIABLES = {"VariableV2", "VarHandleOp", "Variable"}


def of_folder(source, wanted):
    """Returns the frozen graph of a SavedModel's signature (the requested one, else the serving one, else the only
    one), and the names of its inputs and outputs by tensors of the graph."""
    found = parsed(saved_model_pb2.SavedModel(), os.path.join(source, "saved_model.pb"))
    graphs = {tuple(g.meta_info_def.tags): g for g in found.meta_graphs}
    tags = next((t for t in graphs if "serve" in t), next(iter(graphs), None))
    names = [] if tags is None else sorted(name for name in graphs[tags].signature_def if not name.startswith("_"))
    if not names:
        refuse(
            "the SavedModel has no signature, which says what its inputs are; save it with tf.saved_model.save(model,"
            " folder, signatures=tf.function(model).get_concrete_function(tf.TensorSpec([None, 224, 224, 3])))"
        )
    usual = ["serving_default"] if "serving_default" in names else names
    chosen = wanted or (usual[0] if len(usual) == 1 else "")
    if chosen not in names:
        meant = difflib.get_close_matches(wanted, names, 1)
        unknown = f", not {wanted!r}" + f" (did you mean {meant[0]!r}?)" * bool(meant) if wanted else ""
        refuse(
            f"the SavedModel has the signatures {', '.join(names)}{unknown}; name one behind its folder:"
            f" {os.path.basename(source)}#{(meant or names)[0]}"
        )
    signature = graphs[tags].signature_def[chosen]
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for name, info in sorted(tensors.items()):
            check_type(kind, name, tf.dtypes.as_dtype(info.dtype))
    outputs = sorted(signature.outputs, key=by_number)
    try:
        if not graphs[tags].HasField("object_graph_def"):
            graph, inputs, results = of_session(source, tags, signature, outputs)
        else:
            found = frozen_signature(source, graphs[tags], signature, outputs)
            graph, inputs, results = found or of_function(tf.saved_model.load(source, tags=list(tags)), chosen, outputs)
    except Exception:
        if any(node.op in VARIABLES for node in graphs[tags].graph_def.node) and not has_values(source):
            refuse("variables/ is missing, or cut off; copy the whole folder again, or save the model again")
        raise
    # the file has no order: that of TensorFlow's maps differs between processes
    return graph, dict(sorted(inputs.items(), key=lambda item: by_number(item[1]))), results


def has_values(source):
    """True if the values of a SavedModel's variables can be read."""
    try:
        reader = tf.train.load_checkpoint(os.path.join(source, "variables", "variables"))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError):  # errors of the reader for damaged files
        return False
    return True


def by_number(name):
    """Returns the sort key of a name: output_10 after output_9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def of_function(model, signature, outputs):
    """Returns the frozen graph of a signature that is a function, as TensorFlow 2 saves it."""
    function = model.signatures[signature]
    inputs = function.structured_input_signature[1]

    def in_order(*feeds):
        tensors = function(**dict(zip(inputs, feeds)))
        return [tensors[key] for key in outputs]

    graph, feeds, results = freeze(in_order, [tf.TensorSpec(s.shape, s.dtype, key) for key, s in inputs.items()])
    return graph, dict(zip(feeds, inputs)), dict(zip(results, outputs))


def of_session(source, tags, signature, outputs):
    """Returns the frozen graph of a signature that names tensors of one graph, as TensorFlow 1 saves it."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.saved_model.load(session, list(tags), source)
        names = [signature.outputs[key].name for key in outputs]
        operations = [name.partition(":")[0] for name in names]
        graph = tf1.graph_util.convert_variables_to_constants(session, session.graph_def, operations)
    return graph, {info.name: key for key, info in signature.inputs.items()}, dict(zip(names, outputs))


def of_file(source):
    """Reads a frozen graph: placeholders become inputs, unread results outputs."""
    graph = parsed(tf1.GraphDef(), source)
    variables = [n.name for n in graph.node if n.op in VARIABLES]
    if variables:
        refuse(
            f"it is not frozen: it has variables ({', '.join(variables[:4])}), whose values are in a checkpoint; freeze"
            " it with tf.compat.v1.graph_util.convert_variables_to_constants, or save a SavedModel"
        )
    weights = take_out(graph)
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        operations = imported.get_operations()
    inputs = [op.outputs[0].name for op in operations if op.type == "Placeholder"]
    inputs = [name for name in inputs if name not in weights]
    results = [op for op in operations if op.type not in NO_OUTPUTS and not any(t.consumers() for t in op.outputs)]
    outputs = [t.name for op in results for t in op.outputs]
    if not outputs:
        refuse("the graph has no outputs: each operation is read by another one")
    named = [{name: name.removesuffix(":0") for name in names} for names in (inputs, outputs)]
    return graph, *named, weights


def parsed(message, path):
    """Parses the message in a file."""
    with open(path, "rb") as file:
        try:
            message.ParseFromString(file.read())
        except DecodeError as e:
            refuse(f"{os.path.basename(path)} is truncated or damaged: {e}")
    return message


def main(target, source, signature=""):
    write(target, *(of_folder(source, signature) if os.path.isdir(source) else of_file(source)))


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
