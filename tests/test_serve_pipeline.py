"""Pipelines: values against numpy, what is refused at load, models that come and go, Python steps that fail."""

import json
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as triton
from serve_rest import half_plus_two, line, save, serving

from pelton.serve import grpc as remote
from pelton.serve import loading
from pelton.serve.requests import RequestError

TENSOR = {"datatype": "FP32", "shape": [-1, 2]}
TWICE = {
    "inputs": [{"name": "x", **TENSOR}],
    "outputs": [{"name": "y", **TENSOR}],
    "steps": [
        {"model": "half", "inputs": {"x": "x"}, "outputs": {"y": "between"}},
        {"model": "half", "version": 1, "inputs": {"x": "between"}, "outputs": {"y": "y"}},
    ],
}
STEPS = """
import os, time
import numpy as np
def scale(inputs):
    return {"out": inputs["a"] * np.float32(3)}
def fail(inputs):
    raise ValueError("no such picture")
def end(inputs):
    if inputs["a"][0, 0] > 0:
        os._exit(1)
    return {"out": inputs["a"]}
def wait(inputs):
    time.sleep(float(inputs["a"][0, 0]))
    return {"out": inputs["a"]}
def narrow(inputs):
    return {"out": inputs["a"][:, :1]}
def nothing(inputs):
    return {}
"""


def python(function, **options):
    step = {"python": f"steps.py:{function}", "inputs": {"a": "between"}, "outputs": {"out": "y"}, **options}
    return {**TWICE, "steps": [TWICE["steps"][0], step]}


def write(root, name, content):
    (root / name).mkdir(exist_ok=True)
    (root / name / "pipeline.yaml").write_text(json.dumps(content))  # JSON is YAML
    (root / name / "steps.py").write_text(STEPS)


