"""Reads the frozen graph of a SavedModel's signature from its files alone.

`tf.saved_model.load` creates Python objects for all variables and functions, and its signatures must be traced again.
Both take longer than the rest of a conversion, although the graph of the signature is in the file, and its variables
are in a checkpoint (tensorflow/core/protobuf: saved_object_graph.proto, trackable_object_graph.proto).
"""

import os

import tensorflow as tf
from frozen import inlined, with_constants
from tensorflow.core.protobuf import trackable_object_graph_pb2

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # of the objects whose variables are in a checkpoint
VARIABLE = "VarHandleOp"
# Kinds of operations that need more than a checkpoint's value.
RESOURCES = ("Table", "Iterator", "Dataset", "AnonymousVar", "Queue", "TensorList", "Barrier", "Mutex")


def frozen_signature(source, meta, signature, outputs):
    """Returns (graph, tensors of inputs → names, tensors of outputs → names), outputs in this order; None if the files
    hold more than functions of plain variables. meta: the MetaGraphDef of the folder; signature: its SignatureDef."""
    graph = tf.compat.v1.GraphDef()
    graph.CopyFrom(meta.graph_def)
    names = [f"pelton_output_{i}" for i in range(len(outputs))]
    for name, key in zip(names, outputs):
        info = signature.outputs[key]
        node = graph.node.add(name=name, op="Identity", input=[info.name])
        node.attr["T"].type = info.dtype
    graph = tf.compat.v1.graph_util.extract_sub_graph(graph, names)
    values = _values(source, meta, graph)
    if values is None:
        return None
    inputs = {info.name: key for key, info in signature.inputs.items()}
    if not {name.partition(":")[0] for name in inputs} <= {node.name for node in graph.node}:
        return None  # these outputs depend on only some of the inputs
    results = [f"{name}:0" for name in names]
    frozen = with_constants(inlined(graph, [*inputs, *results]), values)
    return frozen, inputs, dict(zip(results, outputs))


def _values(source, meta, graph):
    """Returns the values of the graph's variables by node name; None for resources other than variables."""
    nodes = {node.name: node for node in graph.node}
    if any(word in node.op for node in _every(graph) for word in RESOURCES):
        return None
    handles, objects = {}, meta.object_graph_def
    for node in graph.node:
        name = node.attr["f"].func.name if "f" in node.attr else ""
        if name not in objects.concrete_functions:
            continue
        bound = list(objects.concrete_functions[name].bound_inputs)
        inputs = [i for i in node.input if not i.startswith("^")]
        if len(bound) > len(inputs):
            return None
        handles.update(zip(inputs[len(inputs) - len(bound) :], bound))
    reader = tf.train.load_checkpoint(os.path.join(source, "variables", "variables"))
    keys = _keys(reader, objects)
    values = {}
    for name, node in nodes.items():
        if node.op != VARIABLE:
            continue
        key = keys.get(handles.get(name))
        if key is None or not reader.has_tensor(key):
            return None
        value = reader.get_tensor(key)
        wanted = tf.dtypes.as_dtype(node.attr["dtype"].type)
        if value.dtype != wanted.as_numpy_dtype or not tf.TensorShape(node.attr["shape"].shape).is_compatible_with(
            value.shape
        ):
            return None
        values[name] = value
    return values


def _every(graph):
    """Yields the nodes of a graph, and those of functions that it may call."""
    functions = {f.signature.name: f for f in graph.library.function}
    stack, seen = [graph.node], set()
    while stack:
        for node in stack.pop():
            yield node
            for value in node.attr.values():
                for name in [value.func.name, *(f.name for f in value.list.func)]:
                    if name in functions and name not in seen:
                        seen.add(name)
                        stack.append(functions[name].node_def)


def _keys(reader, objects):
    """Maps the number of an object of the SavedModel to its key in the checkpoint. Both hold graphs of objects, in
    which equal names lead to equal objects."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(GRAPH))
    keys, pairs, seen = {}, [(0, 0)], set()
    for saved, stored in pairs:
        if saved in seen:
            continue
        seen.add(saved)
        node = graph.nodes[stored]
        if objects.nodes[saved].WhichOneof("kind") == "variable" and len(node.attributes) == 1:
            keys[saved] = node.attributes[0].checkpoint_key
        children = {child.local_name: child.node_id for child in node.children}
        pairs += [
            (c.node_id, children[c.local_name]) for c in objects.nodes[saved].children if c.local_name in children
        ]
    return keys
