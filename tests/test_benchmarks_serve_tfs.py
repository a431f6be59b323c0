"""The reader of tests in C++, and what runs TensorFlow Serving's tests of JSON and its documents' calls."""

import numpy as np
import pytest

from benchmarks.serve import gtest, gtest_source, proto_text, tfs, tfs_http, tfs_json

SOURCE = """
constexpr char kName[] = "half";
constexpr int kVersion = 123;

TEST(Suite, Sums) {
  int a = 1;  // a comment; with a semicolon
  const string& text = absl::StrCat("/v1/", kName, "/",
                                    kVersion);
  std::string more = R"({"a": ")";
  more.append(3, '[');
  EXPECT_EQ(text, "/v1/" "half/123");
  EXPECT_EQ(more.size(), a + 9);
  values["x"] = -a;
  fill(&values["y"], &text) << "not read: " << a;
  EXPECT_THAT(text, HasSubstr("filled"));
  EXPECT_EQ(values["x"], 1);
  ASSERT_TRUE(false);
  EXPECT_EQ(1, 2);
}

TEST_F(Fixture, Loop) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(i, i);
}

TYPED_TEST(Typed, Empty) {
  TypeParam x;
}
"""


def fill(place, text):
    place.set(7)
    text.set("filled")


def language():
    values = {**gtest_source.constants(SOURCE), "values": {}}
    return gtest.Language({**gtest.COMMON, "fill": fill}, {"TypeParam": dict}, {}, values)


def test_tests_are_read_with_their_kinds_and_lines():
    found = gtest_source.read_tests(SOURCE)
    assert [(t.kind, t.suite, t.name) for t in found] == [
        ("TEST", "Suite", "Sums"),
        ("TEST_F", "Fixture", "Loop"),
        ("TYPED_TEST", "Typed", "Empty"),
    ]
    assert SOURCE.splitlines()[found[0].line - 1].strip().startswith("int a = 1")
    assert gtest_source.constants(SOURCE) == {"kName": "half", "kVersion": 123}


def test_expectations_fail_with_their_lines_and_an_assertion_ends_the_test():
    runner = gtest.Runner(language())
    failures = runner.run(gtest_source.read_tests(SOURCE)[0])
    lines = [text.strip() for text in SOURCE.splitlines()]
    equal, true = (lines.index(text) + 1 for text in ('EXPECT_EQ(values["x"], 1);', "ASSERT_TRUE(false);"))
    assert failures == [f"line {equal}: -1 is not 1", f"line {true}: not so: False"]
    assert runner.variables["values"] == {"x": -1, "y": 7}


@pytest.mark.parametrize(
    "body, part",
    [
        ("for (int i = 0; i < 3; ++i) EXPECT_EQ(i, i);", "line 4"),
        ("EXPECT_EQ(absent, 1);", "no variable absent"),
        ("absent(1);", "no function absent"),
        ("values.absent();", "no method absent"),
        ("EXPECT_EQ(1 ? 2 : 3, 2);", "? is no part"),
        ("int a = @;", "'@;'"),
        ("int a = 1 2;", "2 is no part"),
        ("int a = ;", "the end is no part"),
        ("EXPECT_EQ(1, 1", "the end is no part"),
    ],
)
def test_what_is_not_read_is_refused(body, part):
    with pytest.raises(gtest_source.Unreadable, match="line 4") as caught:
        gtest.Runner(language()).run(gtest_source.Test("TEST", "S", "T", body, 4))
    assert part in str(caught.value)


def test_messages_in_text_are_read():
    message = proto_text.parse(
        "dtype: DT_FLOAT tensor_shape { dim { size: 2 } dim { size: 1 } } float_val: -1 float_val: NaN"
    )
    assert message["tensor_shape"] == [{"dim": [{"size": [2]}, {"size": [1]}]}]
    np.testing.assert_array_equal(proto_text.tensor_of(message), np.array([[-1], [np.nan]], np.float32))
    assert proto_text.tensor_of(proto_text.parse('dtype: DT_STRING tensor_shape {} string_val: "a b"')) == "a b"


