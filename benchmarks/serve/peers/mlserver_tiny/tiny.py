"""MLServer's runtime of a model that sums a few numbers."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Tiny(MLModel):
    """Reads an array of 12 KB."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("y", x[:, 0, 0, :4])
        return InferenceResponse(model_name=self.name, outputs=[output])
