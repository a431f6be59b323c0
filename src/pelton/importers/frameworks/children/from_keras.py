"""Run by the interpreter that has Keras: from_keras.py TARGET SOURCE writes a .keras or .h5 model as ONNX.

A refusal is the last line printed, with exit status 3; PELTON_CHILD_UNSAFE=1 allows code in the model.
"""

import json
import os
import sys

OPSET = 18
UNSAFE = os.environ.get("PELTON_CHILD_UNSAFE") == "1"


def refuse(text: str) -> None:
    print(text, flush=True)
    sys.exit(3)


def configuration(source: str) -> str:
    """What an .h5 file says of its layers; "" for other files."""
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


def has_lambdas(config: object) -> bool:
    """Whether a layer anywhere in a configuration carries Python code."""
    if isinstance(config, dict):
        return config.get("class_name") in ("Lambda", "__lambda__") or any(map(has_lambdas, config.values()))
    return isinstance(config, list) and any(map(has_lambdas, config))


def name_outputs(target: str, names: list[str]) -> None:
    """Gives the outputs of an ONNX model, in order, the names that Keras has for them, where these are free."""
    import onnx

    model = onnx.load(target)
    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | {v.name for v in graph.input}
    if len(names) == len(graph.output) and len(set(names)) == len(names) and not taken & set(names):
        for value, name in zip(graph.output, names):
            graph.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
            value.name = name
    onnx.save(model, target)


def main(target: str, source: str) -> None:
    text = configuration(source)
    if not UNSAFE and text and has_lambdas(json.loads(text)):
        refuse("it has Lambda layers, whose Python code would be run; PELTON_UNSAFE_KERAS=1 allows that")
    import keras

    # Keras goes by the suffix, which a model need not have
    suffix = ".h5" if text else ".keras"
    if not source.endswith(suffix):
        link = os.path.abspath("model" + suffix)
        os.symlink(source, link)
        source = link
    try:
        model = keras.saving.load_model(source, compile=False, safe_mode=not UNSAFE)
    except (TypeError, ValueError) as e:
        if "Could not locate" in str(e) or "Unknown layer" in str(e) or "custom" in str(e).lower():
            print(e)
            refuse(
                "it has layers of its own, whose code is not in the file; where that code is, export the model:"
                " model.export('model.onnx', format='onnx')"
            )
        raise
    model(model.input)  # on symbols: what was never called is not exported
    model.export(target, format="onnx", opset_version=OPSET, verbose=False)
    name_outputs(target, list(getattr(model, "output_names", None) or ()))


if __name__ == "__main__":
    main(*sys.argv[1:])
