"""Writes inference models, in the Python that has PaddlePaddle: of_paddle.py FOLDER, each with inputs of two batches
and its outputs."""

import os
import subprocess
import sys

import numpy as np
import paddle
from paddle import nn

BATCHES = (1, 3)


class Words(nn.Layer):
    """A bidirectional LSTM, and attention over what it gives."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(24, 13, direction="bidirect")
        self.attention = nn.TransformerEncoderLayer(26, 2, 37, dropout=0.0)
        self.out = nn.Linear(26, 5)

    def forward(self, x):
        return nn.functional.softmax(self.out(self.attention(self.recurrent(x)[0]).mean(1)))


OLD = {"FLAGS_enable_pir_api": "0"}  # writes .pdmodel, as version 2 does


def main(folder):
    paddle.seed(3)
    models = {
        "resnet50": (paddle.vision.models.resnet50, (3, 65, 71)),
        "mobilenet_v2": (paddle.vision.models.mobilenet_v2, (3, 64, 64)),
        "words": (Words, (19, 24)),
    }
    suffix = ".json"
    if OLD.items() <= os.environ.items():
        models, suffix = {"old": (paddle.vision.models.squeezenet1_1, (3, 65, 71))}, ".pdmodel"
    for name, (layer_class, shape) in models.items():
        layer = layer_class()
        layer.eval()
        spec = paddle.static.InputSpec([None, *shape], "float32", "x")
        paddle.jit.save(layer, os.path.join(folder, name), input_spec=[spec])
        arrays = {"model": np.array(name + suffix)}
        for batch in BATCHES:
            x = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
            arrays |= {f"{batch}/in/x": x, f"{batch}/out/0": layer(paddle.to_tensor(x)).numpy()}
        np.savez(os.path.join(folder, f"{name}.npz"), **arrays)
    if suffix == ".json":
        subprocess.run([sys.executable, __file__, folder], env={**os.environ, **OLD}, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
