"""The scripts that fuzz, soak and test the server with others' programs: what they need no server for."""

import argparse
import socket
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.serve import client_suites, clients, fuzz, fuzz_requests, fuzz_schema, page, served, soak
from benchmarks.serve.requests import engine
from pelton.serve import schema

# damaged requests


@pytest.fixture(scope="module")
def messages():
    return fuzz.good_messages()


def test_good_messages_are_of_all_methods(messages):
    kinds = {f"/{schema.SERVICE}/{m.name}": m.input_type.name for m in schema.methods()}
    assert messages.keys() == kinds.keys()
    for method, datas in messages.items():
        for data in datas:
            schema.message(kinds[method]).FromString(data)


def test_a_seed_gives_one_request(messages):
    made = [fuzz_requests.damaged(seed, messages) for seed in range(300)]
    assert made == [fuzz_requests.damaged(seed, messages) for seed in range(300)]
    assert len({request for _, request in made}) > 280
    sorts = {sort.__name__.strip("_") for sort, _ in fuzz_requests.SORTS}
    assert {name for name, _ in made} == {*sorts, "grpc"}
    for name, request in made:
        assert bool(request.method) == (name == "grpc") and bool(request.raw) != bool(request.method)
        assert not request.method or request.method in messages


def test_damage_changes_a_copy():
    content = {"inputs": [{"name": "INPUT0", "shape": [2, 2]}], "id": "1"}
    draw = fuzz_requests.random.Random(3)
    changed = [fuzz_requests.damage(draw, content) for _ in range(50)]
    assert content == {"inputs": [{"name": "INPUT0", "shape": [2, 2]}], "id": "1"}
    assert sum(one != content for one in changed) > 40


@pytest.mark.parametrize(
    "answer, open, outcome",
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", False, "200"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False, "503"),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", False, None),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nTraceback (most recent call last)", False, None),
        (b"", True, "closed"),
        (b"", False, None),
        (b"\0\0\0", False, None),
    ],
)
def test_answers_are_judged(messages, monkeypatch, answer, open, outcome):
    sender = fuzz.Sender((1, 1, 1), messages)
    request = fuzz_requests.Damaged(raw=b"GET / HTTP/1.1\r\n\r\n", open=open)
    monkeypatch.setattr(fuzz, "exchange", lambda port, one: answer)
    monkeypatch.setattr(fuzz, "damaged", lambda seed, messages: ("path", request))
    seed, sort, problem = sender(7)
    assert (seed, sort, bool(problem)) == (7, "path", outcome is None)
    assert sender.outcomes == ({f"path {outcome}": 1} if outcome else {})


class FakeHealth:
    """A process whose memory grows by `step` with each batch."""

    def __init__(self, step):
        self.step, self.batches = step, 0

    def check(self):
        self.batches += 1

    def holds(self):
        return self.step * self.batches, 5, 9


@pytest.mark.parametrize("step, wrong, problems", [(0, 0, 0), (200 << 20, 0, 1), (0, 3, 3), (0, 1000, 500)])
def test_batches_count_problems_and_growth(monkeypatch, step, wrong, problems):
    monkeypatch.setattr(fuzz, "slow_connections", lambda port: [])
    monkeypatch.setattr(fuzz, "check_closed", lambda handles, begun: None)

    def sender(seed):
        return seed, "path", "bad" if seed - 40 < wrong else ""

    sender.http = 1
    a = argparse.Namespace(seed=40, runs=6 * fuzz.BATCH, seconds=1e6)
    health = FakeHealth(step)
    found = fuzz.batches(a, sender, health)
    assert len(found) == problems and health.batches == (1 if wrong >= 20 else 6)
    assert not step or "bytes of the process grew" in found[0]
    assert not wrong or found[0] == "seed 40 (path): bad"


def test_the_schemas_paths_are_mended():
    assert fuzz_schema.mended("/v2/models/${NAME}/versions/${V}: $ref") == "/v2/models/{NAME}/versions/{V}: $ref"


# others' programs


def test_a_program_passes_or_says_its_last_error(tmp_path, monkeypatch):
    def run(code):
        return clients.run("part", "name", [sys.executable, "-c", code], tmp_path, {"MINE": "7"})

    assert run("import os; assert os.environ['MINE'] == '7'").passed
    failed = run("import sys; print('ValueError: no', file=sys.stderr); print('end', file=sys.stderr); sys.exit(3)")
    assert not failed.passed and failed.reason == "ValueError: no"
    assert run("import sys; sys.exit(3)").reason == "ended with 3"
    monkeypatch.setattr(clients, "SECONDS", 0.5)
    assert run("import time; time.sleep(30)").reason == "took more than 0.5 s"


