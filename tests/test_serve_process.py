"""`pelton serve` as a process: addresses, signals, changes of the repository, limits, tokens, TLS, workers."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from serve_rest import half_plus_two, line, save

import pelton

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    save(root, "half", half_plus_two())
    return root


class Process:
    """A running server. `url`: of HTTP; `line`: with all addresses."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "pelton", "serve", *map(str, arguments), *PORTS]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.line = self.process.stdout.readline()
        found = re.search(r"https?://127\.0\.0\.1:\d+", self.line)
        self.url = found[0] if found else ""

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextlib.contextmanager
def running(*arguments):
    server = Process(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def ask(url, path="/v2/models/half/infer", x=(1.0, 3.0), headers=None, context=None):
    """Sends a request; returns the status and the JSON of the answer."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(x)], "data": list(x)}
    body = None if x is None or not path.endswith("infer") else json.dumps({"inputs": [tensor]}).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, body, headers or {}), timeout=30, context=context
        ) as r:
            content = r.read()
            return r.status, json.loads(content) if content[:1] in (b"{", b"[") else content.decode()
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read() or b"{}")


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.05)


def raw(url, data, wait=True):
    """Sends bytes and returns the answer's."""
    host, port = url.rsplit("/", 1)[1].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(data)
        answer = b""
        while wait and (piece := connection.recv(65536)):
            answer += piece
        return answer


def test_it_serves_and_stops(models):
    with running(models) as server:
        assert re.fullmatch(r"serving on http://\S+, grpc://\S+, metrics http://\S+/metrics\n", server.line)
        status, answer = ask(server.url)
        assert status == 200 and answer["outputs"][0]["data"] == [2.5, 3.5]
        metrics = re.search(r"metrics (http://\S+)", server.line)[1]
        with urllib.request.urlopen(metrics, timeout=30) as response:
            assert 'pelton_requests_total{model="half",outcome="success",version="1"} 1.0' in response.read().decode()
        status, errors = server.end()
        assert status == 0 and "Traceback" not in errors


def test_headers_have_a_limit(models):
    with running(models) as server:
        many = b"".join(b"x-%d: %s\r\n" % (i, b"a" * 1000) for i in range(100))
        for head in (many, b"x: " + b"a" * 200000, b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n"):
            line = b"" if head.startswith(b"GET") else b"GET /v2 HTTP/1.1\r\n"
            with contextlib.suppress(ConnectionError):
                assert raw(server.url, line + head + b"\r\n\r\n").startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert raw(server.url, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert ask(server.url)[0] == 200


def test_changes_of_the_repository_are_served_without_a_lost_request(tmp_path):
    save(tmp_path, "half", half_plus_two())
    with running(tmp_path, "--poll-seconds", "0.1") as server:
        answers, stop = [], threading.Event()

        def client():
            while not stop.is_set():
                answers.append(ask(server.url)[0])

        thread = threading.Thread(target=client)
        thread.start()
        save(tmp_path, "half", half_plus_two(), ("2",))
        until(lambda: ask(server.url)[1].get("model_version") == "2")
        save(tmp_path, "line", line())
        until(lambda: ask(server.url, "/v2/models/line")[0] == 200)
        shutil.rmtree(tmp_path / "half" / "2")
        until(lambda: ask(server.url)[1].get("model_version") == "1")
        stop.set()
        thread.join()
        assert set(answers) == {200} and len(answers) > 10
        # a damaged file leaves what is loaded as it is
        (tmp_path / "half" / "3").mkdir()
        (tmp_path / "half" / "3" / "model.pelton").write_bytes(b"PELTON damaged")
        until(lambda: ask(server.url, "/v2/health/ready")[0] == 503)
        assert ask(server.url)[1]["model_version"] == "1"
        shutil.rmtree(tmp_path / "half")
        until(lambda: ask(server.url)[0] == 404)
        until(lambda: ask(server.url, "/v2/health/ready")[0] == 200)  # the folder may have been half removed before


def test_a_killed_server_starts_again(models):
    with running(models) as server:
        server.process.kill()
        server.process.wait()
    with running(models) as server:
        assert ask(server.url)[0] == 200


def test_unloading_gives_memory_back(tmp_path):
    net = pelton.Network("heavy")
    y = net.input("x", "f32[batch=1..8..64, 2048]")
    rng = np.random.default_rng(0)
    for _ in range(4):
        y = net.relu(net.linear(y, rng.standard_normal((2048, 2048)).astype(np.float32)))
    net.output(y, "y")
    save(tmp_path, "heavy", net)
    save(tmp_path, "half", half_plus_two())
    with running(tmp_path, "--model-control", "explicit", "--load-model", "half") as server:

        def memory():
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # MiB

        def control(what):
            request = urllib.request.Request(f"{server.url}/v2/repository/models/heavy/{what}", b"{}")
            urllib.request.urlopen(request, timeout=60).close()

        assert ask(server.url)[0] == 200
        control("load")
        assert ask(server.url, "/v2/models/heavy/infer", np.zeros(2048).tolist())[0] == 200
        control("unload")
        until(lambda: ask(server.url, "/v2/models/heavy")[0] == 404)
        time.sleep(1)
        before = memory()
        for _ in range(3):
            control("load")
            loaded = memory()
            assert ask(server.url, "/v2/models/heavy/infer", np.zeros(2048).tolist())[0] == 200
            control("unload")
        until(lambda: memory() < before + 8)
        assert loaded > before + 50  # its weights have 64 MiB


def test_a_token_is_asked_for(models, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    with running(models, "--token-file", tmp_path / "token") as server:
        assert ask(server.url)[0] == 401
        assert ask(server.url, headers={"Authorization": "Bearer wrong"})[0] == 401
        assert ask(server.url, headers={"Authorization": "Bearer secret"})[0] == 200
        assert ask(server.url, "/v2/health/ready")[0] == 200


def test_certificates_of_both_sides(models, tmp_path):
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make certificates")
    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem",
                "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")  # fmt: skip
    pair = ("--tls-cert", tmp_path / "ca.pem", "--tls-key", tmp_path / "ca.key")
    with running(models, *pair, "--tls-client-ca", tmp_path / "other.pem") as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            ask(server.url, context=context)
        context.load_cert_chain(tmp_path / "other.pem", tmp_path / "other.key")
        assert ask(server.url, context=context)[0] == 200


def test_workers_share_a_port(models):
    with running(models, "--workers", "2") as server:
        assert server.line.endswith("in 2 processes\n")
        assert {ask(server.url)[0] for _ in range(20)} == {200}
        assert server.end()[0] == 0


def test_an_open_request_is_answered_before_the_end(models):
    with running(models) as server:
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 3]}]}'
        head = (
            b"POST /v2/models/half/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % len(body)
        )
        host, port = server.url.rsplit("/", 1)[1].split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(head + body[:40])
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connection.sendall(body[40:])
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 200") and b"[2.5,3.5]" in answer
        assert server.process.wait(60) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nowhere",), "nowhere does not exist"),
        (("{}", "--tls-cert", "a.pem"), "--tls-cert and --tls-key go together"),
        (("{}", "--token-file", "none"), "none cannot be read"),
        (("{}", "--http-port", "70000"), "expected a port: an integer from 0 to 65535"),
        (("{}", "--slo", "20"), "expected a duration such as 20ms"),
        (("{}", "--batch", "many"), "expected auto, off, or rows"),
        (("{}", "--workers", "2", "--model-control", "explicit"), "needs one process"),
        (("{}", "--model-control", "explicit", "--load-model", "none"), "failed to load 'none'"),
    ],
)
def test_refusals(models, tmp_path, arguments, message):
    command = [sys.executable, "-m", "pelton", "serve", *(a.format(models) for a in arguments)]
    command += PORTS if "70000" not in arguments else ()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_ports_in_use_are_refused(models):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "pelton", "serve", str(models), "--http-port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert done.returncode == 2 and "cannot be opened" in done.stderr
