"""The Open Inference Protocol over gRPC, by an unmodified client, and its messages beyond what that client sends."""

import queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from serve_rest import half_plus_two, save, scores, serving, texts, types
from test_serve_http import COUNTER, counter
from tritonclient.utils import InferenceServerException

from pelton.serve import grpc as remote
from pelton.serve import schema

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, source in (("half", half_plus_two()), ("scores", scores()), ("texts", texts()), ("types", types())):
        save(root, name, source)
    save(root, "counter", counter(), config=COUNTER)
    with serving(root, control="explicit", startup=("*",), grpc_port=0) as client:
        port = remote.start(client.server)
        yield client.server, f"127.0.0.1:{port.port}"
        port.stop(1)


@pytest.fixture(scope="module")
def client(served):
    with triton.InferenceServerClient(served[1]) as client:
        yield client


@pytest.fixture(scope="module")
def call(served):
    """Calls a method with a message of the schema."""
    with grpc.insecure_channel(served[1]) as channel:

        def send(method, request, answer):
            path = f"/{schema.SERVICE}/{method}"
            return channel.unary_unary(path, type(request).SerializeToString, schema.message(answer).FromString)(
                request
            )

        yield send


def given(name, array, kind):
    tensor = triton.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


def test_tensors_come_and_go(client):
    x = RNG.standard_normal((7, 2)).astype(np.float32)
    result = client.infer("half", [given("x", x, "FP32")], request_id="9", model_version="1")
    np.testing.assert_allclose(result.as_numpy("y"), x / 2 + 2, rtol=1e-6)
    assert result.get_response().id == "9" and result.get_response().model_version == "1"
    words = np.array([["a"], ["é"]], object)
    got = client.infer("texts", [given("text", words, "BYTES")]).as_numpy("text_out")
    assert got.tolist() == [[b"a!"], ["é!".encode()]]


def test_typed_contents_hold_every_type(call):
    rng = np.random.default_rng(1)
    arrays = {
        "whole": rng.integers(-(2**31), 2**31, 4).astype(np.int32),
        "small": rng.integers(0, 256, 4).astype(np.uint8),
        "large": np.array([0, 2**64 - 1, 2**63, 1], np.uint64),
        "flag": np.array([True, False, True, True]),
        "exact": rng.standard_normal(4),
    }
    kinds = {"whole": "INT32", "small": "UINT8", "large": "UINT64", "flag": "BOOL", "exact": "FP64"}
    request = schema.message("ModelInferRequest")(model_name="types")
    for name, array in arrays.items():
        tensor = request.inputs.add(name=name, datatype=kinds[name], shape=[2, 2])
        getattr(tensor.contents, remote.CONTENTS[kinds[name]]).extend(array.tolist())
    for name in ("text", "raw"):
        request.inputs.add(name=name, datatype="BYTES", shape=[2, 2]).contents.bytes_contents.extend(
            [b"a", b"b", b"", b"c"]
        )
    request.inputs.add(name="near", datatype="FP16", shape=[2, 2])
    with pytest.raises(grpc.RpcError, match="FP16 has no typed contents"):
        call("ModelInfer", request, "ModelInferResponse")
    for at, tensor in enumerate(request.inputs):
        if tensor.name == "near":
            del request.inputs[at]
    with pytest.raises(grpc.RpcError, match="needs input 'near'"):
        call("ModelInfer", request, "ModelInferResponse")
    inputs = remote.read(request, None).inputs
    for name, array in arrays.items():
        np.testing.assert_array_equal(inputs[name], array.reshape(2, 2))
        assert inputs[name].dtype == array.dtype


def test_streams_answer_in_order_and_survive_refusals(client):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error if error else result.as_numpy("OUTPUT")[0, 0]))
    for value, start, end in ((1, True, False), (2, False, False), (3, False, True), (4, False, False)):
        one = given("INPUT", np.array([[value]], np.int32), "INT32")
        client.async_stream_infer("counter", [one], sequence_id=11, sequence_start=start, sequence_end=end)
    got = [answers.get(timeout=30) for _ in range(4)]
    client.stop_stream()
    assert got[:3] == [1, 3, 6] and "START flag" in str(got[3])


def test_what_clients_ask_besides_inference(client, served):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("half")
    assert not client.is_model_ready("nothing")
    assert client.get_server_metadata().name == "pelton"
    metadata = client.get_model_metadata("scores")
    assert [(i.name, i.datatype, list(i.shape)) for i in metadata.inputs] == [("x", "FP32", [-1, 4])]
    config = client.get_model_config("scores").config
    assert config.max_batch_size > 1 and list(config.output[0].dims) == [3]
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    client.infer("scores", [given("x", x, "FP32")], outputs=[triton.InferRequestedOutput("scores", class_count=1)])
    (stats,) = client.get_inference_statistics("scores").model_stats
    assert stats.inference_stats.success.count == 1 and stats.inference_count == 2
    assert {m.name for m in client.get_model_repository_index().models} == {
        "half",
        "scores",
        "texts",
        "types",
        "counter",
    }
    assert client.get_log_settings().settings["log_error"].bool_param is True
    assert client.get_trace_settings().settings["trace_level"].value == ["OFF"]
    assert not client.get_system_shared_memory_status().regions and not client.get_cuda_shared_memory_status().regions


