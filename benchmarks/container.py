"""Builds the image of docs/deploying.md with buildah, runs it with podman, and compares an engine inside and outside.

    python -m benchmarks.container [--page docs/deploying.md] [--stand-in] [--rounds 5]

Fails if the image does not build, the server does not answer, or `pelton doctor` inside does not see the limits. Needs
root, buildah, podman and runc. --stand-in: makes the base image of Debian's packages (mmdebstrap), where no registry of
images is reachable. Everything is below build/container, and removed at the end but for the base image.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill

from benchmarks.formats import replaced

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "container"
IMAGE, PORT = "localhost/pelton-classifier", 8000
MODEL = ROOT / "src/pelton/data/resnet20_cifar10.onnx"
PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# limits that this process may set for containers: engines of containers ask for more than some machines allow
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
# the flags of the page, and two CPUs
SAFE = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--cpus", "2")
# pip of Debian refuses to install beside its packages, and images of Python name their Python `python`
STAND_IN = """FROM scratch
ADD base.tar /
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && ln -s python3 /usr/bin/python
ENV PATH=/usr/local/bin:/usr/bin:/bin
"""
START = "pass"
LOAD = "import numpy as np, pelton; e = pelton.load('model.pelton'); e.run({'image': np.ones((1, 3, 32, 32), 'f')})"
RUN = """
import numpy as np, pelton, statistics, time
context, x = pelton.load("model.pelton").context(threads=1), {"image": np.ones((1, 3, 32, 32), np.float32)}
def run():
    start = time.perf_counter_ns()
    context.run(x)
    return time.perf_counter_ns() - start
[run() for _ in range(200)]
print(statistics.median(run() for _ in range(2000)))
"""


def command(*words: str | Path, **options) -> str:
    """Runs a program and returns its output; its errors are shown, and end this program."""
    done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))[:300]} failed with status {done.returncode}\n{done.stdout[-2000:]}")
    return done.stdout


def storage() -> list[str]:
    return ["--root", f"{FOLDER}/storage", "--runroot", f"{FOLDER}/run", "--storage-driver", "overlay"]


def podman(*words: str) -> list[str]:
    return ["podman", *storage(), "--cgroup-manager", "cgroupfs", "--runtime", "runc", *words]


def inside(*flags: str) -> list[str]:
    """The command that runs another one in the image."""
    return podman("run", "--rm", "--network", "none", *LIMITS, *SAFE, *flags, IMAGE)


def block(page: str, language: str, has: str) -> str:
    """The block of a page that contains a text."""
    fenced = re.findall(r"^```([^\n]*)\n(.*?)^```$", (ROOT / "docs" / page).read_text("utf-8"), re.M | re.S)
    return next(text for kind, text in fenced if kind == language and has in text)


def context(python: str) -> Path:
    """Writes the folder that the page describes, and returns it."""
    folder = FOLDER / "context"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pelton").mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "x", "-C", folder / "pelton"], check=True, input=archive)
    (folder / "Dockerfile").write_text(block("deploying.md", "dockerfile", "FROM"))
    (folder / ".dockerignore").write_text(block("deploying.md", "", "**/.git"))
    (folder / "app.py").write_text(block("serving.md", "python", "async def app("))
    shutil.copy(MODEL, folder / "model.onnx")
    words = block("deploying.md", "sh", "--save-tactics").split()
    command(python, "-m", *words, "-o", FOLDER / "first.pelton", "-q", cwd=folder)
    return folder


def exists(image: str) -> bool:
    return subprocess.run(podman("image", "exists", image)).returncode == 0


def base_image(name: str) -> None:
    """Makes a stand-in for a base image, under its name, unless it is there."""
    if exists(name):
        return
    command("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", FOLDER / "base.tar")
    (FOLDER / "Base").write_text(STAND_IN)
    build = ["buildah", *storage(), "bud", "--isolation", "chroot", "-t", name, "-f", FOLDER / "Base", FOLDER]
    command(*build)
    (FOLDER / "base.tar").unlink()


def build_image(folder: Path, stand_in: bool) -> None:
    """Builds the page's image. Certificates of this machine are those of the build."""
    bound = ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if Path(CERTIFICATES).exists() else []
    pull = ["--pull-never"] if stand_in else []
    command("buildah", *storage(), "bud", "--isolation", "chroot", *pull, *bound, "-t", IMAGE, folder)


def size(image: str) -> int:
    return int(command(*podman("image", "inspect", "--format", "{{.Size}}", image)))


def check_limits() -> None:
    """`doctor` inside must see the limits of the container."""
    found = json.loads(command(*inside("--memory", "1g"), "pelton", "doctor", "--json"))
    seen = found["cpu"]["quota"], found["memory"]["limit"], found["machine"]["container"]["inside"]
    if seen != (2, 1 << 30, "podman"):
        sys.exit(f"pelton doctor inside the container sees {seen}")


