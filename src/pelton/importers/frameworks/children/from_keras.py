"""Writes a .keras or .h5 model as ONNX, in the interpreter that has Keras: from_keras.py TARGET SOURCE [unsafe].

A refusal is the last line printed, with exit status 3; `unsafe` allows code in the model.
"""

import json
import os
import re
import sys

from frozen import check_type, freeze, leave, refuse, write


def configuration(source):
    """Returns the layer configuration in an .h5 file; "" for other files."""
    with open(source, "rb") as file:
        if file.read(8) != b"\x89HDF\r\n\x1a\n":
            return ""
    import h5py

    with h5py.File(source, "r") as h5:
        text = h5.attrs.get("model_config")
    if text is None:
        refuse(
            "it holds weights without a model, as model.save_weights writes them; load them into the model and use"
            " model.save('model.keras')"
        )
    return text if isinstance(text, str) else text.decode()


def has_lambdas(config):
    """True if a layer anywhere in a configuration carries Python code."""
    if isinstance(config, dict):
        return config.get("class_name") in ("Lambda", "__lambda__") or any(map(has_lambdas, config.values()))
    return isinstance(config, list) and any(map(has_lambdas, config))


def refuse_unknown(said, suffix):
    """Refuses a model with a class unknown to Keras, named in its error."""
    import keras

    match = re.search(r"Unknown layer: '([^']+)'|Could not locate class '([^']+)'", said)
    name = (match[1] or match[2]) if match else "a layer"
    operation = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    if suffix == ".h5" and hasattr(keras.ops, operation):
        refuse(
            f"Keras cannot load {name!r} from .h5, an operation of Keras itself (keras.ops.{operation}), as masks have"
            " them; save the model as .keras"
        )
    refuse(
        f"Keras cannot load {name!r} from {suffix}: it is a layer of its own, whose code is not in the file; where that"
        " code is, export the model: model.export('folder'), and build the folder"
    )


def main(target, source, unsafe=""):
    text = configuration(source)
    if not unsafe and text and has_lambdas(json.loads(text)):
        refuse("it has Lambda layers, whose Python code would be run; PELTON_UNSAFE_KERAS=1 allows that")
    import keras
    import tensorflow as tf

    # every weight comes from the file; drawing random ones first would take longer than reading it
    random = ("RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling")
    for initializer in (getattr(keras.initializers, name) for name in random):
        initializer.__call__ = lambda self, shape, dtype=None: keras.ops.zeros(shape, dtype)
    # Keras requires the suffix, which a model may lack
    suffix = ".h5" if text else ".keras"
    if not source.endswith(suffix):
        link = os.path.abspath("model" + suffix)
        os.symlink(source, link)
        source = link
    try:
        model = keras.saving.load_model(source, compile=False, safe_mode=not unsafe)
    except (TypeError, ValueError) as e:
        if any(word in str(e) for word in ("Could not locate", "Unknown layer", "custom")):
            print(e)
            refuse_unknown(str(e), suffix)
        raise
    for x in model.inputs:
        check_type("input", x.name, tf.dtypes.as_dtype(x.dtype))
    specs = [tf.TensorSpec(x.shape, x.dtype, x.name) for x in model.inputs]
    single = len(specs) == 1
    graph, inputs, outputs = freeze(
        lambda *tensors: tf.nest.flatten(model(tensors[0] if single else list(tensors), training=False)), specs
    )
    inputs = dict(zip(inputs, (x.name for x in model.inputs)))
    names = [y._keras_history.operation.name for y in model.outputs]
    if len(set(names) - set(inputs.values())) < len(outputs):
        names = [f"output_{i}" for i in range(len(outputs))]
    write(target, graph, inputs, dict(zip(outputs, names)))


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
