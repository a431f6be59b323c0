"""Runs TFLite models with LiteRT: python benchmarks/litert/peer.py FOLDER

For each NAME.tflite and NAME.npz of inputs in the folder, writes NAME.out.npz, the outputs by name, or NAME.error, the
reason why LiteRT does not run it. If there is a NAME.both, writes NAME.reference.npz as well, the outputs of LiteRT's
reference kernels. Needs ai-edge-litert and numpy only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType


def main(folder: Path) -> None:
    for model in sorted(folder.glob("*.tflite")):
        try:
            outputs = run(model)
            if model.with_suffix(".both").exists():
                np.savez(model.with_suffix(".reference.npz"), **run(model, OpResolverType.BUILTIN_REF))
        except (RuntimeError, ValueError) as e:
            model.with_suffix(".error").write_text(" ".join(str(e).split()))
        else:
            np.savez(model.with_suffix(".out.npz"), **outputs)


def run(model: Path, kernels: OpResolverType = OpResolverType.AUTO) -> dict[str, np.ndarray]:
    interpreter = Interpreter(model_path=str(model), num_threads=1, experimental_op_resolver_type=kernels)
    return interpreter.get_signature_runner()(**np.load(model.with_suffix(".npz")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