def test_known_reasons_may_be_of_one_part(monkeypatch):
    monkeypatch.setattr(clients, "KNOWN", {"test_a": "everywhere", "http test_b": "over HTTP"})
    assert clients.Result("memory.py http", "test_b", False).known == "over HTTP"
    assert clients.Result("memory.py grpc", "test_b", False).known == ""
    assert clients.Result("memory.py grpc", "test_a", False).known == "everywhere"


def test_the_table_counts_and_names(monkeypatch):
    monkeypatch.setattr(clients, "versions", lambda a: ["one 1.0", "two 2.0"])
    monkeypatch.setattr(clients, "KNOWN", {"test_b": "a reason"})
    results = [
        clients.Result("L0/x.py", "test_a", True),
        clients.Result("L0/x.py", "test_b", False, "an error"),
        clients.Result("examples", "c.py", False, "another"),
    ]
    lines = clients.table(results, ["left"], argparse.Namespace())
    assert lines[1].endswith("; one 1.0, two 2.0.")
    assert "| qa/L0/x.py | 1 | 2 |" in lines and "| Triton's examples in Python | 0 | 1 |" in lines
    assert "- `test_b` (qa/L0/x.py): a reason" in lines
    assert "- `c.py` (Triton's examples in Python): another" in lines and "- left" in lines
    assert "**qa/L0/x.py**, which pass: `test_a`." in lines


def test_a_suite_has_the_tests_of_its_file(tmp_path):
    file = tmp_path / "qa/L0/x_test.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "class A(TestCase):\n    def setUp(self): pass\n    def test_a(self): pass\n    async def test_b(self): pass\n"
        "class B(TestCase):\n    def test_c(self): pass\ndef test_d(): pass\n"
    )

    def names(**options):
        return client_suites.Suite("L0/x_test.py", lambda folder: None, **options).tests(tmp_path)

    assert names() == ["A.test_a", "A.test_b", "B.test_c"]
    assert names(skip={"test_b": "why"}) == ["A.test_a", "B.test_c"]
    assert names(methods=("test_c",)) == ["B.test_c"]
    suite = client_suites.Suite("L0/x_test.py", lambda folder: None, skip={"test_b": "why", "test_c": ""})
    assert clients.left_out([suite])[0] == "`test_b`: why." and not any(
        "test_c" in t for t in clients.left_out([suite])
    )


# soaking, and what the scripts share


def test_a_soaks_requests_have_right_answers():
    content, right = soak.body(5)
    assert soak.body(5)[0] == content != soak.body(6)[0]
    (tensor,) = soak.json.loads(content)["inputs"]
    x = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
    np.testing.assert_allclose(engine().run({"x": x})["y"].reshape(-1), right.reshape(-1), rtol=1e-5, atol=1e-5)


def test_a_soaks_table(monkeypatch):
    tallies = [soak.Tally(10, ["gone"], 3, [(0.5, 0.001), (9.5, 0.004)]), soak.Tally(5, [], 1, [(0.2, 0.002)])]
    lines = soak.table(tallies, 0.0, 10.0, 7.0, {"clients killed": 4}, ({"files": 8}, {"files": 9}))
    assert "| good requests | 15 |" in lines and "| lost | 1 |" in lines and "| clients killed | 4 |" in lines
    assert "| malformed requests, all refused | 4 |" in lines
    assert "| p99, first and last tenth, ms | 2.0, 4.0 |" in lines
    assert "| files, after a tenth and at the end | 8, 9 |" in lines


def test_a_soaks_versions_replace_the_one_before_the_last(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"engine")
    (tmp_path / "tiny").mkdir()
    for version in (1, 2, 3):
        soak.replace_version(tmp_path, source, version)
    assert sorted(p.name for p in (tmp_path / "tiny").iterdir()) == ["2", "3"]
    assert (tmp_path / "tiny/3/model.pelton").read_bytes() == b"engine" and not list(tmp_path.glob(".part*"))


def test_a_process_has_memory_threads_and_files():
    code, pipes = "print(flush=True); input()", {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.readline()
        state = soak.state(process.pid)
        process.communicate(b"end\n")
    assert state["threads"] == 1 and state["files"] >= 3 and state["memory kB"] > 1000


def test_a_part_of_a_page_is_replaced(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- a -->\nold\n<!-- b -->\nbehind\n")
    page.replace_part(path, "<!-- a -->", "<!-- b -->", ["", "new", ""])
    assert path.read_text() == "before\n<!-- a -->\n\nnew\n\n<!-- b -->\nbehind\n"
    path.write_text("<!-- a -->")
    with pytest.raises(ValueError, match="lacks the marks <!-- a --> and <!-- b -->"):
        page.replace_part(path, "<!-- a -->", "<!-- b -->", [])


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as handle:
        handle.bind(("127.0.0.1", 0))
        handle.listen()
        port = handle.getsockname()[1]
        with pytest.raises(served.NotServing, match=f"listens on port {port}"):
            with served.served([tmp_path], ports=(port, 1, 2), log=tmp_path / "log"):
                pass
