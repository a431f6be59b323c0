"""The page for people: its data, its policy, quantiles, and the explorer's pages."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from serve_rest import half_plus_two, line, save, serving

from pelton.serve.page import quantile
from pelton.serve.statistics import BUCKETS

EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def client(tmp_path):
    save(tmp_path, "half", half_plus_two(), ("1", "3"), "version_policy { all {} }")
    save(tmp_path, "line", line())
    (tmp_path / "broken/1").mkdir(parents=True)
    (tmp_path / "broken/1/model.pelton").write_bytes(b"no engine")
    with serving(tmp_path, name=EVIL) as client:
        yield client


def test_the_page_loads_nothing_and_allows_only_itself(client):
    response = client.get("/")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/html")
    html, policy = response.text, response.headers["content-security-policy"]
    assert not re.search(r"""(?:src|href)=["'](?!page\.json)|url\(|@import|style=| on\w+=|\{\{|//\w""", html)
    for tag in ("script", "style"):
        (inline,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and response.headers["x-content-type-options"] == "nosniff"
    assert EVIL not in html and "innerHTML" not in html


def test_the_figures_are_those_of_the_requests(client):
    for rows in (2, 2, 3):
        x = np.ones((rows, 2), np.float32)
        response = client.post("/v1/models/half:predict", json.dumps({"instances": x.tolist()}))
        np.testing.assert_array_equal(response.json()["predictions"], x / 2 + 2)
    client.post("/v1/models/half:predict", '{"instances": [[1, 2, 3]]}')
    data = client.get("/page.json").json()
    assert data["name"] == EVIL and data["under_way"] == 0 and not data["ready"]
    models = {(m["name"], m["version"]): m for m in data["models"]}
    assert set(models) == {("broken", ""), ("half", "1"), ("half", "3"), ("line", "1")}
    busy, idle, broken = models["half", "3"], models["half", "1"], models["broken", ""]
    assert (busy["requests"], busy["rows"], busy["faults"], busy["latest"]) == (3, 7, {"invalid": 1}, True)
    assert 0 < busy["p50"] <= busy["p99"] <= BUCKETS[-1]
    assert (idle["requests"], idle["p50"], idle["latest"], idle["state"]) == (0, None, False, "READY")
    assert broken["state"] == "UNAVAILABLE" and "model.pelton" in broken["reason"] and not broken["explorer"]
    assert busy.keys() == broken.keys()


def test_engines_have_pages(client):
    response = client.get("/explorer/half/3")
    assert response.status_code == 200 and "<title>" in response.text and "half" in response.text
    assert "default-src 'none'" in response.text
    assert response.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert client.get("/explorer/half/3").text == response.text
    assert client.get("/explorer/half/2").status_code == 404 and client.get("/explorer/broken/1").status_code == 404


@pytest.mark.parametrize("part", [0.5, 0.99])
def test_quantiles_are_near_those_of_numpy(part):
    seconds = np.random.default_rng(0).gamma(2.0, 0.004, 5000)
    places = np.searchsorted(BUCKETS, seconds)
    found, lower = quantile(np.bincount(places, minlength=len(BUCKETS) + 1).tolist(), part)
    exact = np.quantile(seconds, part)
    place = np.searchsorted(BUCKETS, exact)
    assert not lower and BUCKETS[place - 1] <= found <= BUCKETS[place]


def test_quantiles_without_requests_and_beyond_the_last_bound():
    none = [0] * (len(BUCKETS) + 1)
    assert quantile(none, 0.5) == (None, False)
    assert quantile([*none[:-1], 1], 0.5) == (BUCKETS[-1], True)
