"""`pelton advise`: the machine around devices against sums by hand, kinds of user, data sets, this CPU's row."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

import pelton
from pelton.advise import dataset, devices, machine, users
from pelton.advise.catalog import load
from pelton.advise.choosing.page import BY_USER
from pelton.advise.machine import RentalPrices
from pelton.advise.predict import RunningCosts
from pelton.advise.profile import BandwidthLevel, assumed
from pelton.advise.work import import_batches, input_bytes, plan_work
from pelton.cli import main

CATALOG = load()
SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"
CARD, I9, EPYC = CATALOG.device("RTX 4090"), CATALOG.device("Intel Core i9-13900K"), CATALOG.device("AMD EPYC 9354")


def net() -> pelton.Network:
    out = pelton.Network("small")
    x = out.input("x", "f32[batch, 3, 16, 16]")
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    out.output(out.global_average_pool(out.relu(out.convolution(x, weight, padding=1))), "y")
    return out


@pytest.fixture
def model(tmp_path):
    pelton.export_onnx(net(), tmp_path / "small.onnx")
    return str(tmp_path / "small.onnx")


# --- the machine


@pytest.mark.parametrize("count", (1, 4))
def test_the_supply_by_hand(count):
    part = machine.supply(CARD, count, I9)
    total = count * CARD.power_w + I9.power_w + 150
    spikes = (3 * count * CARD.power_w + I9.power_w + 150) / 2
    least = max(1.25 * total, CARD.psu_w + (count - 1) * CARD.power_w * 1.25, spikes)
    assert part.figures["sum_w"] == total and part.figures["for_spikes_w"] == spikes
    assert least <= part.figures["supply_w"] < least + 50 and part.ok == (part.figures["supply_w"] <= 1800)
    assert f"{total:.0f} W" in part.text and all(s.startswith("https://") for s in part.sources)


def test_a_supply_without_a_published_power():
    part = machine.supply(replace(CARD, power_w=None), 2, I9)
    assert "no source states the power of GeForce RTX 4090" in part.text and part.ok is None and not part.figures


@pytest.mark.parametrize(
    "cpu, count, width", [(I9, 1, 16), (I9, 2, 8), (I9, 3, 4), (I9, 4, 4), (I9, 40, 1), (EPYC, 4, 16), (EPYC, 8, 8)]
)
def test_lanes_fall_with_the_cards(cpu, count, width):
    part, lanes = machine.link(CARD, cpu, count)
    assert lanes == width and part.ok == (width == 16) and part.figures["needed"] == 16 * count + 4
    narrow = CATALOG.device("RTX 4060")
    assert machine.link(narrow, cpu, count)[1] == min(width, narrow.lanes)


def test_the_time_to_copy_inputs_is_that_of_the_slower_end():
    (size,) = import_batches(net(), [8])
    bytes_of = {8: input_bytes(size)}
    assert bytes_of[8] == 8 * 3 * 16 * 16 * 4

    class Run:
        seconds, work = 1e-3, type("W", (), {"batch": 8})

    (c,) = machine.copy_times(CARD, I9, 4, [Run], bytes_of)
    assert c.full == pytest.approx(bytes_of[8] / (16 * 1.969e9)) and c.here == pytest.approx(4 * c.full)
    old = machine.copy_times(CARD, CATALOG.device("Intel Core i7-7700K"), 16, [Run], bytes_of)
    assert old[0].here == pytest.approx(bytes_of[8] / (16 * 0.985e9)), "a CPU with PCIe 3.0"
    assert machine.copy_times(CARD, I9, None, [Run], bytes_of) == ()


def test_fixed_batches_scale_their_inputs():
    fixed = pelton.Network("fixed")
    fixed.output(fixed.relu(fixed.input("x", "f32[2, 10]")), "y")
    (size,) = import_batches(fixed, [6])
    assert input_bytes(size) == 6 * 10 * 4


def test_space_memory_and_cooling():
    assert machine.space(CARD, 2).ok and not machine.space(CARD, 4).ok
    assert machine.space(CARD, 4).figures["slots"] == 4 * CARD.slots
    assert "module" in machine.space(CATALOG.device("NVIDIA A100 SXM4 80GB"), 1).text
    part = machine.memory(CARD, 4, 1e9, 300e9)
    assert part.figures["least_gb"] == 96 and part.figures["with_data_gb"] == 281
    assert machine.memory(CARD, 1, 100 * 2**30, 0).figures["least_gb"] == 100
    assert "blowers" in machine.cooling(CARD, 2, I9).text
    assert "air flow of a server" in machine.cooling(CATALOG.device("L4"), 1, EPYC).text


def test_market_and_licence():
    kinds = {d.name: machine.market(d) for d in CATALOG if d.kind == "gpu"}
    assert kinds["GeForce RTX 4090"] == kinds["NVIDIA Titan RTX"] == kinds["Radeon RX 7900 XTX"] == "consumer"
    assert kinds["NVIDIA RTX A6000"] == "workstation" and kinds["NVIDIA L4"] == kinds["Tesla T4"] == "data center"
    assert "No Datacenter Deployment" in machine.licence(CARD, 1).text and machine.licence(CARD, 1).sources
    for other in ("L4", "Radeon RX 7900 XTX", "NVIDIA RTX A6000"):
        assert "No Datacenter" not in machine.licence(CATALOG.device(other), 1).text
    said = [machine.licence(CARD, n).text for n in (1, 50, 500)]
    assert "offices" in said[0] and "DGX" in said[1] and "over a hundred" in said[2]
    assert machine.licence(CARD, 500).ok is False and machine.licence(CATALOG.device("L4"), 500).ok


def test_rent_or_buy_by_hand():
    costs = RunningCosts(0.25, 3.0)
    part = machine.rent_or_buy(CARD, RentalPrices(0.5, 200), costs)
    month, hour = 1599 / 36, 0.45 * 0.25
    even = part.figures["break_even_hours"]
    assert even == pytest.approx(month / (0.5 - hour)) and f"{even:.0f} hours" in part.text
    assert part.figures["rent_month"] == 100 and part.figures["buy_month"] == pytest.approx(month + 200 * hour)
    assert ": buy." in part.text and ": rent." in machine.rent_or_buy(CARD, RentalPrices(0.5, 50), costs).text
    at_even = machine.rent_or_buy(CARD, RentalPrices(0.5, even), costs).figures
    assert at_even["rent_month"] == pytest.approx(at_even["buy_month"])
    assert "cheaper than the energy" in machine.rent_or_buy(CARD, RentalPrices(0.1), costs).text
    assert "more than the 730" in machine.rent_or_buy(CARD, RentalPrices(0.15), costs).text
    assert "no source states the price" in machine.rent_or_buy(replace(CARD, price=None), RentalPrices(1), costs).text


def test_batches_of_one_parsed_file_are_those_of_files_of_their_own(model):
    together = [plan_work(size) for size in import_batches(model, [1, 4, 9])]
    alone = [plan_work(size) for batch in (1, 4, 9) for size in import_batches(model, [batch])]
    assert together == alone and [w.batch for w in together] == [1, 4, 9]


# --- users and data


def test_profiles_name_devices_of_the_catalog_and_cover_the_guides():
    for user in users.PROFILES:
        rows = [CATALOG.device(name) for name in user.devices]
        assert len({r.name for r in rows}) == len(rows) >= 5 and all(r.dense for r in rows)
        assert set(user.weigh) <= set(users.WEIGHTS) and user.sentence().count("\n") == 0
        if user.budget is not None:
            assert sum(r.price is not None and r.price.amount <= user.budget for r in rows) >= 2, user.name
    covered = [kind for user in users.PROFILES for kind in user.guides]
    assert {kind for kind, _ in BY_USER} | {"a cluster"} == set(covered) and len(covered) == len(set(covered)) == 10


def test_a_data_set_by_hand():
    found = dataset.dataset_advice(300e9)
    assert found.seconds["SATA"] == pytest.approx(500) and found.disk == 600e9
    assert "8.33 min from SATA" in found.sentences()[0] and len(found.sentences()) == 2
    assert len(dataset.dataset_advice(10e9).sentences()) == 1
    assert [dataset.readable(s) for s in (5, 90, 7200)] == ["5 s", "1.5 min", "2 h"]


# --- this CPU's row


@pytest.mark.parametrize(
    "model, row",
    [
        ("AMD EPYC 7302 16-Core Processor", "AMD EPYC 7302"),
        ("AMD EPYC 7302P 16-Core Processor", None),
        ("13th Gen Intel(R) Core(TM) i9-13900K", "Intel Core i9-13900K"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "Intel Xeon Gold 6148"),
        ("Intel(R) Xeon(R) CPU           X5650  @ 2.67GHz", "Intel Xeon X5650"),
        ("AMD Ryzen Threadripper PRO 3995WX 64-Cores", "AMD Ryzen Threadripper PRO 3995WX"),
        ("AMD EPYC", None),
        ("", None),
    ],
)
def test_model_names_of_systems_lead_to_one_row_or_none(model, row):
    found = devices.row_of_cpu(model, CATALOG)
    assert (found.name if found else None) == row


def test_every_cpu_of_the_catalog_is_its_own_row():
    for d in CATALOG:
        if d.kind == "cpu":
            assert devices.row_of_cpu(d.name, CATALOG) == d
    twice = [*CATALOG, replace(EPYC, name="another", aliases=(EPYC.name,))]
    assert devices.row_of_cpu(EPYC.name, twice) is None, "ambiguous"


def test_this_cpu_has_price_and_power_of_its_row(monkeypatch):
    monkeypatch.setattr(devices, "peak", lambda isa, threads: (500.0, 40.0))
    known = devices.cpu.describe()
    for name, row in (("AMD EPYC 7302 16-Core Processor", CATALOG.device("AMD EPYC 7302")), ("AMD EPYC", None)):
        monkeypatch.setattr(devices.cpu, "describe", lambda name=name: {**known, "model": name})
        found = devices.this_cpu(None, CATALOG)
        assert (found.power_w, found.price) == ((row.power_w, row.price) if row else (None, None))


def test_a_profile_of_a_gpu_has_no_price_of_the_cpu_beside_it():
    levels = (BandwidthLevel("memory", 100.0),)
    own = replace(assumed("cpu"), peaks={"fp32": 1.0}, levels=levels, machine={"cpu": "AMD EPYC 7302"})
    row = CATALOG.device("AMD EPYC 7302")
    found = devices.of_profile(own, CATALOG)
    assert (found.price, found.power_w) == (row.price, row.power_w)
    found = devices.of_profile(replace(own, kind="gpu"), CATALOG)
    assert (found.price, found.power_w) == (None, None)
    mine = replace(own, machine={"cpu": "AMD EPYC 7302", "power_w": 99.0})
    assert devices.of_profile(mine, CATALOG).power_w == 99.0


# --- the command


def test_the_answer_has_machines_user_and_data(capsys, model, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    schemas = {n: json.loads((SCHEMAS / n).read_text()) for n in ("advise.json", "common.json")}
    known = referencing.Registry().with_resources(
        (n, referencing.Resource.from_contents(s)) for n, s in schemas.items()
    )
    validator = jsonschema.Draft202012Validator(schemas["advise.json"], registry=known)
    flags = ["--devices", "RTX 4090,NVIDIA H100 SXM5 80GB", "--count", "4", "--dataset", "300GB", "--batch", "1,8"]
    assert main(["advise", model, *flags, "--rent-price", "0.5", "--hours", "100", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    validator.validate(found)
    by_name = {m["device"]: m for m in found["machines"]}
    card = by_name["GeForce RTX 4090"]
    assert card["cpu"] == "Intel Core i9-13900K" and card["cpu_assumed"] and card["count"] == 4
    parts = [p["part"] for p in card["parts"]]
    assert parts == ["power", "space", "lanes", "memory", "cooling", "market", "rent"]
    assert [c["batch"] for c in card["copies"]] == [1, 8]
    assert card["copies"][0]["ms"] == pytest.approx(4 * card["copies"][0]["full_ms"])
    assert by_name["NVIDIA H100 SXM5 80GB"]["copies"] == [] and found["dataset"]["bytes"] == 300e9
    assert main(["advise", model, "--profile", "starter", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    validator.validate(found)
    assert found["user"]["name"] == "starter" and found["precision"] == "fp16" and found["limits"]["budget"] == 500
    assert {r["batch"] for r in found["rows"]} == {1, 8} and len(found["user"]["best"]) == 2


def test_options_override_a_profile(capsys, model):
    flags = ["--profile", "nlp", "--batch", "4", "--precision", "fp32", "--devices", "L4", "--budget", "9999"]
    assert main(["advise", model, *flags, "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(r["device"], r["batch"]) for r in found["rows"]] == [("NVIDIA L4", 4)]
    assert found["precision"] == "fp32" and found["limits"]["budget"] == 9999


def test_the_text_and_the_page_have_the_machine(capsys, model, tmp_path):
    page = tmp_path / "page.html"
    flags = ["--devices", "RTX 4090", "--count", "4", "--cpu", "AMD EPYC 9354", "--html", str(page)]
    assert main(["advise", model, *flags, "-q"]) == 0
    said = capsys.readouterr().out
    assert "machine with 4 × GeForce RTX 4090 and AMD EPYC 9354\n" in said and "! power: at least" in said
    assert "each card has its ×16" in said and "to copy" in said and "data set" not in said
    assert "machine with 4 × GeForce RTX 4090" in page.read_text()
    assert main(["advise", model, "--devices", "RTX 4090", "-q"]) == 0
    assert "machine with" not in capsys.readouterr().out


def test_a_model_is_parsed_once_and_planned_once_for_each_kind_and_batch(capsys, model, monkeypatch):
    from pelton.advise import work
    from pelton.importers.onnx import file

    planned, reads = [], []
    plan, parse = work.plan_work, file.parse
    monkeypatch.setattr(work, "plan_work", lambda *args: planned.append(args[1:]) or plan(*args))
    monkeypatch.setattr(file, "parse", lambda *args: reads.append(args[1]) or parse(*args))
    assert main(["advise", model, "--batch", "1,8", "--devices", "RTX 30*,RTX 40*,RTX 50*,AMD EPYC*", "-q"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 2 * 35
    assert sorted(planned) == [("fp32", "cpu")] * 2 + [("fp32", "cuda:sm_80")] * 2 and reads == [model]


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--hours", "10"], "add --rent-price"),
        (["--hours", "800", "--rent-price", "1"], "at most 744 hours"),
        (["--profile", "kagle"], "did you mean 'kaggle'?); known: starter, kaggle, cv, nlp, startup, cluster"),
        (["--cpu", "L4"], "is no CPU"),
        (["--cpu", "i9-13900Q"], "near names: Intel Core i9-13900K"),
        (["--dataset", "0"], "such as 300GB"),
        (["--count", "2", "--devices", "AMD EPYC 7742"], "needs a GPU of the catalog"),
    ],
)
def test_wrong_input_is_one_sentence(capsys, model, flags, said):
    devices_of = [] if "--devices" in flags else ["--devices", "L4"]
    assert main(["advise", model, *devices_of, *flags, "-q"]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize("flags", (["--count", "0"], ["--rent-price", "-1"], ["--dataset", "much"], ["--hours", "nan"]))
def test_wrong_numbers_are_usage(capsys, model, flags):
    with pytest.raises(SystemExit):
        main(["advise", model, *flags])
    assert flags[0] in capsys.readouterr().err
