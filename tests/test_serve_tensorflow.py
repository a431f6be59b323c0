"""TensorFlow Serving's REST API: cases of its own tests of JSON, and values against numpy."""

import base64
import json
import math

import numpy as np
import pytest
from serve_rest import WEIGHTS, half_plus_two, line, save, scores, serving, texts, types

from pelton.engine.plan import Port
from pelton.serve import tensorflow_json
from pelton.serve.requests import RequestError

PREDICT = "/v1/models/half:predict"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    policy = 'version_policy { all {} } parameters { key: "labels" value { string_value: "stable=1,canary=3" } }'
    save(root, "half", half_plus_two(), ("1", "3"), policy)
    for name, source in (("line", line()), ("types", types()), ("texts", texts()), ("scores", scores())):
        save(root, name, source)
    labels = 'output { name: "scores" data_type: TYPE_FP32 dims: 3 label_filename: "labels.txt" }'
    save(root, "labelled", scores(), ("1",), labels)
    (root / "labelled/labels.txt").write_text("car\nbike\n")
    (root / "broken/1").mkdir(parents=True)
    (root / "broken/1/model.pelton").write_bytes(b"no engine")
    return root


@pytest.fixture(scope="module")
def client(root):
    with serving(root) as client:
        yield client


def answer(client, path, body):
    response = client.post(path, body if isinstance(body, (bytes, str)) else json.dumps(body))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return json.loads(response.text)


def ports(**dtypes):
    return {name: Port(name, dtype, ("batch",)) for name, dtype in dtypes.items()}


def read(body, **dtypes):
    content, careful = tensorflow_json.parse(body.encode())
    reader = tensorflow_json.rows if "instances" in content else tensorflow_json.columns
    return reader(content["instances" if "instances" in content else "inputs"], ports(**dtypes), careful)


TENSORS = {  # body, types of inputs, values
    "rows": ('{"instances": [[1,2],[3,4],[5,6]]}', {"a": "i32"}, {"a": [[1, 2], [3, 4], [5, 6]]}),
    "whole and decimal": ('{"instances": [1, 2.0, 5.003]}', {"a": "f32"}, {"a": [1, 2, 5.003]}),
    "rounded": ('{"instances": [1435774380, 1435774380.0]}', {"a": "f32"}, {"a": [1435774336, 1435774336]}),
    "to zero": ('{"instances": [2.2250738585072014e-308]}', {"a": "f32"}, {"a": [0]}),
    "base64": ('{"instances": [{"b64": "aGVsbG8="}, {"b64": "d29ybGQ"}]}', {"a": "string"}, {"a": ["hello", "world"]}),
    "lists of base64": ('{"instances": [[{"b64": "aGVsbG8="}], ["π"]]}', {"a": "string"}, {"a": [["hello"], ["π"]]}),
    "named base64": ('{"instances": [{"a": [{"b64": "aGVsbG8="}]}]}', {"a": "string"}, {"a": [["hello"]]}),
    "several": (
        '{"instances": [{"i": [[1,2]], "s": ["foo"], "f": [1.0, NaN], "d": -Infinity},'
        ' {"i": [[7,8]], "s": ["bar"], "f": [Infinity, 2], "d": 1e300}]}',
        {"i": "i32", "s": "string", "f": "f32", "d": "f64"},
        {"i": [[[1, 2]], [[7, 8]]], "s": [["foo"], ["bar"]], "f": [[1, np.nan], [np.inf, 2]], "d": [-np.inf, 1e300]},
    ),
    "column": ('{"inputs": [[[1,2],[3,4]]]}', {"a": "i64"}, {"a": [[[1, 2], [3, 4]]]}),
    "named column": ('{"inputs": {"a": [[1,2]]}}', {"a": "i64"}, {"a": [[1, 2]]}),
    "columns": (
        '{"inputs": {"i": [[1],[2]], "s": ["foo"], "b": {"b64": "aGVsbG8="}}}',
        {"i": "i8", "s": "string", "b": "string"},
        {"i": [[1], [2]], "s": ["foo"], "b": "hello"},
    ),
    "booleans": ('{"instances": [[true, false]]}', {"a": "bool"}, {"a": [[True, False]]}),
    "large": (f'{{"instances": [1, {2**64 - 1}]}}', {"a": "u64"}, {"a": [1, 2**64 - 1]}),
    "bytes": ('{"inputs": {"b64": "/+8="}}', {"a": "string"}, {"a": b"\xff\xef".decode("utf-8", "surrogateescape")}),
    "empty rows": ('{"inputs": [[], []]}', {"a": "f32"}, {"a": [[], []]}),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_read(name):
    body, dtypes, values = TENSORS[name]
    arrays = read(body, **dtypes)
    assert arrays.keys() == values.keys()
    for key, array in arrays.items():
        dtype = Port(key, dtypes[key], ()).numpy_dtype
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, np.array(values[key], dtype))


