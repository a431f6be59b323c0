"""Shared by the scripts that convert models of TensorFlow: from functions to frozen graphs, and to ONNX."""

import os
import sys

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.grappler import tf_optimizer
from onnx import numpy_helper
from framework_run import write_reference
from tf2onnx import optimizer, tf_loader, tfonnx, utils
from weights import put_back, take_out

OPSET = 18
# Passes of tf2onnx, each of which copies all constants: those that move transposes away, and their prerequisites.
# Pelton does the work of the others itself.
PASSES = (
    optimizer.TransposeOptimizer,
    optimizer.ConstFoldOptimizer,
    optimizer.LoopOptimizer,
    optimizer.MergeDuplicatedNodesOptimizer,
    optimizer.IdentityOptimizer,
    optimizer.BackToBackOptimizer,
)
# Attributes that prevent inlining. Functions for XLA have them, such as the grouped convolutions of Keras.
CALLED = {"_XlaMustCompile", "_noinline"}
UNNAMED = "unk__"  # prefix of tf2onnx's names of unnamed sizes
TABLES = ("HashTable", "LookupTable")  # parts of operation names


def refuse(text):
    """Ends the conversion with a message for users."""
    print(" ".join(text.split()), flush=True)
    sys.exit(3)


def leave():
    """Ends the process at once: Python would take up to a second to free TensorFlow and the graphs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def check_type(kind, name, dtype):
    """Refuses an input or output of strings and the like. dtype: a tf.DType."""
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        refuse(
            f"its {kind} {name!r} is of type {dtype.name}, where real numbers are needed; save a function of the part"
            " of the model that has these: tf.saved_model.save(module, folder, signatures=function)"
        )


def freeze(function, inputs):
    """Returns the graph of a function of tensors, with the values of variables and other constants in it, and the names
    of its inputs and outputs. inputs: TensorSpecs.

    Like tensorflow.python.framework.convert_variables_to_constants_v2, but without a second import of the graph, which
    takes most of its time.
    """
    traced = tf.function(function, autograph=False).get_concrete_function(*inputs)
    data = convert_to_constants._FunctionConverterDataInEager(
        traced, lower_control_flow=False, aggressive_inlining=True
    )
    graph, constant = convert_to_constants._replace_variables_by_constants(data)
    captured = {traced.graph.internal_captures[i].name for i in constant}
    return graph, [t.name for t in traced.inputs if t.name not in captured], [t.name for t in traced.outputs]


def inlined(graph, kept):
    """Returns a graph with its function calls inlined. kept: tensors to keep: its inputs and outputs."""
    for function in graph.library.function:  # else calls of recurrent layers would stay, for GPUs
        if "api_implements" in function.attr:
            del function.attr["api_implements"]
    meta = meta_graph_pb2.MetaGraphDef(graph_def=convert_to_constants.disable_lower_using_switch_merge(graph))
    meta.collection_def["train_op"].node_list.value.extend(kept)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.append("function")
    options.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
    return tf_optimizer.OptimizeGraph(config, meta)


class _Values(convert_to_constants._ConverterData):
    """Values of variables by node name."""

    def __init__(self, graph, values):
        super().__init__(graph)
        for node in graph.node:
            if node.name in values:
                self._tensor_data[node.name] = convert_to_constants._TensorData(
                    numpy=values[node.name], dtype=node.attr["dtype"].type, index=None
                )


def with_constants(graph, values):
    """Returns a graph with constants in place of variable reads. values: arrays by node name."""
    return convert_to_constants._replace_variables_by_constants(_Values(graph, values))[0]


def become_default(node):
    """Replaces an unfed placeholder by its default."""
    node.op = "Identity"
    node.attr["T"].CopyFrom(node.attr["dtype"])
    for attribute in ("dtype", "shape"):
        del node.attr[attribute]


def write(target, graph, inputs, outputs, weights=None):
    """Writes a frozen graph as ONNX. inputs, outputs: tensors of the graph (x:0) → new names. weights: those already
    taken out of the graph."""
    tables = [n.name for n in graph.node if any(word in n.op for word in TABLES)]
    if tables:
        refuse(f"it uses hash tables ({tables[0]}); save a function of the part behind them")
    bodies = (graph.node, *(f.node_def for f in graph.library.function))
    writes = [n.name for nodes in bodies for n in nodes if n.op.startswith("Assign") and n.op.endswith("VariableOp")]
    if writes:
        refuse(
            f"it changes variables ({writes[0]}), which are constants in an engine; save a function with this"
            " state as an input and an output"
        )
    for part in (*bodies, graph.library.function):
        for node in part:
            for attribute in CALLED & set(node.attr):
                del node.attr[attribute]
    for node in graph.node:
        if node.op == "PlaceholderWithDefault" and f"{node.name}:0" not in inputs:
            become_default(node)
    weights = take_out(graph, outputs) if weights is None else weights
    whole = graph
    with tf.Graph().as_default():
        graph = tf_loader.tf_optimize([*inputs, *weights], [*outputs], graph)
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        made = tfonnx.process_tf_graph(
            imported,
            opset=OPSET,
            input_names=[*inputs, *weights],
            output_names=[*outputs],
            tensors_to_rename={**inputs, **outputs},
            custom_op_handlers={"Erfc": (erfc, [])},
        )
    passes = {one.__name__: one for one in PASSES}
    # catching errors would copy the graph before each pass, which takes longer than all else
    model = optimizer.optimize_graph(made, catch_errors=False, optimizers=passes).make_model("converted")
    put_back(model, weights)
    model.producer_version = model.producer_version.removesuffix(" None")  # tf2onnx without a revision of Git
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param.startswith(UNNAMED):
                size.ClearField("dim_param")
    with open(target, "wb") as file:
        file.write(model.SerializeToString())
    names = {name: tensor for tensor, name in inputs.items()}
    held = {name: numpy_helper.to_array(tensor) for name, tensor in weights.items()}
    with tf.Graph().as_default() as imported, tf.compat.v1.Session() as session:
        tf.import_graph_def(whole, name="")
        tensors = [imported.get_tensor_by_name(name) for name in outputs]

        def run(given):
            return session.run(tensors, {**{names[name]: a for name, a in given.items()}, **held})

        write_reference(target, f"TensorFlow {tf.__version__}", run)


def erfc(graph, node, name, args):
    """Converts Erfc(x) to 1 - Erf(x), as tf2onnx would leave it as it is."""
    dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
    one = graph.make_const(utils.make_name(name), np.array(1, utils.map_onnx_to_numpy_type(dtype)))
    erf = graph.make_node("Erf", node.input, shapes=[shape], dtypes=[dtype])
    graph.remove_node(node.name)
    graph.make_node(
        "Sub", [one.output[0], erf.output[0]], outputs=node.output, name=name, shapes=[shape], dtypes=[dtype]
    )