@contextmanager
def served() -> Iterator[None]:
    """Runs the image's server, in the network of this machine."""
    flags = ["--rm", "--network", "host", *LIMITS, *SAFE]
    server = subprocess.Popen(podman("run", "--name", "pelton-server", *flags, IMAGE), stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run(podman("stop", "--time", "5", "pelton-server"), stdout=subprocess.DEVNULL)
        server.wait()


def first_answer() -> float:
    """Returns the seconds from the start of the image's server to its first answer."""
    start = time.perf_counter()
    with served():
        while time.perf_counter() - start < 60:
            try:
                ask = urllib.request.Request(f"http://127.0.0.1:{PORT}/", data=bytes(4 * 3 * 32 * 32))
                with urllib.request.urlopen(ask, timeout=5) as answer:
                    if answer.status == 200 and 0 <= json.loads(answer.read())["class"] < 10:
                        return time.perf_counter() - start
            except OSError:
                time.sleep(0.02)
    sys.exit("the server in the container does not answer")


def seconds(words: Sequence[str], folder: Path) -> float:
    start = time.perf_counter()
    command(*words, cwd=folder)
    return time.perf_counter() - start


def native(folder: Path) -> str:
    """Makes an environment with the image's packages outside of containers, and returns its Python."""
    python = str(folder / "venv/bin/python")
    if not Path(python).exists():
        command("/usr/bin/python3", "-m", "venv", folder / "venv")
        wanted = command(*inside(), "python", "-c", "import numpy; print(numpy.__version__)").strip()
        command(python, "-m", "pip", "install", "-q", f"numpy=={wanted}", folder / "context/pelton")
    command(*podman("create", "--name", "pelton-files", IMAGE))
    command(*podman("cp", "pelton-files:/srv/model.pelton", str(folder)))
    command(*podman("rm", "pelton-files"))
    return python


def compare(python: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Returns medians outside and inside, taken in turns: seconds to start Python, to load and run an engine, and for
    one run."""
    here: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(rounds):
        for place, words in enumerate(([python], [*inside(), "python"])):
            for name, program in (("start", START), ("load", LOAD)):
                here.setdefault(name, ([], []))[place].append(seconds([*words, "-c", program], FOLDER))
            median = float(command(*words, "-c", RUN, cwd=FOLDER)) / 1e9
            here.setdefault("run", ([], []))[place].append(median)
    return {name: (statistics.median(out), statistics.median(into)) for name, (out, into) in here.items()}


def table(base: str, answer: float, times: dict[str, tuple[float, float]], stand_in: bool) -> str:
    out = ["| | outside | in the container | costs |", "| --- | ---: | ---: | ---: |"]
    names = {"start": "start Python", "load": "start, load and run once", "run": "a run, one thread"}
    for name, title in names.items():
        a, b = times[name]
        unit, scale = ("µs", 1e6) if name == "run" else ("ms", 1e3)
        costs = f"{b / a - 1:+.1%}" if name == "run" else f"{(b - a) * scale:+.0f} {unit}"
        digits = 1 if name == "run" else 0
        out.append(f"| {title} | {a * scale:.{digits}f} {unit} | {b * scale:.{digits}f} {unit} | {costs} |")
    whole, below = size(IMAGE), size(base)
    versions = [command(name, "--version").split()[2] for name in ("buildah", "podman")]
    origin = f"a stand-in of Debian's packages under the name `{base}`" if stand_in else f"`{base}`"
    out += [
        "",
        fill(
            f"The image has {whole / 1e6:.0f} MB, {(whole - below) / 1e6:.0f} MB of them above its base ({origin})."
            f" Its server answered {answer:.1f} s after `podman run`. Measured with buildah {versions[0]} (chroot "
            f"isolation) and podman {versions[1]} (runc, the flags above) on {cpu()}: medians, in turns.",
            120,
            break_on_hyphens=False,
        ),
    ]
    return "\n".join(out)


def cpu() -> str:
    from pelton.backends.cpu import describe

    known = describe()
    return f"{known['cores']:g} CPUs of {known['model']}"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--page", type=Path, help="write the table there, between its marks")
    ask.add_argument("--stand-in", action="store_true", help="make the base image of Debian's packages")
    ask.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each measurement")
    ask.add_argument(
        "--keep", action="store_true", help="leave the image, and measure it without a build if it is there"
    )
    given = ask.parse_args()
    lacking = [name for name in ("buildah", "podman", "runc") if shutil.which(name) is None]
    if lacking or os.geteuid():
        sys.exit(f"needs root, and buildah, podman and runc; missing: {', '.join(lacking) or 'root'}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    base = re.findall(r"^FROM (\S+)", block("deploying.md", "dockerfile", "FROM"), re.M)[-1]
    if not (given.keep and exists(IMAGE)):
        if given.stand_in:
            base_image(f"docker.io/library/{base}")
        build_image(context(sys.executable), given.stand_in)
    check_limits()
    answer = first_answer()
    text = table(base, answer, compare(native(FOLDER), given.rounds), given.stand_in)
    print(text)
    if given.page:
        given.page.write_text(replaced(given.page.read_text("utf-8"), "container", text))
    if not given.keep:
        command(*podman("image", "rm", IMAGE))


if __name__ == "__main__":
    main()
