"""KServe's server of a model that sums a few numbers, on ports 8010 (HTTP) and 8011 (gRPC)."""

from __future__ import annotations

import numpy as np
from kserve import InferOutput, InferResponse, Model, ModelServer


class Tiny(Model):
    """Reads an array of 12 KB."""

    def load(self) -> bool:
        self.ready = True
        return True

    async def predict(self, payload, headers=None, response_headers=None):
        x = payload.inputs[0].as_numpy()
        output = InferOutput(name="y", shape=[1, 4], datatype="FP32")
        output.set_data_from_numpy(x[:, :, 0, :4].sum((1, 2), keepdims=True).repeat(4, 1).astype(np.float32)[:, :4, 0])
        return InferResponse(response_id="1", model_name="tiny", infer_outputs=[output])


if __name__ == "__main__":
    model = Tiny("tiny")
    model.load()
    ModelServer(http_port=8010, grpc_port=8011, workers=1, enable_docs_url=False).start([model])
