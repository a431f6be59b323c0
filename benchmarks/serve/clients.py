"""Runs unmodified clients and tests of other servers against `pelton serve`, and writes what passes.

    make test-clients TRITON_CLIENT=FOLDER TRITON_SERVER=FOLDER

The folders are checkouts of Triton's repositories `client` and `server`. Programs run by --clients-python, in whose
venv tritonclient and KServe's client are; MLServer's package needs other versions, and has a venv of its own. The exit
status is 1 if a test fails whose reason is not in `KNOWN`, or if one passes that has a reason there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pelton

from . import client_models
from .client_known import KNOWN
from .client_suites import EXAMPLES, EXAMPLES_LEFT_OUT, EXPLICIT, LEFT_OUT, Suite, suites
from .page import replace_part
from .served import served

BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"
SECONDS = 180  # of one program or test
NAME = ("--name", "triton", "--poll-seconds", "0.5")
PACKAGES = ("tritonclient", "kserve", "grpcio", "numpy")


@dataclass(frozen=True)
class Result:
    """A program or test that has run. reason: the last line that it wrote, if it failed."""

    part: str
    name: str
    passed: bool
    reason: str = ""

    @property
    def known(self) -> str:
        """Why it is to fail; empty if it is to pass."""
        return KNOWN.get(f"{self.part.split()[-1]} {self.name}") or KNOWN.get(self.name, "")


def run(part: str, name: str, command: list[str], folder: Path, environment: dict[str, str]) -> Result:
    """Runs a program in a folder. It passes if it ends with 0 in time."""
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return Result(part, name, False, f"took more than {SECONDS} s")
    if done.returncode == 0:
        return Result(part, name, True)
    lines = (done.stderr.strip() or done.stdout.strip() or f"ended with {done.returncode}").splitlines()
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return Result(part, name, False, (errors or lines)[-1].strip()[:300])


def examples(a: argparse.Namespace, root: Path) -> tuple[list[Result], list[str]]:
    """Runs the examples of the client's checkout; returns the results, and what is left out."""
    folder = a.client / "src/python/examples"
    kept, left = client_models.examples(a.server, root / "models")
    files = sorted({p for pattern in EXAMPLES for p in folder.glob(pattern)})
    wanted = [p for p in files if not any(word in p.name for word in EXAMPLES_LEFT_OUT)]
    runs = [(p, ()) for p in wanted if "model_control" not in p.name]
    runs += [(p, ("--dyna",)) for p, _ in runs if '"--dyna"' in p.read_text()]
    control = [(p, ()) for p in wanted if "model_control" in p.name]
    results = []
    for options, eighth, group in (
        ((), False, runs),
        (EXPLICIT, False, [c for c in control if "http" in c[0].name]),
        (EXPLICIT, True, [c for c in control if "grpc" in c[0].name]),  # which wants eight models in the index
    ):
        if eighth:
            client_models.identity(root / "models" / "string_identity", "string")
        with served([root / "models"], *NAME, *options, log=root / "server.log"):
            for path, arguments in group:
                name = " ".join([path.name, *arguments])
                results.append(run("examples", name, [a.python, path.name, *arguments], folder, {}))
                show(results[-1])
    reasons = {p.name: why for p in files for word, why in EXAMPLES_LEFT_OUT.items() if word in p.name}
    notes = [f"`{name}`: {why}." for name, why in reasons.items()]
    notes.append(f"Models as they are: {', '.join(f'`{k}`' for k in kept)}. Without files: {', '.join(left)}.")
    notes.append("`simple_identity`, a program in Python, is replaced by an engine.")
    notes.append(
        "`simple_string_dyna_sequence`, for which Triton's tests build a library in C++, is replaced by an ONNX model"
        " of the same sums, whose sequences have texts as names."
    )
    return results, notes


def suite(a: argparse.Namespace, one: Suite, root: Path) -> list[Result]:
    """Runs a suite in a copy of the checkout's qa/, whose files tests change."""
    tests, results = one.tests(a.server), []
    groups = [[t] for t in tests] if one.fresh else [tests]
    for group in groups:
        with tempfile.TemporaryDirectory(dir=root) as name:
            qa = Path(name) / "qa"
            shutil.copytree(a.server / "qa" / "common", qa / "common")
            work = qa / Path(one.file).parent
            shutil.copytree(a.server / "qa" / Path(one.file).parent, work)
            (work / "models").mkdir(exist_ok=True)
            one.prepare(work)
            models = [work / f for f in one.folders]
            with served(models, *NAME, *one.options, log=root / "server.log") as process:
                environment = {**one.environment, "SERVER_PID": str(process.pid)}
                for test in group:
                    results.append(_test(a, one, test, work, environment))
                    show(results[-1])
    return results


def _test(a: argparse.Namespace, one: Suite, test: str, work: Path, environment: dict[str, str]) -> Result:
    command = [a.python, "-m", "unittest", f"{Path(one.file).stem}.{test}"]
    part = " ".join([one.file, *one.environment.values()])
    result = run(part, test.partition(".")[2], command, work, environment)
    if one.clean:
        for place in (f"http://127.0.0.1:8000/v2/{kind}sharedmemory/unregister" for kind in ("system", "cuda")):
            urllib.request.urlopen(urllib.request.Request(place, method="POST", data=b""), timeout=30).close()
    return result