def test_models_are_loaded_and_unloaded(client, served):
    server, _ = served
    x = np.zeros((1, 4), np.float32)
    client.unload_model("scores")
    assert not client.is_model_ready("scores") and client.is_server_ready()
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.infer("scores", [given("x", x, "FP32")])
    client.load_model("scores")
    np.testing.assert_allclose(
        client.infer("scores", [given("x", x, "FP32")]).as_numpy("scores"), np.full((1, 3), 1 / 3)
    )
    client.load_model("scores", config='{"max_batch_size": 4}')
    assert server.model("scores").config.max_batch_size == 4
    for bad in ("nothing", "../half", ""):
        with pytest.raises(InferenceServerException, match="failed to load"):
            client.load_model(bad)
    with pytest.raises(InferenceServerException, match="cannot be read"):
        client.load_model("scores", config="{")
    assert client.is_model_ready("scores")  # what was loaded stays


@pytest.mark.parametrize(
    "change, status, message",
    [
        (lambda r: r.inputs[0].shape.append(-1), "INVALID_ARGUMENT", "sizes of 0 and more"),
        (lambda r: r.inputs[0].shape.append(3), "INVALID_ARGUMENT", "has 24 bytes, got 8"),
        (lambda r: r.raw_input_contents.append(b""), "INVALID_ARGUMENT", "has 2 tensors for 1 inputs"),
        (lambda r: r.raw_input_contents.pop(), "INVALID_ARGUMENT", "has 2 elements, got 0"),
        (lambda r: r.inputs[0].contents.fp32_contents.append(1), "INVALID_ARGUMENT", "contents field must not be"),
        (lambda r: r.inputs.add().CopyFrom(r.inputs[0]), "INVALID_ARGUMENT", "input 'x' is given twice"),
        (lambda r: setattr(r.inputs[0], "datatype", "X"), "INVALID_ARGUMENT", "datatype of input 'x' is one of"),
        (lambda r: setattr(r, "model_name", "../half"), "NOT_FOUND", "is not found"),
        (lambda r: setattr(r, "model_version", "9"), "NOT_FOUND", "version 9 is not found"),
        (lambda r: r.outputs.add(name="z"), "INVALID_ARGUMENT", "unexpected inference output 'z'"),
    ],
)
def test_refusals(call, change, status, message):
    request = schema.message("ModelInferRequest")(model_name="half", raw_input_contents=[bytes(8)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    assert call("ModelInfer", request, "ModelInferResponse").outputs[0].name == "y"
    change(request)
    with pytest.raises(grpc.RpcError) as refusal:
        call("ModelInfer", request, "ModelInferResponse")
    assert refusal.value.code().name == status and message in refusal.value.details()


def test_what_triton_rejects_besides(call):
    request = schema.message("ModelInferRequest")(model_name="half")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    assert call("ModelInfer", request, "ModelInferResponse").outputs[0].name == "y"
    request.inputs[0].contents.int_contents.append(1)
    ready = schema.message("ModelReadyRequest")(name="half", version="x")
    index = schema.message("RepositoryIndexRequest")(repository_name="mine")
    region = schema.message("SystemSharedMemoryStatusRequest")(name="absent")
    for method, message, status, text in (
        ("ModelInfer", request, "INVALID_ARGUMENT", "have several types: int_contents, fp32_contents"),
        ("ModelReady", ready, "INVALID_ARGUMENT", "the version of a model is a whole number, got 'x'"),
        ("RepositoryIndex", index, "UNIMPLEMENTED", "ask without a name"),
        ("SystemSharedMemoryStatus", region, "NOT_FOUND", "Unable to find system shared memory region: 'absent'"),
    ):
        with pytest.raises(grpc.RpcError) as refusal:
            call(method, message, f"{method}Response")
        assert refusal.value.code().name == status and text in refusal.value.details()


def test_the_schema_is_that_of_the_client():
    """Names and numbers of all fields, of the messages that the client sends and reads."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    for module in (service_pb2, model_config_pb2):
        for name, theirs in module.DESCRIPTOR.message_types_by_name.items():
            try:
                ours = schema.message(name).DESCRIPTOR
            except KeyError:
                continue  # declared as Ignored
            fields = {f.name: (f.number, f.type) for f in ours.fields}
            assert fields == {f.name: (f.number, f.type) for f in theirs.fields}, name
    methods = {m.name for m in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    assert {m.name for m in schema.methods()} == methods