REFUSED = {  # body, types of inputs, part of the message
    "": ({"a": "i32"}, "document is empty"),
    "[1]": ({"a": "i32"}, "Is not object"),
    "instances = [1, 2]": ({"a": "i32"}, "JSON Parse error: Invalid value"),
    '{"instances": [[1,2],[3,4],[5,6,7]]}': ({"a": "i32"}, "Expecting tensor size: 2 but got: 3"),
    '{"instances": [[1,2],[3,4],[[5,6]]]}': ({"a": "i32"}, "Expecting shape [2] but got: [1,2]"),
    '{"instances": [1, [1]]}': ({"a": "i32"}, "Expecting shape [] but got: [1]"),
    '{"instances": [[1,2],["a", "b"]]}': (
        {"a": "i32"},
        "element: 1 of 'instances' list. Error: INVALID_ARGUMENT: JSON",
    ),
    '{"instances": [[1, "b"]]}': ({"a": "f32"}, 'JSON Value: "b" Type: String is not of expected type: float'),
    '{"instances": [1, true]}': ({"a": "i32"}, "Type: True is not of expected type: int32"),
    '{"instances": [1, null]}': ({"a": "f32"}, "Type: Null is not of expected type: float"),
    '{"instances": [1.5]}': ({"a": "i32"}, "Type: Number is not of expected type: int32"),
    '{"instances": [300]}': ({"a": "u8"}, "JSON Value: 300 Type: Number is not of expected type: uint8"),
    '{"instances": [1e39]}': ({"a": "f32"}, "is not of expected type: float"),
    '{"instances": [1e400, NaN]}': ({"a": "f64"}, "Number too big to be stored in double"),
    '{"instances": [1]} ': ({"a": "bf16"}, "to type: bfloat16"),
    '{"instances": 1}': ({"a": "f32"}, "Expecting 'instances' to be an list/array"),
    '{"instances": []}': ({"a": "f32"}, "No values in 'instances' array"),
    '{"instances": [1], "x": ' + "[" * 100000 + "]" * 100000 + "}": ({"a": "f32"}, "nested too deeply"),
    '{"instances": ' + "[" * 70 + "]" * 70 + "}": ({"a": "f32"}, "more than 32 axes"),
    '{"instances": [{"b64": "a"}]}': ({"a": "string"}, "Unable to base64 decode"),
    '{"instances": ["\\ud800"]}': ({"a": "string"}, "half a surrogate pair"),
    '{"instances": [[1, 2]] }': ({"a": "f32", "b": "f32"}, "instances is a plain list, but expecting list of objects"),
    '{"instances": [{"a": 1}, [1]]}': ({"a": "f32"}, "Expecting object but got list at item 1"),
    '{"instances": [["a"], {"a": ["b"]}]}': ({"a": "string"}, "Expecting value/list but got object at item 1"),
    '{"instances": [{"a": 1, "b": [1]}, {"a": 1, "b": [[1]]}]}': ({"a": "f32", "b": "i8"}, "element: 1 key: b of"),
    '{"instances": [{"a": 1, "c": 1}]}': ({"a": "f32", "b": "f32"}, "key: c of 'instances' list. Error: INVALID_ARG"),
    '{"instances": [{"a": 1}]}': ({"a": "f32", "b": "f32"}, "keys must be equal to: a,b"),
    '{"inputs": [1]}': ({"a": "f32", "b": "f32"}, "inputs is a plain value/list, but expecting an object"),
    '{"inputs": {"a": 1}}': ({"a": "f32", "b": "f32"}, "Missing named input: b in 'inputs' object."),
    '{"inputs": {"a": 1, "c": 1}}': ({"a": "f32"}, "does not have named input: c"),
    '{"inputs": [[1], 2]}': ({"a": "f32"}, "found at incorrect level: 2 in the JSON DOM. Expected at level: 2"),
    '{"inputs": [1, [2]]}': ({"a": "f32"}, "Encountered list at unexpected level: 1 expected < 1"),
    '{"inputs": [[1], [2, 3]]}': ({"a": "f32"}, "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body[:60])
def test_what_is_no_tensor_is_refused(body):
    dtypes, message = REFUSED[body]
    with pytest.raises(RequestError) as caught:
        read(body, **dtypes)
    assert message in str(caught.value)
    assert caught.value.status == (501 if "bf16" in dtypes.values() else 400)


WRITTEN = [  # arrays, predictions, outputs
    ({"a": np.arange(6).reshape(2, 3)}, [[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 5]]),
    ({"a": np.float32([0.2, 3, 9e6, 3e-5])}, [0.2, 3.0, 9e6, 3e-5], [0.2, 3.0, 9e6, 3e-5]),
    ({"a": np.float32([[0.2, np.inf], [-np.inf, 3]])}, [[0.2, math.inf], [-math.inf, 3.0]], None),
    ({"a": np.array([[True], [False]])}, [[True], [False]], [[True], [False]]),
    ({"a": np.zeros((0, 2), np.int32)}, [], []),
    (
        {"s": np.array([["foo"], ["π"]], object), "d": np.float64([8, 9])},
        [{"s": ["foo"], "d": 8.0}, {"s": ["π"], "d": 9.0}],
        {"s": [["foo"], ["π"]], "d": [8.0, 9.0]},
    ),
    (
        {"x_bytes": np.array(["hello", "tf"], object), "f": np.float16([np.inf, 0.2])},
        [
            {"x_bytes": {"b64": "aGVsbG8="}, "f": math.inf},
            {"x_bytes": {"b64": "dGY="}, "f": float(str(np.float16(0.2)))},
        ],
        None,
    ),
]


@pytest.mark.parametrize("arrays, predictions, outputs", WRITTEN)
def test_answers_are_written(arrays, predictions, outputs):
    rows = json.loads(tensorflow_json.write("predictions", tensorflow_json.by_row(arrays), arrays))
    assert rows == {"predictions": predictions}
    columns = json.loads(tensorflow_json.write("outputs", tensorflow_json.by_column(arrays), arrays))
    assert outputs is None or columns == {"outputs": outputs}


def test_numbers_have_the_digits_of_their_type():
    arrays = {"a": np.float32([0.2, np.nan, 555557.5, 999999])}
    assert tensorflow_json.write("predictions", arrays["a"], arrays) == b'{"predictions":[0.2,NaN,555557.5,999999.0]}'
    arrays = {"a": np.float32(0.1)}
    assert tensorflow_json.write("outputs", tensorflow_json.by_column(arrays), arrays) == b'{"outputs":0.1}'


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"a": np.float32(1)}, "has no shape information"),
        ({"a": np.zeros((2, 1)), "b": np.zeros(1)}, "Tensor name: b has inconsistent batch size: 1 expecting: 2"),
        ({"a": np.array([b"\xff"], object)}, "no UTF-8"),
    ],
)
def test_answers_without_rows_are_refused(arrays, message):
    with pytest.raises(RequestError, match=message):
        tensorflow_json.by_row(arrays)


