"""Collects published figures out of clones of their sources: python -m benchmarks.advise.collect FOLDER

FOLDER has clones of github.com/mlcommons/inference_results_vX, named like these, and of github.com/NVIDIA/TensorRT with
its branches. Prints points.toml. What is taken is decided here, before any prediction:

- MLPerf's closed division, default power: for each device, benchmark and scenario NVIDIA's own submission if there is
  one; then the latest round, the system with the fewest devices, the first by name. BERT for 99.9 % of the accuracy ran
  in FP16 on Turing and Ampere; later in FP8, which Pelton does not have.
- TensorRT's demo/BERT: for each device the latest release whose README has its table; BERT-Base at 128 and BERT-Large
  at 384 tokens, batches 1, 8 and 128. A table that repeats another device's is left out: from 10.12 on, that of A30 has
  the figures that L4 had in 10.8.
- Devices alternate between both halves, in the order of their names: the first is fitted on, the second held out.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pelton.advise.catalog import load

ROUNDS = ("0.5", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "4.1")
# A part of a system's name in MLPerf → device of the catalog.
SYSTEMS = {
    r"A10x": "NVIDIA A10",
    r"A2x": "NVIDIA A2",
    r"A30x": "NVIDIA A30",
    r"A40[xX]": "NVIDIA A40",
    r"A100-PCIex": "NVIDIA A100 PCIe 40GB",
    r"A100-PCIe-80GBx": "NVIDIA A100 PCIe 80GB",
    r"A100-SXM4x": "NVIDIA A100 SXM4 40GB",
    r"DGX-A100_A100-SXM-80GBx": "NVIDIA A100 SXM4 80GB",
    r"H100-PCIe-80GBx": "NVIDIA H100 PCIe 80GB",
    r"H100-SXM-80GBx": "NVIDIA H100 SXM5 80GB",
    r"H200-SXM-141GBx": "NVIDIA H200 SXM",
    r"L4x": "NVIDIA L4",
    r"L40[xX]": "NVIDIA L40",
    r"L40S[xX]": "NVIDIA L40S",
    r"T4x": "Tesla T4",
    r"TitanRTXx": "NVIDIA Titan RTX",
}
EXCLUDED = re.compile("MaxQ|Triton|MIG|Hetero|aarch64|EdgeTPU|Station|Drive|CTS")
IN_FP16 = ("NVIDIA A", "Tesla T4")  # devices whose submissions for 99.9 % are in FP16
PADDED, TOKENS = 384, 177  # of a question of SQuAD v1.1: with padding, and without on average
RESULT = re.compile(
    r"closed/([^/]+)/results/([^/]+)/(resnet|resnet50|bert-99|bert-99\.9)/(Offline|SingleStream|MultiStream)/"
    r"performance/run_1/mlperf_log_summary\.txt"
)
TABLES = {
    "NVIDIA A100 (40GB)": "NVIDIA A100 SXM4 40GB",
    "NVIDIA A30": "NVIDIA A30",
    "NVIDIA L4": "NVIDIA L4",
    "NVIDIA L40S": "NVIDIA L40S",
    "NVIDIA T4 (16GB)": "Tesla T4",
    "NVIDIA V100 (16GB, 300W)": "Tesla V100 SXM2 16GB",
}
WANTED = {("base", 128): "bert_base", ("large", 384): "bert_large"}
BATCHES = (1, 8, 128)


def git(folder: Path, *args: str) -> str:
    """Returns what git prints in a clone."""
    return subprocess.run(["git", "-C", str(folder), *args], check=True, capture_output=True, text=True).stdout


def clone(folder: Path, name: str) -> Path:
    """Returns the clone of a repository, below a folder of its name or of its owner's and its name."""
    found = [*folder.glob(f"{name}/.git"), *folder.glob(f"*{name}/repo")]
    if not found:
        raise SystemExit(f"{folder}: no clone of {name}")
    return found[0]


def device_of(system: str) -> str | None:
    """Returns the device of the catalog that a system of MLPerf has, None for others."""
    if EXCLUDED.search(system):
        return None
    return next((name for part, name in SYSTEMS.items() if re.search(rf"(^|_){part}\d+", system)), None)


