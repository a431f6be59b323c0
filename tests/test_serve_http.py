"""The Open Inference Protocol over HTTP: tensors in all their forms, control of models, and refusals."""

import gzip
import json
import os
import uuid
import zlib
from multiprocessing import shared_memory

import numpy as np
import pytest
from serve_rest import WEIGHTS, half_plus_two, save, scores, serving, texts, types

import pelton

LENGTH = "Inference-Header-Content-Length"
RNG = np.random.default_rng(3)


def counter():
    """INPUT and a state: OUTPUT is the sum of all inputs since the start of a sequence."""
    net = pelton.Network("counter")
    x, start, kept = (net.input(name, "i32[1, 1]") for name in ("INPUT", "START", "STATE"))
    total = net.add(net.mul(kept, net.sub(np.int32(1), start)), x)
    net.output(total, "OUTPUT")
    net.output(net.add(total, np.int32(0)), "STATE_OUT")
    return net


COUNTER = """sequence_batching {
  control_input [{ name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }] }]
  state [{ input_name: "STATE" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [1, 1] }]
}"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    save(root, "half", half_plus_two(), ("1", "3"), "version_policy { all {} }\nresponse_cache { enable: true }")
    (root / "scores").mkdir()
    (root / "scores" / "names.txt").write_text("cat\ndog\nowl\n")
    save(
        root,
        "scores",
        scores(),
        config='output [{ name: "scores" data_type: TYPE_FP32 dims: [3] label_filename: "names.txt" }]',
    )
    save(root, "texts", texts())
    save(root, "types", types())
    save(root, "counter", counter(), config=COUNTER)
    return root


@pytest.fixture(scope="module")
def client(root):
    with serving(root, cache=1 << 20) as client:
        yield client


def tensor(name, array, **more):
    kinds = {"f4": "FP32", "f2": "FP16", "f8": "FP64", "i4": "INT32", "u1": "UINT8", "u8": "UINT64", "b1": "BOOL"}
    return {"name": name, "datatype": kinds[array.dtype.str[1:]], "shape": list(array.shape), **more}


def infer(client, model, inputs, **options):
    body = json.dumps({"inputs": inputs, **options.pop("more", {})})
    return client.post(f"/v2/models/{model}/infer", body, **options)


def binary(client, model, arrays, outputs=None, headers=None, more=None):
    """Sends tensors as binary data; returns the JSON of the answer and its tensors' bytes."""
    inputs = [tensor(n, a, parameters={"binary_data_size": a.nbytes}) for n, a in arrays.items()]
    head = json.dumps({"inputs": inputs, **({} if outputs is None else {"outputs": outputs}), **(more or {})}).encode()
    body = head + b"".join(a.tobytes() for a in arrays.values())
    response = client.post(f"/v2/models/{model}/infer", body, headers={LENGTH: str(len(head)), **(headers or {})})
    assert response.status_code == 200, response.text
    if LENGTH not in response.headers:
        return response.json(), b""
    size = int(response.headers[LENGTH])
    return json.loads(response.content[:size]), response.content[size:]


def test_numbers_come_and_go_as_json(client):
    x = RNG.standard_normal((3, 2)).astype(np.float32)
    for data in (x.tolist(), x.reshape(-1).tolist()):
        response = infer(client, "half", [tensor("x", x, data=data)], more={"id": "7"})
        answer = response.json()
        assert response.headers["content-type"] == "application/json"
        assert (answer["model_name"], answer["model_version"], answer["id"]) == ("half", "3", "7")
        (y,) = answer["outputs"]
        assert (y["name"], y["datatype"], y["shape"]) == ("y", "FP32", [3, 2])
        np.testing.assert_allclose(np.reshape(y["data"], (3, 2)), x / 2 + 2, rtol=1e-6)


def test_tensors_come_and_go_as_bytes(client):
    x = RNG.standard_normal((5, 2)).astype(np.float32)
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    for outputs, more in ((wanted, None), (None, {"parameters": {"binary_data_output": True}})):
        answer, raw = binary(client, "half", {"x": x}, outputs, more=more)
        assert answer["outputs"][0]["parameters"] == {"binary_data_size": len(raw)}
        np.testing.assert_allclose(np.frombuffer(raw, np.float32).reshape(5, 2), x / 2 + 2, rtol=1e-6)
    answer, raw = binary(client, "half", {"x": x})
    assert raw == b"" and len(answer["outputs"][0]["data"]) == 10


