"""The comparison of answers with those of a Triton server: requests, answers, differences and the table."""

import json
import struct

import pytest
from google.protobuf import json_format

from benchmarks.serve import oracle, oracle_calls, oracle_known, oracle_models, oracle_requests
from benchmarks.serve.oracle import Answer, Comparison
from pelton.serve import schema


def test_requests_have_names_of_their_own():
    http, grpc = oracle_requests.http(), oracle_calls.grpc()
    keys = [f"{r.group}: {r.name}" for r in (*http, *grpc)]
    assert len(keys) == len(set(keys)) > 250
    assert set(oracle_known.KNOWN) <= set(keys)
    assert sum(map(len, oracle_known.REASONS.values())) == len(oracle_known.KNOWN)


def test_calls_are_messages_of_the_schema():
    inputs = {m.name: m.input_type.name for m in schema.methods()}
    for call in oracle_calls.grpc():
        message = json_format.ParseDict(call.content, schema.message(inputs[call.method])())
        assert message.DESCRIPTOR.name == inputs[call.method]


@pytest.mark.parametrize("datatype", oracle_models.DATATYPES)
def test_binary_requests_name_the_bytes_of_their_parts(datatype):
    data = oracle_requests.raw(datatype, oracle_requests.numbers(datatype))
    request = oracle_requests.binary("group", "name", "model", data, datatype=datatype)
    length = int(request.headers[oracle_requests.JSON_LENGTH])
    (port,) = json.loads(request.body[:length])["inputs"]
    assert request.body[length:] == data and port["parameters"] == {"binary_data_size": len(data)}
    assert request.verb == "POST" and port["datatype"] == datatype


def test_texts_are_written_with_their_lengths():
    assert oracle_requests.raw("BYTES", ["π", ""]) == struct.pack("<I", 2) + "π".encode() + bytes(4)


def test_answers_are_split_behind_their_json():
    answer = oracle.read_answer("200", {oracle.JSON_LENGTH: "8", "Content-Type": "a"}, b'{"a": 1}\x01\x02')
    assert (answer.content, answer.data, answer.headers) == ({"a": 1}, b"\x01\x02", {"Content-Type": "a"})
    assert oracle.read_answer("404", {}, b'{"error": "no"}').text == "no"
    assert oracle.read_answer("200", {}, b"<html>").data == b"<html>"
    assert oracle.read_answer("200", {}, b"").content is None


@pytest.mark.parametrize(
    "ours, theirs, found",
    [
        ({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["the answer has another order: a, b"]),
        ({"a": 1}, {"a": 1, "b": 2}, ["the answer lacks b"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, [".a has c, too"]),
        ({"a": [1]}, {"a": [1, 2]}, [".a has 1 values, Triton's has 2"]),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, ['.a[0].b is "x", Triton\'s is "y"']),
        ({"a": 1}, {"a": 1.0}, [".a is 1, Triton's is 1.0"]),
        ({"a": True}, {"a": 1}, [".a is true, Triton's is 1"]),
        ([], None, ["the answer is [], Triton's is null"]),
        ({"s": {"ns": 5}, "version": "1"}, {"s": {"ns": 7}, "version": "2"}, []),
    ],
)
def test_values_are_compared_with_their_order(ours, theirs, found):
    assert oracle.differences(ours, theirs) == found


def test_answers_are_compared():
    good = Answer("200", {"Content-Type": "a"}, {"x": 1}, b"12")
    assert oracle.compare(good, good) == []
    assert oracle.compare(Answer("400", {}), good) == ["the status is 400, Triton's is 200"]
    assert oracle.compare(Answer("400", {}, text="one"), Answer("400", {"Content-Type": "b"}, text="two")) == []
    assert oracle.compare(Answer("200", {}, {"x": 1}, b"1"), good) == [
        "Content-Type is None, Triton's is a",
        "1 bytes b'1', Triton's are 2 b'12'",
    ]


def test_the_table_names_reasons_and_what_has_none():
    answer = Answer("200", {})
    group, name = next(iter(oracle_known.KNOWN)).split(": ")
    results = [
        Comparison(group, name, ["the status is 1, Triton's is 2"], Answer("1", {}), Answer("2", {})),
        Comparison(group, "same", [], answer, answer),
        Comparison("other", "new", ["differs"], answer, answer),
    ]
    lines = oracle.table(results, "2.0")
    assert f"| {group} | 1 | 1 | 2 |" in lines and "| other | 0 | 0 | 1 |" in lines
    reason = oracle_known.KNOWN[f"{group}: {name}"]
    assert f"- {reason} (the status is 1, Triton's is 2). {group}: “{name}”" in lines
    assert "- “other: new”: differs" in lines


def test_models_are_written_twice(tmp_path):
    oracle_models.write(tmp_path / "engines", tmp_path / "programs")
    for engine in (tmp_path / "engines").iterdir():
        program = tmp_path / "programs" / engine.name
        assert (engine / "1/model.pelton").is_file() and (program / "1/model.py").is_file()
        config = (engine / "config.pbtxt").read_text()
        assert (program / "config.pbtxt").read_text() == 'backend: "python"\n' + config
    assert (tmp_path / "engines/scores/labels.txt").read_text() == (tmp_path / "programs/scores/labels.txt").read_text()
