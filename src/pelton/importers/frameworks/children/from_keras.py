"""Run by the interpreter that has Keras: from_keras.py TARGET SOURCE writes a .keras or .h5 model as ONNX.

A refusal is the last line printed, with exit status 3; PELTON_CHILD_UNSAFE=1 allows code in the model.
"""

import json
import os
import sys

from finish import finish
from from_tensorflow import of_folder, refuse, run

UNSAFE = os.environ.get("PELTON_CHILD_UNSAFE") == "1"


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
        if any(word in str(e) for word in ("Could not locate", "Unknown layer", "custom")):
            print(e)
            refuse(
                "it has layers of its own, whose code is not in the file; where that code is, export the model:"
                " model.export('folder'), and build the folder"
            )
        raise
    # by way of a SavedModel, as constants that layers hold become inputs otherwise
    folder = os.path.abspath("saved")
    model.export(folder, verbose=False)
    run(of_folder(folder), target)
    finish(target, [t.name for t in model.inputs], list(model.output_names))


if __name__ == "__main__":
    main(*sys.argv[1:])