def test_a_body_of_bytes_alone_is_the_input(client):
    x = RNG.standard_normal((4, 2)).astype(np.float32)
    response = client.post("/v2/models/half/infer", x.tobytes(), headers={LENGTH: "0"})
    y = np.frombuffer(response.content[int(response.headers[LENGTH]) :], np.float32)
    np.testing.assert_allclose(y.reshape(4, 2), x / 2 + 2, rtol=1e-6)
    refused = client.post("/v2/models/types/infer", b"", headers={LENGTH: "0"})
    assert refused.status_code == 400 and "Raw request must only have 1 input" in refused.json()["error"]


def test_every_type_is_handed_through(client):
    rng = np.random.default_rng(0)
    arrays = {
        "whole": rng.integers(-(2**31), 2**31, (3, 2)).astype(np.int32),
        "small": rng.integers(0, 256, (3, 2)).astype(np.uint8),
        "large": np.array([[0, 2**64 - 1], [1, 2**63], [5, 7]], np.uint64),
        "flag": rng.integers(0, 2, (3, 2)).astype(bool),
        "exact": rng.standard_normal((3, 2)),
        "near": rng.standard_normal((3, 2)).astype(np.float16),
    }
    strings = {
        name: {"name": name, "datatype": "BYTES", "shape": [3, 2], "data": list("abcdeé")} for name in ("text", "raw")
    }
    inputs = [tensor(n, a, data=a.tolist()) for n, a in arrays.items()]
    answer = infer(client, "types", [*inputs, *strings.values()]).json()
    outputs = {o["name"]: o for o in answer["outputs"]}
    for name, array in arrays.items():
        got = np.array(outputs[f"{name}_out"]["data"], array.dtype).reshape(3, 2)
        np.testing.assert_array_equal(got, array)
        assert outputs[f"{name}_out"]["datatype"] == tensor(name, array)["datatype"]
    assert outputs["raw_bytes"]["data"] == list("abcdeé")


def test_bfloat16_goes_as_bytes(tmp_path):
    net = pelton.Network("brain")
    net.output(net.relu(net.input("x", "bf16[batch, 4]")), "y")
    save(tmp_path, "brain", net)
    words = np.array([[0x3F80, 0xBF80, 0x4049, 0x0000]], np.uint16)  # 1, -1, 3.14…, 0
    with serving(tmp_path) as client:
        tensor = {"name": "x", "datatype": "BF16", "shape": [1, 4], "parameters": {"binary_data_size": 8}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        response = client.post("/v2/models/brain/infer", head + words.tobytes(), headers={LENGTH: str(len(head))})
        size = int(response.headers[LENGTH])
        assert json.loads(response.content[:size])["outputs"][0]["datatype"] == "BF16"
        assert np.frombuffer(response.content[size:], np.uint16).tolist() == [0x3F80, 0, 0x4049, 0]
        assert (
            "BF16 has no JSON form" in infer(client, "brain", [{**tensor, "parameters": {}, "data": [1, 2, 3, 4]}]).text
        )


def test_strings_as_bytes_need_no_encoding(client):
    texts = [b"plain", b"\xff\x00\xfe", b""]
    raw = b"".join(len(t).to_bytes(4, "little") + t for t in texts)
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [3, 1], "parameters": {"binary_data_size": len(raw)}}]
    head = json.dumps(
        {"inputs": inputs, "outputs": [{"name": "text_out", "parameters": {"binary_data": True}}]}
    ).encode()
    response = client.post("/v2/models/texts/infer", head + raw, headers={LENGTH: str(len(head))})
    content = response.content[int(response.headers[LENGTH]) :]
    assert content == b"".join((len(t) + 1).to_bytes(4, "little") + t + b"!" for t in texts)
    # as JSON such bytes have no form
    head = json.dumps({"inputs": inputs}).encode()
    response = client.post("/v2/models/texts/infer", head + raw, headers={LENGTH: str(len(head))})
    assert response.status_code == 400 and "no UTF-8" in response.json()["error"]