def test_predict_is_what_numpy_computes(client):
    x = np.random.default_rng(1).standard_normal((5, 2)).astype(np.float32)
    for path in (PREDICT, "/v1/models/half/versions/1:predict", "/v1/models/half/labels/canary:predict"):
        found = answer(client, path, {"signature_name": "serving_default", "instances": x.tolist()})
        np.testing.assert_array_equal(np.float32(found["predictions"]), x / 2 + 2)
    found = answer(client, PREDICT, {"inputs": {"x": x.tolist()}})
    np.testing.assert_array_equal(np.float32(found["outputs"]), x / 2 + 2)
    named = answer(client, PREDICT, {"instances": [{"x": row} for row in x.tolist()]})
    np.testing.assert_array_equal(np.float32(named["predictions"]), x / 2 + 2)
    infinite = answer(client, PREDICT, '{"instances": [[NaN, -Infinity], [1, Infinity]]}')
    np.testing.assert_array_equal(infinite["predictions"], [[np.nan, -np.inf], [2.5, np.inf]])


def test_all_types_go_there_and_back(client):
    raw = base64.b64encode(b"\xff\x00").decode()
    row = {
        "whole": [-(2**31), 7],
        "small": [0, 255],
        "large": [1, 2**64 - 1],
        "flag": [True, False],
        "exact": [0.1, 1e300],
        "near": [0.5, 65504.0],
        "text": ["a", "π"],
        "raw": [{"b64": raw}, "x"],
    }
    found = answer(client, "/v1/models/types:predict", {"instances": [row, row]})["predictions"]
    want = {name + "_out": value for name, value in row.items() if name != "raw"}
    want["raw_bytes"] = [{"b64": raw}, {"b64": "eA=="}]
    assert found == [want, want]
    assert answer(client, "/v1/models/texts:predict", {"inputs": [["a"]]}) == {"outputs": [["a!"]]}