@pytest.mark.parametrize("text", ["a: 1 }", "a { b: 1", "a 1", "a:", "a", ": 1", "a: x", "dtype: DT_COMPLEX64"])
def test_what_is_no_message_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        proto_text.tensor_of(proto_text.parse(text))


FILL = """
  TensorInfoMap infomap;
  ASSERT_TRUE(TextFormat::ParseFromString("dtype: DT_INT32", &infomap["default"]));
  PredictRequest req;
  JsonPredictRequestFormat format;
  TF_EXPECT_OK(FillPredictRequestFromJson(R"({"instances": [[1,2]]})", getmap(infomap), &req, &format));
  auto tmap = req.inputs();
  EXPECT_EQ(format, JsonPredictRequestFormat::kRow);
  EXPECT_THAT(tmap["default"], EqualsProto(R"(
    dtype: DT_INT32 tensor_shape { dim { size: 1 } dim { size: 2 } } int_val: 1 int_val: VALUE)"));
"""


@pytest.mark.parametrize("value, failures", [("2", 0), ("3", 1)])
def test_a_request_to_predict_is_compared_with_its_tensors(value, failures):
    (language,) = tfs_json.languages("TEST")
    test = gtest_source.Test("TEST", "S", "T", FILL.replace("VALUE", value), 1)
    assert len(tfs.failures(test, language)) == failures


EXAMPLES = """
  TypeParam req;
  TF_EXPECT_OK(this->FillRequest(R"({"context": {"q": "a"}, "examples": [{"r": [1, 2]}, {"r": [3.5]}]})", &req));
  TypeParam expected;
  ASSERT_TRUE(TextFormat::ParseFromString(R"(input { example_list_with_context {
    context { features { feature { key: "q" value { bytes_list { value: "a" } } } } }
    examples { features { feature { key: "r" value { int64_list { value: 1 value: 2 } } } } }
    examples { features { feature { key: "r" value { float_list { value: VALUE } } } } } } })", &expected));
  EXPECT_TRUE(MessageDifferencer::ApproximatelyEquals(req, expected)) << expected.DebugString();
"""


@pytest.mark.parametrize("value, failures", [("3.5", 0), ("3.0", 1)])
def test_examples_are_compared_with_their_features(value, failures):
    languages = tfs_json.languages("TYPED_TEST")
    assert [one.parameter for one in languages] == ["classify", "regress"]
    for one in languages:
        test = gtest_source.Test("TYPED_TEST", "S", "T", EXAMPLES.replace("VALUE", value), 1)
        assert len(tfs.failures(test, one)) == failures


DOCUMENT = """Text about curl in a line.

```shell
$ curl -d '{"instances": [1.0]}' \\
    -X POST http://localhost:8501/v1/models/half:predict
{
    "predictions": [2.5]
}
```

$ curl -i http://localhost:8501/v1/models/absent
HTTP/1.1 404 Not Found

{ "error": "no" }

$ curl https://example.org/key
{ "of": "another server" }

$ curl http://localhost:8501/v1/models/half
An answer that no one knows.
"""


def test_calls_of_documents_are_read_with_their_answers():
    first, second = tfs_http.calls_in(DOCUMENT, "page.md")
    assert first.place == "page.md:4" and first.status == 200 and first.answer == {"predictions": [2.5]}
    assert first.arguments[:3] == ("-d", '{"instances": [1.0]}', "-X")
    assert (second.place, second.status, second.answer) == ("page.md:11", 404, {"error": "no"})


def test_outcomes_are_compared_with_the_known_reasons(tmp_path):
    known = [(tfs.JSON, name, ["x"] * count) for name, (count, _) in tfs.KNOWN.items()]
    assert tfs.unexpected([*known, (tfs.CURL, "a.md:1", [])]) == []
    assert "is to fail, but no test has that name" in tfs.unexpected(known[1:])[0]
    assert "1 expectations fail, 0 are to: line 3" in tfs.unexpected([*known, (tfs.CURL, "b", ["line 3"])])[0]
    lines = tfs.table([*known, (tfs.CURL, "a.md:1", [])], tmp_path)
    assert f"| {tfs.JSON} | 0 | {len(known)} |" in lines and f"| {tfs.CURL} | 1 | 1 |" in lines
    assert f"- `Predict`: {tfs.KNOWN['Predict'][1]}" in lines