def mlperf(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the points of MLPerf."""
    best: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    for number, round_ in enumerate(ROUNDS):
        where = clone(folder, f"inference_results_v{round_}")
        for path in git(where, "ls-tree", "-r", "--name-only", "HEAD", "closed").splitlines():
            if not (match := RESULT.fullmatch(path)) or not (device := device_of(match[2])):
                continue
            submitter, system, benchmark, scenario = match.groups()
            if benchmark == "bert-99.9" and not device.startswith(IN_FP16):
                continue
            if scenario == "MultiStream" and float(round_) < 2:  # before, as many streams as keep a latency
                continue
            count = int(re.findall(r"[xX](\d+)(?=_|$)", system)[0])
            rank = (submitter != "NVIDIA", -number, count, system)
            key = (device, benchmark.replace("resnet50", "resnet"), scenario)
            if key not in best or rank < best[key][0]:
                best[key] = (rank, where, round_, submitter, system, count, path)
    for (device, benchmark, scenario), (_, where, round_, submitter, system, count, path) in sorted(best.items()):
        summary = git(where, "show", f"HEAD:{path}")
        if "Result is : VALID" not in summary:
            raise SystemExit(f"{path}: not valid")
        if scenario == "Offline":
            value = float(re.search(r"Samples per second: ([\d.e+]+)", summary)[1])
            batch, unit = offline_batch(where, round_, submitter, system, benchmark), "inputs/s"
        else:
            value = float(re.search(r"Mean latency \(ns\)\s*: (\d+)", summary)[1]) / 1e6
            batch, unit = {"SingleStream": 1, "MultiStream": 8}[scenario], "ms"
        log = git(where, "show", f"HEAD:{path.replace('summary', 'detail')}")
        commit = git(where, "rev-parse", "HEAD").strip()
        yield {
            "name": f"{device}, MLPerf {round_} {benchmark} {scenario}",
            "device": device,
            "count": count if scenario == "Offline" else 1,
            "model": "resnet50" if benchmark.startswith("resnet") else "bert_large",
            **({} if benchmark.startswith("resnet") else {"sequence": TOKENS, "padded": PADDED}),
            "batch": batch,
            "precision": "fp16" if benchmark == "bert-99.9" else "int8",
            "scenario": scenario,
            "value": value,
            "unit": unit,
            "date": re.search(r"build_date_local.{0,20}?(\d{4}-\d\d-\d\d)", log)[1],
            "source": f"https://github.com/mlcommons/inference_results_v{round_}/blob/{commit}/{path}",
        }


def offline_batch(where: Path, round_: str, submitter: str, system: str, benchmark: str) -> int:
    """Returns the batch of a submission's configuration, whose form differs between rounds."""
    network = "resnet50" if benchmark.startswith("resnet") else "bert"
    of = re.sub(r"^DGX-(A100|H100)_|_TRT.*", "", system)
    if round_ == "0.5":
        content = git(where, "show", f"HEAD:closed/{submitter}/measurements/{system}/{benchmark}/Offline/config.json")
        return int(re.search(r'"gpu_batch_size": (\d+)', content)[1])
    base = f"HEAD:closed/{submitter}/configs/{network}/Offline"
    if float(round_) < 1.1:
        content = json.loads(git(where, "show", f"{base}/config.json"))
        return int(content[of.replace("DGX-", "").replace("A100_A100", "A100")]["gpu_batch_size"])
    sizes: dict[str, int | None] = {}
    for file in ("__init__.py", "custom.py"):
        if file in git(where, "ls-tree", "--name-only", base + "/"):
            sizes |= class_batches(git(where, "show", f"{base}/{file}").replace("\N{NO-BREAK SPACE}", " "))
    plain = {re.sub(r"[-_]", "", name).lower(): size for name, size in sizes.items()}
    wanted = re.sub(r"[-_]", "", of).lower() + ("highaccuracy" if benchmark == "bert-99.9" else "")
    size = plain.get(wanted)
    if size is None:
        raise SystemExit(f"{submitter} {round_} {network}: no batch of {wanted} among {[*sizes]}")
    return size


def class_batches(source: str) -> dict[str, int | None]:
    """Returns the batches of the classes of a configuration; a class has that of its base, if none of its own."""
    sizes: dict[str, int | None] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            inherited = [sizes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in sizes]
            sizes[node.name] = inherited[0] if inherited else None
            for line in node.body:
                if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "gpu_batch_size":
                    value = ast.literal_eval(line.value)
                    sizes[node.name] = next(iter(value.values())) if isinstance(value, dict) else value
    return sizes


def tensorrt(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the points of TensorRT's demo/BERT."""
    where, path = clone(folder, "TensorRT"), "demo/BERT/README.md"
    names = git(where, "for-each-ref", "--format=%(refname:short)", "--sort=version:refname").split()
    taken: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        if re.search(r"release/\d", name) and path in git(where, "ls-tree", "--name-only", name, "demo/BERT/"):
            commit = git(where, "rev-parse", name).strip()
            date = git(where, "log", "-1", "--format=%as", name).strip()
            release = name.rpartition("/")[2]
            for device, rows in readme_tables(git(where, "show", f"{name}:{path}")).items():
                if any(values(rows) == values(taken[other]) for other in taken.keys() - {device}):
                    continue
                url = f"https://github.com/NVIDIA/TensorRT/blob/{commit}/{path}"
                start = {"device": device, "count": 1, "scenario": "table", "date": date, "source": url}
                taken[device] = [
                    {**row, **start, "name": f"{device}, TensorRT {release} {row['name']}"} for row in rows
                ]
    for device in sorted(taken):
        yield from taken[device]


def values(rows: list[dict[str, Any]]) -> list[float]:
    """Returns the figures of a table."""
    return [row["value"] for row in rows]


def readme_tables(text: str) -> dict[str, list[dict[str, Any]]]:
    """Returns device → rows of the tables in a README. Average latencies: 5th column in INT8, 8th in FP16."""
    rows: dict[str, list[dict[str, Any]]] = {}
    device = size = ""
    for line in text.splitlines():
        if head := re.match(r"#+ Inference [pP]erformance:? (.*)", line):
            device, size = TABLES.get(head[1].strip(), ""), ""
        elif head := re.match(r"#+ (BERT|Megatron) ?(\w*)", line):
            size = head[2].lower() if head[1] == "BERT" else ""
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if device and len(cells) == 8 and cells[0].isdigit():
            sequence, batch = int(cells[0]), int(cells[1])
            if model := WANTED.get((size, sequence)) if batch in BATCHES else None:
                for precision, column in (("int8", 4), ("fp16", 7)):
                    if precision == "int8" and "V100" in device:  # it has no matrix units for INT8
                        continue
                    row = {"name": f"{model} {precision} {batch}", "model": model, "sequence": sequence}
                    row |= {"batch": batch, "precision": precision, "value": float(cells[column]), "unit": "ms"}
                    rows.setdefault(device, []).append(row)
    return rows


def main(folder: Path) -> None:
    points = [*mlperf(folder), *tensorrt(folder)]
    devices = sorted({p["device"] for p in points})
    for device in devices:
        load().device(device)
    held = set(devices[1::2])
    print(
        "# Published throughput and latency. Written by `python -m benchmarks.advise.collect`, which states the rules."
    )
    print(
        f"# MLPerf: the mean latency; BERT's inputs padded to {PADDED} tokens have {TOKENS} on average: padding is 54 %"
    )
    print("# of SQuAD v1.1 (https://openreview.net/forum?id=3nzKUh9a4M), and NVIDIA's submissions cut it off.")
    for p in points:
        print("\n[[point]]")
        for key in ("name", "device", "count", "model", "sequence", "padded", "batch", "precision", "scenario"):
            if key in p:
                print(f"{key} = {json.dumps(p[key])}")
        for key in ("value", "unit", "date", "source"):
            print(f"{key} = {json.dumps(p[key])}")
        print(f"held_out = {json.dumps(p['device'] in held)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