def test_classes_have_labels(client):
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    outputs = [{"name": "scores", "parameters": {"classification": 2}}]
    answer = infer(client, "scores", [tensor("x", x, data=x.tolist())], more={"outputs": outputs}).json()
    logits = x @ WEIGHTS.T
    best = np.argsort(-logits, axis=1)[:, :2]
    found = [text.split(":") for text in answer["outputs"][0]["data"]]
    assert answer["outputs"][0]["shape"] == [2, 2] and answer["outputs"][0]["datatype"] == "BYTES"
    assert [int(index) for _, index, _ in found] == best.reshape(-1).tolist()
    assert [label for *_, label in found] == [("cat", "dog", "owl")[i] for i in best.reshape(-1)]
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(
        [float(v) for v, *_ in found], np.take_along_axis(softmax, best, 1).reshape(-1), atol=1e-5
    )


def test_sequences_keep_their_states(client):
    def add(value, id, **flags):
        inputs = [tensor("INPUT", np.array([[value]], np.int32), data=[value])]
        parameters = {"sequence_id": id, **{f"sequence_{k}": v for k, v in flags.items()}}
        return infer(client, "counter", inputs, more={"parameters": parameters})

    def total(response):
        assert response.status_code == 200, response.text
        return response.json()["outputs"][0]["data"]

    assert total(add(1, 5, start=True)) == [1]
    assert total(add(100, "other", start=True)) == [100]
    assert total(add(2, 5)) == [3] and total(add(3, 5, end=True)) == [6]
    assert total(add(1, "other")) == [101]
    ended = add(4, 5)
    assert ended.status_code == 400 and "must specify the START flag" in ended.json()["error"]
    assert total(add(9, "other", start=True)) == [9]
    assert "correlation ID" in add(4, 0).json()["error"]
    assert [i["name"] for i in client.get("/v2/models/counter").json()["inputs"]] == ["INPUT"]
    (stats,) = client.get("/v2/models/counter/stats").json()["model_stats"]
    assert stats["execution_count"] == stats["inference_stats"]["success"]["count"] >= 6


