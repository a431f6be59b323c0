"""Results of benchmarks/gpu: gates, merging part by part, and the page."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import child  # noqa: E402
from benchmarks.gpu import page, parts, results, suite  # noqa: E402


# ---- results


def result(ms: float, off: float = 1e-3, **more: Any) -> dict[str, Any]:
    return {"passes": [{"ms": ms, "spread": 1.02, "host_ms": ms}] * 2, "off": off, **more}


def some() -> dict[str, Any]:
    """Results of most parts, as good as they must be."""
    engine = dict(start_s=0.1, engine_bytes=60_000_000, weight_bytes=51_000_000, build_s=9.0, steps=60, alone_ms=0.4)
    found: dict[str, Any] = {
        f"networks-{m}": {"fp32": {"off": 1e-6}, "fp16": {"off": 1e-3}, "bf16": {"off": 1e-2}, "wrong": {}}
        for m in suite.MODELS
    }
    times = {"resnet50": 0.3, "resnet50_b128": 4.0, "bert_base": 0.4, "bert_base_b32": 1.5}
    for e in suite.ENTRIES:
        ms = times.get(e, 1.0)
        found[e] = {
            "batch": suite.ENTRIES[e].batch,
            "flops": 700_000_000_000,
            "wrong": {},
            "runtimes": {
                "pelton": result(ms, **engine),
                "torch": result(2 * ms),
                "torch.compile": result(1.2 * ms),
                "jax": result(ms / 2, off=0.5),
            },
        }
    found["ceilings"] = {
        "f16": [{"TFLOP_per_s": 780.0, "spread": 1.0}] * 2,
        "copy": [{"TB_per_s": 4.3, "spread": 1.0}] * 2,
        "starts": {"launch_us": 3.0},
    }
    return {"gpu": "NVIDIA H200", "machine": {"driver": "580"}, "parts": found}


def test_gates_hold_as_they_should():
    found = some()
    # what is wrong does not count
    assert all(g.holds for g in results.gates(found)) and results.lead(found["parts"]["lstm"]) == pytest.approx(1.2)
    # nor does it where it is Pelton's
    assert math.isnan(results.ms({"runtimes": {"pelton": result(0.1, off=0.5)}}))
    found["parts"]["googlenet"]["runtimes"]["torch"] = result(0.8)
    found["parts"]["networks-lstm"]["fp32"]["off"] = 3e-3
    del found["parts"]["resnet50_b128"], found["parts"]["ceilings"]
    known = {g.what.split(":")[0]: g.holds for g in results.gates(found)}
    assert (
        known["best other runtime / Pelton"] is False
        and known["all six models right in fp32"] is False
        and known["all six models right in fp16"] is True
    )
    assert known["resnet50, batch 128"] is known["bert_base, 32 × 128"] is None
    assert {g.holds for g in results.gates({"parts": {}})} == {None}


def test_results_come_together_part_by_part(tmp_path, monkeypatch):
    assert [results.file_name(n) for n in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Fake 0")] == [
        "h200",
        "a100-sxm4-80gb",
        "fake-0",
    ]
    results.write(some(), tmp_path)
    monkeypatch.setitem(
        parts.PARTS, "ceilings", lambda run, found: found.update(copy=[{"TB_per_s": 5.0, "spread": 1.0}])
    )
    calls = []

    def half(run: parts.Run, found: dict[str, Any]) -> None:
        calls.append(run.seed)
        found["fp32"] = {"off": 1e-6}
        raise child.Failed("the GPU is lost")

    monkeypatch.setitem(parts.PARTS, "networks-lstm", half)
    from benchmarks.gpu import __main__ as command

    monkeypatch.setattr(command, "describe", lambda: {"model": "NVIDIA H200", "isa": "sm_90"})
    monkeypatch.setattr(command, "versions", lambda gpu: {"driver": "581"})

    def run(*given: str) -> int:
        monkeypatch.setattr(
            sys, "argv", ["benchmarks.gpu", "--output", str(tmp_path), "--room", str(tmp_path / "room"), *given]
        )
        return command.main()

    assert (
        run("--only", "ceilings") == 0
        and json.loads((tmp_path / "h200.json").read_text())["parts"]["ceilings"]["copy"][0]["TB_per_s"] == 4.3
    )
    assert run("--only", "ceilings", "--only", "networks-lstm", "--again", "--seed", "5") == 1 and calls == [5]
    found = json.loads((tmp_path / "h200.json").read_text())
    assert found["parts"]["ceilings"]["copy"][0]["TB_per_s"] == 5.0 and found["machine"] == {"driver": "581"}
    assert found["parts"]["networks-lstm"]["fp32"] and found["parts"]["networks-lstm"]["error"] == "the GPU is lost"
    assert {g["gate"].split(":")[0]: g["holds"] for g in found["gates"]}["resnet50, batch 1"] is True
    text = (tmp_path / "h200.md").read_text()
    assert (
        "networks-lstm: the GPU is lost" in text
        and "| resnet50_b128 | 4.000 / 4.000 (±1%)" in text
        and "off 5e-01" in text
    )
    assert run("--only", "networks-lstm") == 1 and len(calls) == 2  # what failed is tried again
    assert run("--only", "ceilings") == 0

    def strange(run: parts.Run, found: dict[str, Any]) -> None:
        calls.append(0)
        raise KeyError("strange")

    monkeypatch.setitem(parts.PARTS, "sanitizer", strange)
    # the new one first
    assert run("--only", "networks-lstm", "--only", "sanitizer", "--jobs", "1") == 1
    assert calls[2] == 0 and len(calls) == 4
    found = json.loads((tmp_path / "h200.json").read_text())["parts"]
    assert found["sanitizer"]["error"] == "KeyError: 'strange'" and found["networks-lstm"]["error"]
    # no part begins that has no time left
    assert run("--only", "networks-lstm", "--seconds", "1") == 1 and len(calls) == 4
    with pytest.raises(SystemExit):
        run("--only", "everything")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h200.json", "h200.md", "room"]


def test_a_page_of_nothing_says_so():
    assert "not measured" in page.page({"gpu": "NVIDIA H200", "machine": {}, "parts": {}})
