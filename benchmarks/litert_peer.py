"""Runs TFLite models with LiteRT: python benchmarks/litert_peer.py FOLDER

For each NAME.tflite and NAME.npz of inputs in the folder, writes NAME.out.npz, the outputs by name, or NAME.error, the
reason why LiteRT does not run it. Needs ai-edge-litert and numpy only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter


def main(folder: Path) -> None:
    for model in sorted(folder.glob("*.tflite")):
        try:
            run = Interpreter(model_path=str(model), num_threads=1).get_signature_runner()
            outputs = run(**np.load(model.with_suffix(".npz")))
        except (RuntimeError, ValueError) as e:
            model.with_suffix(".error").write_text(" ".join(str(e).split()))
        else:
            np.savez(model.with_suffix(".out.npz"), **outputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