def test_shared_memory_is_read_and_written(client):
    name, x = f"pelton-{uuid.uuid4().hex}", RNG.standard_normal((2, 2)).astype(np.float32)
    memory = shared_memory.SharedMemory(name, create=True, size=64)
    try:
        memory.buf[8:24] = x.tobytes()
        region = {"key": f"/{name}", "offset": 8, "byte_size": 48}
        assert client.post("/v2/systemsharedmemory/region/r/register", json.dumps(region)).status_code == 200
        status = client.get("/v2/systemsharedmemory/status").json()
        assert status == [{"name": "r", **region}]
        place = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
        outputs = [{"name": "y", "parameters": {**place, "shared_memory_offset": 16}}]
        answer = infer(client, "half", [tensor("x", x, parameters=place)], more={"outputs": outputs}).json()
        assert answer["outputs"][0]["shape"] == [2, 2] and "data" not in answer["outputs"][0]
        np.testing.assert_allclose(np.frombuffer(memory.buf, np.float32, 4, 24).reshape(2, 2), x / 2 + 2, rtol=1e-6)
        small = [{"name": "y", "parameters": {**place, "shared_memory_byte_size": 8}}]
        refused = infer(client, "half", [tensor("x", x, parameters=place)], more={"outputs": small})
        assert refused.status_code == 400 and "at least 16 bytes" in refused.json()["error"]
        beyond = {**place, "shared_memory_offset": 40}
        refused = infer(client, "half", [tensor("x", x, parameters=beyond)])
        assert refused.status_code == 400 and "Invalid offset" in refused.json()["error"]
        os.truncate(f"/dev/shm/{name}", 0)  # a run on that memory would end the process
        refused = infer(client, "half", [tensor("x", x, parameters=place)])
        assert refused.status_code == 400 and "made smaller" in refused.json()["error"]
        assert client.post("/v2/systemsharedmemory/region/r/unregister").status_code == 200
        assert client.get("/v2/systemsharedmemory/status").json() == []
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize(
    "key", ["/etc/passwd", "../etc/passwd", "/../etc/passwd", "..", ".", "", "a/b", "a\0b", "nothing"]
)
def test_shared_memory_is_below_its_folder(client, key):
    body = json.dumps({"key": key, "offset": 0, "byte_size": 8})
    response = client.post("/v2/systemsharedmemory/region/r/register", body)
    assert response.status_code == 400 and "Unable to open shared memory region" in response.json()["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_may_be_compressed(client, encoding):
    x = RNG.standard_normal((400, 2)).astype(np.float32)
    body = json.dumps({"inputs": [tensor("x", x, data=x.tolist())]}).encode()
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    response = client.post("/v2/models/half/infer", packed, headers=headers)
    assert response.headers["content-encoding"] == encoding
    np.testing.assert_allclose(np.reshape(response.json()["outputs"][0]["data"], (400, 2)), x / 2 + 2, rtol=1e-5)
    for damaged in (packed[:-4], b"\x1f\x8b" + bytes(40), packed + b"more"):
        assert client.post("/v2/models/half/infer", damaged, headers=headers).status_code == 400
    other = client.post("/v2/models/half/infer", body, headers={"Content-Encoding": "br"})
    assert other.status_code == 415


def test_large_bodies_are_refused(root):
    bomb = gzip.compress(bytes(10 << 20))
    with serving(root, body=1 << 16) as client:
        for body, headers in ((bytes(1 << 17), {}), (bomb, {"Content-Encoding": "gzip"})):
            response = client.post("/v2/models/half/infer", body, headers=headers)
            assert response.status_code == 413 and "--http-max-input-size" in response.json()["error"]
            assert response.headers["connection"] == "close"


def test_equal_requests_are_answered_from_the_cache(client):
    x = RNG.standard_normal((1, 2)).astype(np.float32)
    before = client.server.model("half").statistics.counts.copy()
    first, second = (binary(client, "half", {"x": x}) for _ in range(2))
    after = client.server.model("half").statistics.counts
    assert first == second
    assert (after["cache_hit"] - before["cache_hit"], after["cache_miss"] - before["cache_miss"]) == (1, 1)


def test_what_clients_ask_besides_inference(client):
    assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
    server = client.get("/v2").json()
    assert (
        server["name"] == "pelton" and server["version"] == pelton.__version__ and "statistics" in server["extensions"]
    )
    model = client.get("/v2/models/half").json()
    assert model["versions"] == ["1", "3"] and model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    config = client.get("/v2/models/half/versions/1/config").json()
    assert config["input"][0]["data_type"] == "TYPE_FP32" and config["input"][0]["dims"] == [2]
    assert client.get("/v2/models/half/versions/1/ready").status_code == 200
    assert client.get("/v2/models/half/versions/2/ready").status_code == 400
    index = client.post("/v2/repository/index").json()
    assert {"name": "half", "version": "3", "state": "READY"} in index
    (stats,) = client.get("/v2/models/scores/stats").json()["model_stats"]
    assert stats["inference_stats"]["success"]["count"] > 0
    assert "polling is enabled" in client.post("/v2/repository/models/half/unload").json()["error"]
    assert client.get("/v2/nothing").status_code == 404 and client.get("/v2/models/half/infer").status_code in (
        404,
        405,
    )


def test_other_methods_are_answered_in_json(client):
    for method, path, allowed in (
        ("POST", "/v2/health/ready", "GET, HEAD"),
        ("DELETE", "/v2/models/half", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
    ):
        answer = client.request(method, path)
        assert answer.status_code == 405 and answer.headers["allow"] == allowed
        assert f"takes {allowed}, not {method}" in answer.json()["error"]


def test_answers_have_the_order_and_the_numbers_of_triton(client):
    answer = client.post("/v2/models/half/infer", json.dumps({"id": "7", "inputs": [GOOD]})).json()
    assert list(answer) == ["id", "model_name", "model_version", "outputs"]
    config = client.get("/v2/models/half/config").json()
    assert list(config)[:4] == ["name", "platform", "backend", "runtime"]
    assert list(config["input"][0])[:4] == ["name", "data_type", "format", "dims"]
    memory = {"shared_memory_region": "absent", "shared_memory_byte_size": 8}
    request = {"inputs": [{**tensor("x", X), "parameters": memory}]}
    assert client.post("/v2/models/half/infer", json.dumps(request)).status_code == 404
    assert client.get("/v2/systemsharedmemory/region/absent/status").status_code == 404


X = np.zeros((1, 2), np.float32)
GOOD = tensor("x", X, data=[0, 0])


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "failed to parse the request JSON"),
        (b"[" * 100000, "failed to parse the request JSON"),
        ([], "a request is an object with 'inputs', a list"),
        ({"inputs": {}}, "a request is an object with 'inputs', a list"),
        ({"inputs": [5]}, "an input is an object with 'name'"),
        ({"inputs": []}, "needs input 'x': expected 1 inputs, 'x'"),
        ({"inputs": [GOOD, {**GOOD, "name": "z"}]}, "has no input 'z'"),
        ({"inputs": [GOOD, GOOD]}, "input 'x' is given twice"),
        ({"inputs": [{**GOOD, "datatype": "FP31"}]}, "datatype of input 'x' is one of BOOL,"),
        ({"inputs": [{**GOOD, "datatype": "INT32"}]}, "has datatype FP32, got INT32"),
        ({"inputs": [{**GOOD, "shape": [2, -1]}]}, "has sizes of 0 and more, got '-1'"),
        ({"inputs": [{**GOOD, "shape": [True, 2]}]}, "has sizes of 0 and more, got 'True'"),
        ({"inputs": [{**GOOD, "shape": [2**32, 2**32]}]}, "causes total element count to exceed maximum size"),
        ({"inputs": [{**GOOD, "shape": [2**30, 2**32 - 1]}]}, "byte size overflow for input 'x'"),
        ({"inputs": [{**GOOD, "shape": [1, 3]}]}, "has 3 elements, got 2"),
        ({"inputs": [{**GOOD, "shape": [2, 1]}]}, "axis 1 has 1 instead of 2"),
        ({"inputs": [{**GOOD, "data": [0, "1"]}]}, "does not fit FP32"),
        ({"inputs": [{**GOOD, "data": [0, True]}]}, "does not fit FP32"),
        ({"inputs": [{**GOOD, "data": [0, 1e39]}]}, "exceeds the range of FP32"),
        ({"inputs": [{**GOOD, "data": [[0], [0, 1]]}]}, "is no tensor"),
        ({"inputs": [{k: v for k, v in GOOD.items() if k != "data"}]}, "input 'x' has no data"),
        ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 8}}]}, "has 8 bytes of binary data, 0 are left"),
        ({"inputs": [{**GOOD, "parameters": {"binary_data_size": -1}}]}, "binary_data_size of input 'x' is an integer"),
        ({"inputs": [GOOD], "outputs": [{"name": "z"}]}, "unexpected inference output 'z' for model 'half'"),
        ({"inputs": [GOOD], "outputs": 5}, "outputs of a request are a list"),
        ({"inputs": [GOOD], "parameters": []}, "parameters of a request are an object"),
        ({"inputs": [GOOD], "parameters": {"a": [1]}}, "parameter 'a' of a request is a number, text or truth value"),
        ({"inputs": [GOOD], "id": 5}, "id of a request is a text"),
        (
            {"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
            "classification of output",
        ),
    ],
)
def test_refusals(client, content, message):
    body = content if isinstance(content, bytes) else json.dumps(content)
    response = client.post("/v2/models/half/infer", body)
    assert response.status_code == 400 and message in response.json()["error"], response.text


@pytest.mark.parametrize("name", ["nothing", "%2e%2e%2f", "..%2fhalf", "half%00", "half/1", "é" * 300])
def test_unknown_models_are_not_found(client, name):
    for path in (f"/v2/models/{name}", f"/v2/models/{name}/infer"):
        response = client.post(path, "{}") if path.endswith("infer") else client.get(path)
        assert response.status_code in (400, 404) and len(response.text) < 500


@pytest.mark.parametrize("length", ["-1", "1e3", "99999999999999999999", "12"])
def test_lengths_are_checked(client, length):
    response = client.post("/v2/models/half/infer", b"{}", headers={LENGTH: length})
    assert response.status_code == 400 and "Inference-Header-Content-Length" in response.json()["error"]
