"""Calls a server with requests that MLServer's codecs write, reads the answers with them, and checks these with numpy.

Runs in a venv of its own: python mlserver_calls.py URL GRPC_ADDRESS
"""

from __future__ import annotations

import sys

import grpc
import numpy as np
import requests
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.grpc import converters, dataplane_pb2_grpc
from mlserver.types import InferenceRequest, InferenceResponse, MetadataModelResponse, MetadataServerResponse


def _numbers() -> tuple[InferenceRequest, dict[str, np.ndarray]]:
    draw = np.random.default_rng(7)
    a, b = (draw.integers(-1000, 1000, (3, 16)).astype(np.int32) for _ in range(2))
    inputs = [NumpyCodec.encode_input(f"INPUT{i}", x) for i, x in enumerate((a, b))]
    return InferenceRequest(id="7", inputs=inputs), {"OUTPUT0": a + b, "OUTPUT1": a - b}


def _check(response: InferenceResponse, expected: dict[str, np.ndarray]) -> None:
    assert response.id == "7", response.id
    found = {o.name: NumpyCodec.decode_output(o) for o in response.outputs}
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def rest_numbers(url: str, address: str) -> None:
    request, expected = _numbers()
    answer = requests.post(f"{url}/v2/models/simple/infer", data=request.model_dump_json(exclude_none=True), timeout=30)
    _check(InferenceResponse.model_validate(answer.json()), expected)


def rest_texts(url: str, address: str) -> None:
    texts = ["one", "", "drei äöü", "四"]
    request = InferenceRequest(inputs=[StringCodec.encode_input("INPUT0", [*texts], use_bytes=False)])
    request.inputs[0].shape = [1, len(texts)]
    answer = requests.post(
        f"{url}/v2/models/simple_identity/infer", data=request.model_dump_json(exclude_none=True), timeout=30
    )
    response = InferenceResponse.model_validate(answer.json())
    assert StringCodec.decode_output(response.outputs[0]) == texts, response


def rest_metadata(url: str, address: str) -> None:
    server = MetadataServerResponse.model_validate(requests.get(f"{url}/v2", timeout=30).json())
    assert server.name == "triton", server
    model = MetadataModelResponse.model_validate(requests.get(f"{url}/v2/models/simple", timeout=30).json())
    assert {t.name for t in model.inputs} == {"INPUT0", "INPUT1"}, model


def grpc_numbers(url: str, address: str) -> None:
    request, expected = _numbers()
    message = converters.ModelInferRequestConverter.from_types(
        request, model_name="simple", model_version="", use_raw=False
    )
    with grpc.insecure_channel(address) as channel:
        answer = dataplane_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    _check(converters.ModelInferResponseConverter.to_types(answer), expected)


def main(url: str, address: str) -> int:
    failed = 0
    for call in (rest_numbers, rest_texts, rest_metadata, grpc_numbers):
        name = call.__name__.replace("_", ": ")
        try:
            call(url, address)
            print(f"pass\t{name}", flush=True)
        except Exception as e:
            failed += 1
            print(f"fail\t{name}\t{' '.join(f'{type(e).__name__}: {e}'.split())[:300]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
