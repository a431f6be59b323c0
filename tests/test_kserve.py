"""The example for KServe: its form, and that `pelton serve` accepts its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton.cli import parser

yaml = pytest.importorskip("yaml")

FILE = Path(__file__).parents[1] / "deploy" / "kserve.yaml"


@pytest.fixture(scope="module")
def documents():
    return {d["kind"]: d for d in yaml.safe_load_all(FILE.read_text())}


def test_the_two_objects_fit_together(documents):
    assert set(documents) == {"ServingRuntime", "InferenceService"}
    runtime, service = documents["ServingRuntime"], documents["InferenceService"]
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = {(f["name"], f["version"]) for f in runtime["spec"]["supportedModelFormats"]}
    assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


def test_the_command_is_one_that_pelton_accepts(documents):
    (container,) = documents["ServingRuntime"]["spec"]["containers"]
    assert container["name"] == "kserve-container"
    words = [*container["command"], *container["args"]]
    assert words[0] == "pelton" and all(isinstance(w, str) for w in words)
    arguments = parser().parse_args(words[1:])
    assert arguments.models == [Path("/mnt/models")] and arguments.host == "0.0.0.0"
    assert (arguments.http_port, arguments.grpc_port) == (8080, 9000)
    (port,) = container["ports"]
    assert port["containerPort"] == arguments.http_port
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == arguments.http_port


def test_probes_are_paths_of_the_server(documents):
    (container,) = documents["ServingRuntime"]["spec"]["containers"]
    sources = "".join(p.read_text() for p in (FILE.parents[1] / "src/pelton/serve").rglob("*.py"))
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"].removeprefix("/v2/") in sources


def test_it_is_marked_untried():
    assert "# Untried" in FILE.read_text()