def test_examples_are_classified_and_regressed(client):
    x = np.random.default_rng(2).standard_normal((2, 4)).astype(np.float32)
    logits = x @ WEIGHTS.T
    want = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    body = {"examples": [{"x": row, "unused": ["text"]} for row in x.tolist()]}
    for name, labels in (("scores", ["", "", ""]), ("labelled", ["car", "bike", ""])):
        results = answer(client, f"/v1/models/{name}:classify", body)["results"]
        assert [[label for label, _ in row] for row in results] == [labels, labels]
        np.testing.assert_allclose([[value for _, value in row] for row in results], want, rtol=1e-5)
    body = {"signature_name": "", "context": {"x": 80.0}, "examples": [{}, {}]}
    assert answer(client, "/v1/models/line:regress", body) == {"results": [42.0, 42.0]}
    body = {"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}]}  # of api_rest.md's example
    assert answer(client, "/v1/models/line:regress", body) == {"results": [2.5]}
    body = '{"examples": [{"x": -Infinity}, {"x": 3}]}'
    assert answer(client, "/v1/models/line:regress", body) == {"results": [-math.inf, 3.5]}


EXAMPLES = [
    ({"signature_name": ["a"], "examples": [{"x": 1}]}, "'signature_name' key must be a string"),
    ({"signature_name": "tensorflow/serving/predict", "examples": [{"x": 1}]}, "No signature was found with the name"),
    ({"signature_name": "other", "examples": [{"x": 1}]}, "No signature was found with the name: other"),
    ({"context": [{"x": [1]}]}, "Example must be JSON object but got JSON Array"),
    ({"context": {"x": 1}}, "key 'examples' is expected and was not found"),
    ({"examples": {"x": [1]}}, "list/array"),
    ({"examples": []}, "is an empty array"),
    ({"examples": [[{"x": [1]}]]}, "Example must be JSON object but got JSON Array"),
    ({"examples": [{"x": [10, None]}]}, "x has element with unexpected JSON type: Null"),
    ({"examples": [{"x": [10, 10.0]}]}, "feature: x expecting type: int64"),
    ({"examples": [{"x": [10, {"test": 10}]}]}, "x has element with unexpected JSON type: Object"),
    ({"examples": [{"x": [[10], 20]}]}, "x has element with unexpected JSON type: Array"),
    ({"examples": [{"x": [20, 2**64 - 13]}]}, "Only int64_t is supported"),
    ({"examples": [{"x": "a"}]}, "is not of expected type: float"),
    ({"examples": [{"x": [1, 2]}]}, "Number of float values != expected.  Values size: 2 but output shape: []"),
    ({"examples": [{}]}, "Feature: x (data type: float) is required but could not be found."),
    ({"context": {"x": 1}, "examples": [{"x": 1}]}, "must not appear in examples"),
]


@pytest.mark.parametrize("body, message", EXAMPLES)
def test_examples_that_do_not_fit_are_refused(client, body, message):
    response = client.post("/v1/models/line:regress", json.dumps(body))
    assert response.status_code == 400 and message in response.json()["error"]


@pytest.mark.parametrize(
    "method, path, status, message",
    [
        ("GET", "/v1/foo", 400, "Malformed request: GET /v1/foo"),
        ("POST", "/v1/foo", 400, "Malformed request: POST /v1/foo"),
        ("PUT", "/v1/models/half", 400, "Malformed request"),
        ("GET", "/v1/models", 400, "Missing model name"),
        ("POST", "/v1/models", 400, "Malformed request"),
        ("GET", "/v1/models/half/model_name", 400, "Malformed request"),
        ("GET", "/v1/models/half:predict", 400, "Malformed request"),
        ("POST", "/v1/models/half/version/50:predict", 400, "Malformed request"),
        ("POST", "/v1/models/half/versions/HELLO:regress", 400, "Malformed request"),
        ("POST", "/v1/models/half/versions/50/labels/a:regress", 400, "Malformed request"),
        ("POST", f"/v1/models/half/versions/{2**64}:regress", 400, "Failed to convert version"),
        ("POST", "/v1/models/half/metadata", 400, "Malformed request"),
        ("POST", "/v1/models/foo:predict", 404, "Servable not found for request: Latest(foo)"),
        ("POST", "/v1/models/half/versions/99:predict", 404, "Servable not found for request: Specific(half, 99)"),
        ("POST", "/v1/models/half/labels/none:predict", 400, "Unrecognized servable version label: none"),
        ("POST", PREDICT, 400, "The document is empty"),
        ("GET", "/v1/models/foo", 404, "Could not find any versions of model foo"),
        ("GET", "/v1/models/half/versions/2", 404, "Could not find version 2 of model half"),
        ("GET", "/v1/models/foo/metadata", 404, "Servable not found for request: Latest(foo)"),
    ],
)
def test_other_requests_are_refused(client, method, path, status, message):
    response = client.request(method, path)
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    "body, message",
    [
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"signature_name": 5, "instances": [[1, 2]]}, "'signature_name' key must be a string value."),
        ({"signature_name": "other", "instances": [[1, 2]]}, 'name: "other" not found in signature def'),
        ({"instances": [[1, 2]], "inputs": [[1, 2]]}, "Not formatted correctly expecting only one of"),
        ({"instances": ["x", "y"]}, "not of expected type: float"),
        ({"instances": [[1, 2, 3]]}, "x"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(client, body, message):
    response = client.post(PREDICT, json.dumps(body))
    assert response.status_code == 400 and message in response.json()["error"]


def test_models_of_other_outputs_are_no_classifiers(client):
    for name, action, message in (
        ("types", "regress", "one output Tensor"),
        ("types", "classify", "one or two output"),
    ):
        response = client.post(f"/v1/models/{name}:{action}", '{"examples": [{}]}')
        assert response.status_code == 400 and message in response.json()["error"]
    response = client.post("/v1/models/half:regress", '{"examples": [{"x": [1.0, 2.0]}]}')
    assert response.status_code == 400 and "[batch_size, 1] but got [1,2]" in response.json()["error"]


def test_status_and_metadata(client):
    fine = {"error_code": "OK", "error_message": ""}
    versions = [{"version": v, "state": "AVAILABLE", "status": fine} for v in ("3", "1")]
    assert client.get("/v1/models/half").json() == {"model_version_status": versions}
    for path in ("versions/1", "versions/001", "labels/stable"):
        assert client.get(f"/v1/models/half/{path}").json() == {"model_version_status": versions[1:]}
    (broken,) = client.get("/v1/models/broken").json()["model_version_status"]
    assert broken["state"] == "END" and broken["status"]["error_code"] == "UNKNOWN"
    assert "model.pelton" in broken["status"]["error_message"]
    described = client.get("/v1/models/half/labels/stable/metadata").json()
    assert described["model_spec"] == {"name": "half", "signature_name": "", "version": "1"}
    shape = {"dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}], "unknown_rank": False}
    signature = described["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict" and signature["defaults"] == {}
    assert signature["inputs"] == {"x": {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": "x"}}
    assert signature["outputs"] == {"y": {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": "y"}}


def test_requests_are_counted(root):
    with serving(root) as client:
        answer(client, PREDICT, {"instances": [[1, 2], [3, 4], [5, 6]]})
        client.post(PREDICT, '{"instances": [[1, 2, 3]]}')
        (counted,) = client.server.statistics("half", "3")
        assert counted["inference_count"] == 3 and counted["inference_stats"]["success"]["count"] == 1
        assert counted["inference_stats"]["fail"]["count"] == 1