def infer(client, name, x):
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    response = client.post(f"/v2/models/{name}/infer", json.dumps({"inputs": [tensor]}))
    if response.status_code != 200:
        return response.status_code, response.json()["error"]
    (output,) = response.json()["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.fixture
def root(tmp_path):
    save(tmp_path, "half", half_plus_two())
    return tmp_path


X = np.float32([[1, 2], [-3, 0.5], [8, 9]])


def test_a_pipeline_is_a_model(root):
    write(root, "a_twice", TWICE)
    with serving(root) as client:
        np.testing.assert_array_equal(infer(client, "a_twice", X), (X / 2 + 2) / 2 + 2)
        found = client.post("/v1/models/a_twice:predict", json.dumps({"instances": X.tolist()})).json()
        np.testing.assert_array_equal(np.float32(found["predictions"]), (X / 2 + 2) / 2 + 2)
        described = client.get("/v2/models/a_twice").json()
        assert described["inputs"] == [{"name": "x", **TENSOR}] and described["platform"] == "ensemble"
        config = client.get("/v2/models/a_twice/config").json()
        assert [s["model_name"] for s in config["ensemble_scheduling"]["step"]] == ["half", "half"]
        assert client.server.statistics("a_twice")[0]["inference_stats"]["success"]["count"] == 2
        assert client.server.statistics("half")[0]["inference_stats"]["success"]["count"] == 4
        assert infer(client, "a_twice", np.ones((1, 3), np.float32))[0] == 400
        assert client.get("/explorer/a_twice/1").status_code == 404
        assert {m["name"]: m["how"] for m in client.get("/page.json").json()["models"]}["a_twice"] == "pipeline"


def test_an_ensemble_of_triton_is_a_pipeline(root):
    (root / "ensemble/1").mkdir(parents=True)
    (root / "ensemble/config.pbtxt").write_text(
        """platform: "ensemble" max_batch_size: 8
        input { name: "x" data_type: TYPE_FP32 dims: 2 } output { name: "y" data_type: TYPE_FP32 dims: 2 }
        ensemble_scheduling {
          step { model_name: "half" model_version: -1
                 input_map { key: "x" value: "m" } output_map { key: "y" value: "y" } }
          step { model_name: "half" model_version: 1
                 input_map { key: "x" value: "x" } output_map { key: "y" value: "m" } }
        }"""
    )
    with serving(root) as client:
        np.testing.assert_array_equal(infer(client, "ensemble", X), (X / 2 + 2) / 2 + 2)
        assert client.get("/v2/models/ensemble").json()["inputs"] == [{"name": "x", **TENSOR}]
        assert client.server.statistics("ensemble")[0]["inference_count"] == len(X)


def test_python_steps(root):
    for function in ("scale", "fail", "end", "narrow", "nothing"):
        write(root, function, python(function))
    write(root, "wait", python("wait", seconds=0.5))
    with serving(root) as client:
        assert not client.server.reasons
        np.testing.assert_array_equal(infer(client, "scale", X), (X / 2 + 2) * 3)
        assert infer(client, "fail", X) == (500, "the step 'fail' failed: ValueError: no such picture")
        assert infer(client, "nothing", X)[1].endswith("returns no 'out'")
        assert "is FP32 of shape [-1, 2], its step returned float32 of shape [3, 1]" in infer(client, "narrow", X)[1]
        for _ in range(2):
            assert infer(client, "end", X) == (500, "the process of the step 'end' ended")
            np.testing.assert_array_equal(infer(client, "end", X * 0 - 8), X * 0 - 2)
        start = time.monotonic()
        assert infer(client, "wait", X * 0 + 100) == (504, "the step 'wait' took longer than 0.5 s")
        assert time.monotonic() - start < 30
        np.testing.assert_array_equal(infer(client, "wait", X * 0 - 4), X * 0)


def changed(**members):
    return {**TWICE, **members}


ONE = TWICE["steps"][0]
REFUSED = {
    "cycle": (
        changed(steps=[{**ONE, "inputs": {"x": "y"}}, {**ONE, "inputs": {"x": "between"}, "outputs": {"y": "y"}}]),
        "wait for each other in a cycle",
    ),
    "unknown": (changed(steps=[{**ONE, "inputs": {"x": "absent"}}]), "reads tensor 'absent', which no step makes"),
    "unmade": (changed(steps=[ONE]), "no step makes its output 'y'"),
    "twice": (changed(steps=[ONE, ONE]), "is made twice"),
    "itself": (changed(steps=[{**ONE, "model": "itself", "outputs": {"y": "y"}}]), "leads back to this pipeline"),
    "type": (changed(inputs=[{**TENSOR, "name": "x", "datatype": "FP64"}]), "it is FP64, expected FP32"),
    "rank": (changed(inputs=[{**TENSOR, "name": "x", "shape": [-1]}]), "its shape is [-1], expected [-1, 2]"),
    "result": (changed(outputs=[{**TENSOR, "name": "y", "shape": [-1, 3]}]), "output 'y': its shape is [-1, 2]"),
    "port": (changed(steps=[{**ONE, "inputs": {"z": "x"}, "outputs": {"y": "y"}}]), "has no input 'z'"),
    "hungry": (changed(steps=[{**ONE, "inputs": {}, "outputs": {"y": "y"}}]), "needs input 'x'"),
    "both": (changed(steps=[{**ONE, "python": "a.py:b"}]), "either 'model' or 'python'"),
    "member": (changed(steps=[{**ONE, "speed": 1}]), "expected a mapping with"),
    "datatype": (changed(inputs=[{"name": "x", "datatype": "F32", "shape": [1]}]), "datatype of BOOL"),
    "shape": (changed(inputs=[{"name": "x", "datatype": "FP32", "shape": [True]}]), "shape of tensor 'x' is a list"),
    "empty": (changed(inputs=[]), "each at least one"),
    "list": ([1], "expected a mapping"),
    "outside": (changed(steps=[ONE, {**python("scale")["steps"][1], "python": "../half/a.py:b"}]), "a file beside"),
    "function": (python("absent"), "cannot be loaded: KeyError: 'absent'"),
    "seconds": (python("scale", seconds=0), "seconds is a number from 0"),
}


def test_what_does_not_fit_is_refused_at_load(root):
    for name, (content, _) in REFUSED.items():
        write(root, name, content)
    write(root, "syntax", TWICE)
    (root / "syntax/pipeline.yaml").write_text("a: [")
    with serving(root) as client:
        for name, (_, message) in REFUSED.items():
            assert message in client.server.reasons[name], name
            assert infer(client, name, X)[0] == 404
        assert "cannot be read" in client.server.reasons["syntax"]
        np.testing.assert_array_equal(infer(client, "half", X), X / 2 + 2)


def test_a_pipeline_is_available_while_its_models_are(root):
    write(root, "twice", TWICE)
    with serving(root, control="explicit", startup=("twice",)) as client:
        client.server.unload("half")
        states = {row["name"]: row["state"] for row in client.server.index() if "state" in row}
        assert states == {"twice": "UNAVAILABLE", "half": "UNAVAILABLE"}
        status, text = infer(client, "twice", X)
        assert status == 503 and "needs model 'half'" in text
        client.server.load("half")
        np.testing.assert_array_equal(infer(client, "twice", X), (X / 2 + 2) / 2 + 2)
        client.server.unload("half")
        assert infer(client, "twice", X)[0] == 503 and client.get("/v2/models/twice/ready").status_code == 400
        save(root, "half", line())  # of another shape
        client.server.load("half")
        assert infer(client, "twice", X) == (503, client.server.table["twice", ""].reason)
        assert "its shape is [-1, 2], expected [-1]" in client.server.table["twice", ""].reason


def loaded(client):
    return sorted({name for name, version in client.server.table})


def test_a_pipeline_is_loaded_with_its_models(root):
    save(root, "line", line())
    write(root, "twice", TWICE)
    write(root, "nested", {**TWICE, "steps": [{**TWICE["steps"][0], "model": "twice"}, TWICE["steps"][1]]})
    control = "/v2/repository/models/{}/{}".format
    with serving(root, control="explicit") as client:
        assert loaded(client) == []
        assert client.post(control("nested", "load")).status_code == 200
        assert loaded(client) == ["half", "nested", "twice"]
        np.testing.assert_array_equal(infer(client, "nested", X), ((X / 2 + 2) / 2 + 2) / 2 + 2)
        half, twice = client.server.table["half", ""], client.server.table["twice", ""]
        client.server.load("twice")  # half has not changed
        assert client.server.table["half", ""] is half and client.server.table["twice", ""] is not twice
        save(root, "half", half_plus_two(), versions=("1", "2"))
        client.server.load("nested")
        assert client.server.table["half", ""].version == "2"


def test_models_are_unloaded_with_their_pipeline_if_it_brought_them(root):
    write(root, "twice", TWICE)
    write(root, "again", TWICE)
    body = json.dumps({"parameters": {"unload_dependents": True}})
    with serving(root, control="explicit", startup=("twice", "again")) as client:
        unload = "/v2/repository/models/{}/unload".format
        assert client.post(unload("twice"), body).status_code == 200
        assert loaded(client) == ["again", "half"]  # half is one of another's
        assert client.post(unload("again"), body).status_code == 200 and loaded(client) == []
        client.server.load("twice")
        assert client.post(unload("twice")).status_code == 200 and loaded(client) == ["half"]
        client.server.load("half")  # by a client
        client.server.load("twice")
        assert client.post(unload("twice"), body).status_code == 200 and loaded(client) == ["half"]
        for parameters, status, message in (
            ({"unload_dependents": 1}, 400, "the parameter unload_dependents is a boolean, got '1'"),
            ({"force": True}, 501, "unloading takes the parameter 'unload_dependents' alone, got 'force'"),
        ):
            response = client.post(unload("half"), json.dumps({"parameters": parameters}))
            assert (response.status_code, response.json()["error"]) == (status, message)
        assert loaded(client) == ["half"]


def test_a_pipeline_is_loaded_and_unloaded_over_grpc(root):
    write(root, "twice", TWICE)
    with serving(root, control="explicit", grpc_port=0) as client:
        port = remote.start(client.server)
        try:
            with triton.InferenceServerClient(f"127.0.0.1:{port.port}") as other:
                other.load_model("twice")
                assert loaded(client) == ["half", "twice"]
                other.unload_model("twice", unload_dependents=True)
                assert loaded(client) == []
        finally:
            port.stop(1)


def test_all_models_at_the_start_are_loaded_once(root, monkeypatch):
    write(root, "a_twice", TWICE)
    seen, load = [], loading.load
    monkeypatch.setattr(loading, "load", lambda name, *rest: (seen.append(name), load(name, *rest))[1])
    with serving(root, control="explicit", startup=("*",)) as client:
        assert seen == ["half"] and loaded(client) == ["a_twice", "half"]
        client.server.unload("a_twice", dependents=True)
        assert loaded(client) == ["half"]  # it was named at the start, too


def test_a_pipeline_whose_models_cannot_be_loaded_is_not(root):
    write(root, "twice", TWICE)
    write(root, "lost", {**TWICE, "steps": [{**TWICE["steps"][0], "model": "none"}, TWICE["steps"][1]]})
    write(root, "first", {**TWICE, "steps": [{**TWICE["steps"][0], "model": "second"}, TWICE["steps"][1]]})
    write(root, "second", {**TWICE, "steps": [{**TWICE["steps"][0], "model": "first"}, TWICE["steps"][1]]})
    (root / "half/config.pbtxt").write_text("max_batch_size: -1")
    with serving(root, control="explicit") as client:
        with pytest.raises(RequestError, match="failed to load 'twice': failed to load 'half': .*max_batch_size is 0"):
            client.server.load("twice")
        assert loaded(client) == [] and set(client.server.reasons) == {"half", "twice"}
        (root / "half/config.pbtxt").unlink()
        client.server.load("twice")
        assert client.server.reasons == {} and loaded(client) == ["half", "twice"]
        with pytest.raises(RequestError, match="failed to load 'lost': failed to load 'none', failed to poll"):
            client.server.load("lost")
        with pytest.raises(RequestError, match="failed to load 'first'.* leads back to this pipeline"):
            client.server.load("first")
        assert "first" not in loaded(client)


def test_python_steps_of_unsigned_files_are_refused(root):
    step = {"python": "steps.py:scale", "inputs": {"a": "x"}, "outputs": {"out": "y"}}
    write(root, "scale", {**TWICE, "steps": [step]})
    with serving(root, trust=("key.pub",), control="explicit", startup=()) as client:
        with pytest.raises(RequestError, match="no signed engine"):
            client.server.load("scale")


def test_many_requests_at_once(root):
    write(root, "scale", python("scale"))
    with serving(root) as client:
        results = {}

        def ask(i):
            results[i] = infer(client, "scale", X + i)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(16):
            np.testing.assert_array_equal(results[i], ((X + i) / 2 + 2) * 3)
