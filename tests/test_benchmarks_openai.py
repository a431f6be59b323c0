"""The scripts that judge and soak the OpenAI protocol: what they need no server for."""

import ast
import json
import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from benchmarks.openai import check, soak
from benchmarks.serve import fuzz_openai

EVENT = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 5}}


def test_the_table_counts_cases_by_group():
    rows = [
        {"group": "chat", "name": "one", "problem": "", "version": "1.0"},
        {"group": "chat", "name": "two_things", "problem": "Traceback\nAssertionError: no", "version": "1.0"},
        {"group": "errors", "name": "three", "problem": "", "version": "1.0"},
    ]
    lines = check.table({"tiny": rows, "large": rows[:1]})
    assert lines[0] == "Client: openai 1.0." and lines[2] == "| cases | tiny | large |"
    assert "| chat | 1 of 2 | 1 of 1 |" in lines and "| all | 2 of 3 | 1 of 1 |" in lines
    assert lines[-1] == "- tiny: two things: AssertionError: no"


def test_each_case_is_in_one_group():
    names = []
    for path in sorted(check.CASES.parent.glob("case_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any("case(" in ast.unparse(d) for d in node.decorator_list):
                names.append(node.name)
    assert len(names) == len(set(names)) >= 40


@pytest.fixture
def answers():
    """A server that streams these lines; yields the list to fill, and its port."""
    lines: list[bytes] = []

    class Stream(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"".join(lines))

        def log_message(self, *text):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Stream)
    Thread(target=server.serve_forever, daemon=True).start()
    yield lines, server.server_port
    server.shutdown()
    server.server_close()


def events(*contents):
    return [b"data: " + (json.dumps(c).encode() if isinstance(c, dict) else c) + b"\n\n" for c in contents]


def test_the_soak_judges_streams(answers):
    lines, port = answers
    asker, body = soak.Asker(port, "tiny"), soak.questions(1)[0]
    lines[:] = events(EVENT, EVENT, USAGE, b"[DONE]")
    text, tokens, first = asker.ask(body)
    assert (text, tokens) == ("aa", 5) and first > 0
    assert asker.ask(body, go=1)[0] is None
    out = soak.Outcome()
    for right in ("aa", "ab"):
        end = soak.time.monotonic() + 0.2
        soak.client(asker, [body], [right], end, 1, out)
    assert out.right and out.gone and out.wrong and all("'aa' is not 'ab'" in w for w in out.wrong)
    lines[:] = events(EVENT)
    with pytest.raises(ValueError, match="without an end"):
        asker.ask(body)
    lines[:] = events(EVENT, {"error": {"message": "no"}})
    with pytest.raises(ValueError, match="no"):
        asker.ask(body)


def test_the_table_of_a_soak():
    states = {"memory kB": 10, "threads": 2}, {"memory kB": 20, "threads": 2}
    lines = soak.table("tiny", 2, [soak.Outcome(3, 1, 240, [], [0.1, 0.2, 0.3])] * 2, states, 0)
    assert "| answers equal to those one by one | 6 |" in lines and "| ms to the first text, median | 200 |" in lines
    assert "| tokens a second of all whole answers | 4 |" in lines
    assert "| memory kB, after a fifth of the time and at the end | 10, 20 |" in lines


def test_damaged_requests_follow_from_their_seed():
    made = [fuzz_openai.damaged(random.Random(seed), "tiny") for seed in range(300)]
    assert made == [fuzz_openai.damaged(random.Random(seed), "tiny") for seed in range(300)]
    assert {path for path, _ in made} == set(fuzz_openai.PATHS) and len({body for _, body in made}) > 270
    assert Path(check.CASES).is_file()


def test_the_soak_notices_growth_of_any_kind():
    early = {"memory kB": 700_000, "threads": 7, "files": 20}
    assert not soak.grown(early, {"memory kB": 710_000, "threads": 8, "files": 12})
    for key in early:
        assert soak.grown(early, {**early, key: early[key] + (30 << 10)})[0].startswith(f"{key} grew from")


def test_clients_of_a_server_that_is_gone_wait():
    out = soak.Outcome()
    soak.client(soak.Asker(9, "tiny"), soak.questions(1), [""] * 24, soak.time.monotonic() + 0.3, 1, out)
    assert len(out.wrong) == 1 and "refused" in out.wrong[0]