def kserve(a: argparse.Namespace, root: Path) -> list[Result]:
    """Calls the examples' models by KServe's and MLServer's packages."""
    results: list[Result] = []
    with served([root / "models"], *NAME, log=root / "server.log"):
        for program, python in (("kserve_calls.py", a.python), ("mlserver_calls.py", a.mlserver)):
            part = program.partition("_")[0]
            shutil.copy(Path(__file__).parent / program, root)  # where no other requests.py is beside it
            command = [python, str(root / program), "http://127.0.0.1:8000", "127.0.0.1:8001"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            rows = [line.split("\t") for line in done.stdout.splitlines() if line.startswith(("pass\t", "fail\t"))]
            results += [Result(part, r[1], r[0] == "pass", r[2] if len(r) > 2 else "") for r in rows]
            if not rows:
                last = (done.stderr.strip() or "it wrote nothing").splitlines()[-1]
                results.append(Result(part, program, False, last))
    for result in results:
        show(result)
    return results


def show(result: Result) -> None:
    state = "pass" if result.passed else f"FAIL {result.reason}"
    print(f"{result.part}: {result.name}: {state}", flush=True)


def versions(a: argparse.Namespace) -> list[str]:
    """Returns the versions of the packages and of the checkouts."""
    code = (
        "import sys, importlib.metadata as m\n"
        "for n in sys.argv[1:]:\n"
        "    try: print(n, m.version(n))\n"
        "    except m.PackageNotFoundError: pass"
    )
    lines: list[str] = []
    for python, packages in ((a.python, PACKAGES), (a.mlserver, ("mlserver",))):
        done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
        lines += done.stdout.splitlines()
    release = a.server / "TRITON_VERSION"
    if release.is_file():
        lines.append(f"the server's checkout {release.read_text().strip()}")
    return lines


def table(results: list[Result], notes: list[str], a: argparse.Namespace) -> list[str]:
    """Returns the lines of the page."""
    parts = list(dict.fromkeys(r.part for r in results))
    lines = ["", f"Pelton {pelton.__version__}; {', '.join(versions(a))}.", "", "| what runs | pass | of |"]
    lines.append("| --- | ---: | ---: |")
    for part in parts:
        rows = [r for r in results if r.part == part]
        lines.append(f"| {title(part)} | {sum(r.passed for r in rows)} | {len(rows)} |")
    failed = [r for r in results if not r.passed]
    if failed:
        lines += ["", "What fails:", ""]
        lines += [f"- `{r.name}` ({title(r.part)}): {r.known or r.reason}" for r in failed]
    lines += ["", "What is left out:", "", *(f"- {n}" for n in notes)]
    for part in parts:
        names = ", ".join(f"`{r.name}`" for r in results if r.part == part and r.passed)
        lines += ["", f"**{title(part)}**, which pass: {names or 'none'}."]
    return [*lines, ""]


def title(part: str) -> str:
    """Returns the words for a part."""
    if part == "examples":
        return "Triton's examples in Python"
    return {"kserve": "KServe's clients", "mlserver": "MLServer's codecs"}.get(part) or "qa/" + part


def left_out(all_suites: Iterable[Suite]) -> list[str]:
    """Returns lines about the tests that no suite runs."""
    reasons = {name: why for one in all_suites for name, why in one.skip.items() if why}
    return [f"`{name}`: {why}." for name, why in reasons.items()] + [
        f"{name}: {why}." for name, why in LEFT_OUT.items()
    ]


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("parts", nargs="*", help="run only parts whose names contain one of these; writes no page")
    ask.add_argument("--client", type=Path, required=True, help="checkout of Triton's repository client")
    ask.add_argument("--server", type=Path, required=True, help="checkout of Triton's repository server")
    ask.add_argument("--clients-python", dest="python", required=True, help="the Python of the clients' venv")
    ask.add_argument("--mlserver-python", dest="mlserver", required=True, help="the Python of MLServer's venv")
    ask.add_argument("--page", type=Path, help="write the tables between this page's marks")
    a = ask.parse_args()
    a.client, a.server = a.client.resolve(), a.server.resolve()
    a.python, a.mlserver = os.path.abspath(a.python), os.path.abspath(a.mlserver)
    for folder, part in ((a.client, "src/python/examples"), (a.server, "docs/examples/model_repository")):
        if not (folder / part).is_dir():
            ask.error(f"{folder} has no {part}: it is no checkout of that repository of Triton's")

    def asked(name: str) -> bool:
        return not a.parts or any(p in name for p in a.parts)

    results, notes = [], []
    with tempfile.TemporaryDirectory(prefix="pelton-test-clients-") as name:
        root = Path(name)
        if asked("examples") or asked("kserve"):
            if asked("examples"):
                results, notes = examples(a, root)
            else:
                client_models.examples(a.server, root / "models")
            results += kserve(a, root) if asked("kserve") else []
        chosen = suites(a.server)
        for one in chosen:
            if any(asked(f"{one.file} {m}") for m in one.methods or ("",)):
                results += suite(a, one, root)
    unexpected = [r for r in results if r.passed == bool(r.known)]
    for r in unexpected:
        why = f"it is to fail, because {r.known}" if r.passed else r.reason
        print(f"unexpected: {r.part}: {r.name} {'passes' if r.passed else 'fails'}: {why}", file=sys.stderr)
    print(f"{sum(r.passed for r in results)} of {len(results)} pass")
    if a.page is not None and not a.parts:
        replace_part(a.page, BEGIN, END, table(results, notes + left_out(chosen), a))
    return int(bool(unexpected))


if __name__ == "__main__":
    sys.exit(main())
