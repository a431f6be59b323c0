"""Runs TensorFlow Serving's own tests out of a checkout, and writes what passes.

    make test-clients TFS=FOLDER

The folder is a checkout of the repository tensorflow/serving. Its tests of JSON call the functions of `pelton serve`;
those of its REST handler, and the calls of curl in its documents, go to a server. The exit status is 1 if a test fails
whose reason is not in `KNOWN`, or with other expectations than there, or if one passes that has a reason there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import gtest, gtest_source, tfs_http, tfs_json
from .page import replace_part
from .served import served

NO_TENSORS = "MakeJsonFromTensors"  # this suite's tests are of errors
BEGIN, END = "<!-- tensorflow: begin -->", "<!-- tensorflow: end -->"

JSON = "tensorflow_serving/util/json_tensor_test.cc"
HANDLER = "tensorflow_serving/model_servers/http_rest_api_handler_test.cc"
CURL = "calls of curl in its documents"
LEFT_OUT = (
    "TensorFlow Serving's other tests: they test gRPC calls, which `pelton serve` has not, and parts of its program",
    "StatusOK and StatusError in json_tensor_test.cc: they test a function that puts a text into braces",
    "http_rest_api_util_test.cc: it tests a function that splits paths; the handler's tests have such paths",
)
DEPTH = "a document that is nested thousands of levels deep is rejected before its keys are looked at"
SIGNATURE = "an engine has one signature, and a request for another is rejected"
# test → expectations that fail, and why
KNOWN = {
    "DeeplyNestedWellFormed": (2, DEPTH),
    "DeeplyNestedMalformed": (1, DEPTH),
    "FloatTensorThatExceedsMaxReturnsInf": (8, "a number that the type cannot hold is rejected, and not made infinite"),
    "SingleUnnamedTensorWithSignature": (5, SIGNATURE),
    "FromJsonSingleFloatTensorSixDigitPrecision": (1, "numbers are equal, with other digits: 9e+06 is 9000000.0"),
    "FromJsonSingleTensorErrors": (1, "the answer of a model without outputs, and complex numbers: no engine has them"),
    "RequestWithContextAndSignature classify": (2, SIGNATURE),
    "RequestWithContextAndSignature regress": (2, SIGNATURE),
    "JsonFromResultErrors": (2, "a request without examples is rejected, with another text than its answer"),
    "Predict": (2, "[[1.0, 2.0], [3.0, 4.0]] for an input of one axis is rejected; that server runs it"),
    "Regress": (6, SIGNATURE),
    "Classify": (4, SIGNATURE),
    "GetModelMetadata": (1, "the metadata has one signature, and that model has six"),
}
Outcome = tuple[str, str, list[str]]  # file, test, expectations that failed


def run(checkout: Path, folder: Path) -> Iterator[Outcome]:
    """Runs the tests and the calls. folder: for models and the server's log."""
    for test in gtest_source.read_tests((checkout / JSON).read_text()):
        if test.suite == NO_TENSORS:
            continue
        for language in tfs_json.languages(test.kind):
            yield JSON, named(test, language), failures(test, language)
    text = (checkout / HANDLER).read_text()
    constants = gtest_source.constants(text)
    tfs_http.models(folder / "models", constants)
    address = "http://127.0.0.1:8000"
    with served([folder / "models"], log=folder / "server.log"):
        language = tfs_http.language(address, checkout, constants)
        for test in gtest_source.read_tests(text):
            yield HANDLER, named(test, language), failures(test, language)
        for call in tfs_http.calls(checkout):
            yield CURL, call.place, tfs_http.run_call(call, address)


def named(test: gtest_source.Test, language: gtest.Language) -> str:
    """Returns a test's name, with the parameter where it has one."""
    return f"{test.name} {language.parameter}".strip()


def failures(test: gtest_source.Test, language: gtest.Language) -> list[str]:
    """Runs a test; returns the expectations that failed, or the line that cannot be read."""
    try:
        return gtest.Runner(language).run(test)
    except gtest_source.Unreadable as e:
        return [f"cannot be read, {e}"]


def table(outcomes: list[Outcome], checkout: Path) -> list[str]:
    """Returns the lines of the page."""
    commit = subprocess.run(
        ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"], capture_output=True, text=True
    )
    of = commit.stdout.strip() if commit.returncode == 0 else "unknown, without git"
    lines = ["", f"The checkout's commit: {of}.", "", "| what runs | pass | of |", "| --- | ---: | ---: |"]
    for part in dict.fromkeys(part for part, _, _ in outcomes):
        rows = [failed for p, _, failed in outcomes if p == part]
        lines.append(f"| {part} | {sum(not failed for failed in rows)} | {len(rows)} |")
    lines += ["", "What differs:", ""]
    lines += [f"- `{name}`: {KNOWN[name][1] if name in KNOWN else '; '.join(f)}" for _, name, f in outcomes if f]
    lines += ["", "What is left out:", "", *(f"- {note}." for note in LEFT_OUT)]
    for part in dict.fromkeys(part for part, _, _ in outcomes):
        names = ", ".join(f"`{name}`" for p, name, failed in outcomes if p == part and not failed)
        lines += ["", f"**{part}**, which pass: {names or 'none'}."]
    return [*lines, ""]


def unexpected(outcomes: list[Outcome]) -> list[str]:
    """Returns what differs from KNOWN, and reasons there of tests that did not run."""
    texts = []
    for part, name, failed in outcomes:
        known, _ = KNOWN.get(name, (0, ""))
        if len(failed) != known:
            found = "; ".join(failed) or "none"
            texts.append(f"{part}: {name}: {len(failed)} expectations fail, {known} are to: {found}")
    names = {name for _, name, _ in outcomes}
    return texts + [f"{name} is to fail, but no test has that name" for name in KNOWN if name not in names]


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("checkout", type=Path, help="checkout of the repository tensorflow/serving")
    ask.add_argument("--page", type=Path, help="write the tables between this page's marks")
    a = ask.parse_args()
    for file in (JSON, HANDLER):
        if not (a.checkout / file).is_file():
            ask.error(f"{a.checkout} has no {file}: it is no checkout of tensorflow/serving")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="pelton-test-clients-") as folder:
        for part, name, failed in run(a.checkout, Path(folder)):
            print(f"{part}: {name}: {'; '.join(['FAIL', *failed]) if failed else 'pass'}", flush=True)
            outcomes.append((part, name, failed))
    wrong = unexpected(outcomes)
    for text in wrong:
        print(f"unexpected: {text}", file=sys.stderr)
    print(f"{sum(not failed for _, _, failed in outcomes)} of {len(outcomes)} pass")
    if a.page is not None:
        replace_part(a.page, BEGIN, END, table(outcomes, a.checkout))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
