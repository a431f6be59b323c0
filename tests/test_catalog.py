"""The catalog of devices: its figures agree with each other and with what the makers say of their architectures; a
user's file is read over it, and every fault in a file is one clear sentence. Also docs/choosing.md and its tables."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

from pelton.advise import choosing
from pelton.advise.catalog import PRECISIONS, load
from pelton.advise.catalog.reader import KEYS, catalog_files
from pelton.advise.choosing import page
from pelton.errors import InputAbsent, InputError

DOCS = Path(__file__).parents[1] / "docs"
CATALOG = load()
ROW = '[[device]]\nname = "X"\nvendor = "V"\nkind = "gpu"\nform = "card"\narchitecture = "A"\nyear = 2026\n'

# First and last year of devices of an architecture; Jetson modules come later than cards.
YEARS = {
    **{"Fermi": (2010, 2011), "Kepler": (2012, 2014), "Maxwell": (2014, 2019), "Pascal": (2016, 2017)},
    **{"Volta": (2017, 2020), "Turing": (2018, 2021), "Ampere": (2020, 2024), "Ada": (2022, 2024)},
    **{"Hopper": (2022, 2024), "Blackwell": (2024, 2026)},
    **{"GCN 5": (2017, 2018), "CDNA": (2020, 2020), "CDNA 2": (2021, 2022), "CDNA 3": (2023, 2024)},
    **{"CDNA 4": (2025, 2026), "RDNA 2": (2020, 2022), "RDNA 3": (2022, 2024), "RDNA 4": (2025, 2026)},
    **{"Zen": (2017, 2017), "Zen 2": (2019, 2020), "Zen 3": (2020, 2021), "Zen 4": (2022, 2023)},
    **{"Neoverse N1": (2019, 2021), "Sapphire Rapids": (2023, 2023), "Ice Lake-SP": (2021, 2021)},
}
# Sizes of memory in GB.
SIZES = (1.5, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 18, 20, 24, 32, 36, 40, 48, 64, 80, 94, 95, 96, 100, 128, 141)
LARGE_SIZES = (180, 186, 192, 256, 287.5, 288)
# Operations per clock of a core: two, or four where two instructions are issued at once.
DUAL = ("RDNA 3", "RDNA 4", "CDNA 3")
# Peaks whose FP32 is that of the base clock.
AT_BASE = ("GeForce GTX 680", "GeForce GTX 780", "GeForce GTX 780 Ti", "GeForce GTX Titan", "GeForce GTX Titan Black")
# INT8 units that are not twice as fast as FP16 by design: these have few of them, or none for matrices.
FEW_INT8 = ("NVIDIA B300 SXM", "NVIDIA GB300 (one GPU)")
# GeForce cards: precision → multiple of FP32 (white papers of the architectures).
GEFORCE = {
    "RTX 20": {"fp16": 4, "fp16_acc16": 8, "int8": 16, "int4": 32},
    "RTX 30": {"bf16": 2, "fp16": 2, "fp16_acc16": 4, "int8": 8, "int4": 16},
    "RTX 40": {"tf32": 1, "bf16": 2, "fp16": 2, "fp16_acc16": 4, "fp8": 4, "int8": 8, "int4": 16},
    "RTX 50": {"bf16": 2, "fp16": 2, "fp16_acc16": 4, "fp8": 4, "int8": 8, "fp4": 16},
}


def close(a: float, b: float, tolerance: float = 0.03) -> bool:
    return math.isclose(a, b, rel_tol=tolerance)


def wrong(check) -> list[str]:
    """Names of the devices for which a check returns False; None: it does not apply."""
    return [d.name for d in CATALOG if check(d) is False]


def test_the_comparer_notices():
    assert close(1.02, 1) and not close(1.04, 1)
    assert wrong(lambda d: d.year < 2011) and wrong(lambda d: None) == []


def test_devices_of_all_kinds_are_there():
    assert len(CATALOG) > 230
    counts = {path.stem: sum(str(path) in d.files for d in CATALOG) for path in catalog_files()}
    assert all(count >= 10 for count in counts.values()), counts
    assert {d.kind for d in CATALOG} == {"gpu", "cpu", "npu", "soc"}


def test_every_row_has_a_source():
    assert not wrong(lambda d: bool(d.sources))
    assert not wrong(lambda d: all(s.url.startswith(("https://", "http://")) and s.supports for s in d.sources))


def test_no_name_or_alias_is_there_twice():
    names = [name.lower() for d in CATALOG for name in {d.name, *d.aliases}]
    assert len(names) == len(set(names))


def test_fp32_is_cores_times_clock():
    def check(d):
        if d.kind != "gpu" or not (d.cores and d.clock_mhz and d.peak("fp32")):
            return None
        clock = d.base_mhz if d.name in AT_BASE else d.clock_mhz
        return close(d.peak("fp32"), d.cores * (4 if d.architecture in DUAL else 2) * clock / 1e6)

    assert not wrong(check)
    assert sum(check(d) is True for d in CATALOG) > 100


def test_bandwidth_is_width_times_rate():
    def check(d):
        return close(d.bandwidth_gbs, d.memory_bits / 8 * d.memory_gtps) if d.memory_bits and d.memory_gtps else None

    assert not wrong(check)
    assert sum(check(d) is True for d in CATALOG if d.name != "GeForce GTX 970") > 90


def test_bandwidth_of_cpus_is_channels_times_transfers():
    def check(d):
        given = d.kind == "cpu" and d.channels and d.memory_mtps and d.bandwidth_gbs
        return close(d.bandwidth_gbs, d.channels * 8 * d.memory_mtps / 1000) if given else None

    assert not wrong(check)
    assert sum(check(d) is True for d in CATALOG) > 30


def test_peaks_of_cpus_are_cores_times_clock_times_lanes():
    def check(d):
        if d.kind != "cpu" or not d.dense or not d.fma_units:
            return None
        peak = d.cores * d.base_mhz * d.vector_bits / 32 * 2 * d.fma_units / 1e6
        return close(d.peak("fp32"), peak, 1e-3) and close(d.peak("fp64"), peak / 2, 1e-3)

    assert not wrong(check)
    assert sum(check(d) is True for d in CATALOG) > 35


def test_halves_are_twice_as_fast_as_tf32():
    def check(d):
        wide, half = d.peak("tf32"), d.peak("fp16")
        return close(half, 2 * wide) if d.vendor == "NVIDIA" and wide and half else None

    assert not wrong(check)
    assert sum(check(d) is True for d in CATALOG) > 25


def test_bytes_are_twice_as_fast_as_halves():
    def check(d):
        half, byte = d.peak("fp16_acc16") or d.peak("fp16"), d.peak("int8")
        tensor = d.vendor == "NVIDIA" and d.kind == "gpu" and half and byte and d.name not in FEW_INT8
        return close(byte, 2 * half) if tensor else None

    assert not wrong(check)
    assert sum(check(d) is True for d in CATALOG) > 55


@pytest.mark.parametrize("wide, narrow", [("int8", "int4"), ("bf16", "fp8")])
def test_narrower_formats_are_faster_by_two(wide, narrow):
    def check(d):
        a, b = d.peak(wide), d.peak(narrow)
        data_center = d.vendor == "NVIDIA" and d.kind == "gpu" and a and b
        return close(b, 2 * a) if data_center else None

    assert not wrong(check)
    assert any(check(d) is True for d in CATALOG)


def test_sparse_is_twice_dense():
    def check(d):
        pairs = [(d.sparse[p], d.dense[p]) for p in d.sparse if p in d.dense]
        return all(close(sparse, 2 * dense, 0.01) for sparse, dense in pairs) if pairs else None

    assert not wrong(check)
    assert sum(check(d) is True for d in CATALOG) > 40
    assert not wrong(lambda d: not d.sparse if d.architecture in ("Fermi", "Pascal", "Volta", "Turing") else None)


@pytest.mark.parametrize("series", GEFORCE)
def test_derived_peaks_are_those_of_the_architecture(series):
    cards = [d for d in CATALOG if d.name.startswith(f"GeForce {series}")]
    assert len(cards) >= 8
    for card in cards:
        for precision, ratio in GEFORCE[series].items():
            assert close(card.peak(precision), ratio * card.peak("fp32"), 1e-3), (card.name, precision)
            assert precision in card.derived
        assert {"fp64", "fp32"}.isdisjoint(card.derived)


def test_published_peaks_match_the_derived():
    """Figures of white papers that were quoted for one card of each series."""
    for name, precision, published in (
        *(("RTX 2080 Ti", "fp16", 53.8), ("RTX 2080 Ti", "fp16_acc16", 107.6)),
        *(("RTX 3080", "fp16", 59.5), ("RTX 3090", "int8", 284), ("RTX 3090", "fp16", 71)),
        *(("RTX 4090", "fp16", 165.2), ("RTX 4090", "fp8", 330.3), ("RTX 4090", "int8", 660.6)),
        *(("RTX 5090", "bf16", 209.5), ("RTX 5090", "fp4", 1676), ("RTX 5090", "int8", 838)),
    ):
        assert close(CATALOG.device(name).peak(precision), published, 0.005), (name, precision)


def test_memory_has_known_sizes():
    assert not wrong(lambda d: d.memory_gb in SIZES + LARGE_SIZES if d.memory_gb else None)


def test_years_fit_the_architecture():
    def check(d):
        first, last = YEARS.get(d.architecture, (2010, 2026))
        return first <= d.year <= last

    assert not wrong(check)


def test_figures_are_within_bounds():
    assert not wrong(lambda d: 1 < d.power_w < 1500 if d.power_w else None)
    assert not wrong(lambda d: 15 < d.bandwidth_gbs < 10000 if d.bandwidth_gbs else None)
    assert not wrong(lambda d: d.base_mhz <= d.clock_mhz if d.base_mhz and d.clock_mhz else None)
    assert not wrong(lambda d: d.lanes in (4, 8, 9, 10, 16, 20, 24, 28, 40, 44, 48, 64, 80, 128) if d.lanes else None)
    assert not wrong(lambda d: 60 < d.length_mm < 350 if d.length_mm else None)
    assert not wrong(lambda d: d.psu_w >= d.power_w if d.psu_w and d.power_w else None)
    assert not wrong(lambda d: 50 < d.price.amount < 50000 if d.price else None)
    assert not wrong(lambda d: int(d.price.date[:4]) >= d.year - 1 if d.price else None)


def test_peaks_fall_with_precision():
    """Wider formats are never faster, vector against vector and matrix against matrix."""
    for order in (("fp64", "fp32"), ("tf32", "fp16"), ("fp16", "int8"), ("fp8", "fp4"), ("int8", "int4")):
        wide, narrow = order

        def check(d, wide=wide, narrow=narrow):
            both = d.peak(wide) and d.peak(narrow) and d.name not in FEW_INT8
            return d.peak(wide) <= d.peak(narrow) * 1.01 if both else None

        assert not wrong(check), order


def test_what_the_guides_say_of_devices():
    """Facts 2 to 6 of the guides, with their corrections."""
    by = CATALOG.device
    i7, gtx980 = by("i7-5960X"), by("GTX 980")
    assert (i7.cores, i7.threads, i7.architecture, gtx980.cores) == (8, 16, "Haswell-E", 16 * 128)
    x5650, m2070, k20, gtx970 = by("X5650"), by("Tesla M2070"), by("Tesla K20"), by("GTX 970")
    assert (x5650.cores, x5650.threads) == (6, 12) and close(x5650.peak("fp32"), 0.1248)
    assert close(x5650.peak("fp32") * 1000 / x5650.power_w, 1.31)
    assert (m2070.cores, m2070.memory_gb, m2070.clock_mhz) == (14 * 32, 6, 1150)
    assert close(m2070.peak("fp32"), 1.030) and close(m2070.bandwidth_gbs, 150)
    assert (k20.cores, k20.memory_gb, k20.bandwidth_gbs) == (13 * 192, 5, 208)
    assert close(k20.peak("fp32"), 3.524) and close(k20.peak("fp32") * 1000 / k20.power_w, 15.7)
    assert (gtx970.cores, gtx970.base_mhz, gtx970.price.amount) == (13 * 128, 1050, 329)
    assert close(gtx970.cores * 2 * gtx970.base_mhz / 1e6, 3.494)
    assert close(gtx970.cores * 2 * gtx970.base_mhz / 1e3 / gtx970.power_w, 24.1)


def test_later_series_give_more_for_the_price():
    """Fact 15: the GTX 1000 series gives about twice as much FP32 for its price as the GTX 900 series."""

    def ratio(prefix):
        cards = [d for d in CATALOG if d.name.startswith(f"GeForce {prefix}")]
        return sum(d.peak("fp32") / d.price.amount for d in cards) / len(cards)

    assert 1.2 < ratio("GTX 10") / ratio("GTX 9") < 2.2


# Finding


def test_finding_by_name_alias_and_pattern():
    assert CATALOG.find("  rtx   4090 ")[0].name == "GeForce RTX 4090"
    assert [d.name for d in CATALOG.find("GEFORCE RTX 4090")] == ["GeForce RTX 4090"]
    assert {d.name for d in CATALOG.find("h100*")} >= {"NVIDIA H100 SXM5 80GB", "NVIDIA H100 NVL"}
    assert len(CATALOG.find("*")) == len(CATALOG) == len(list(CATALOG))
    assert CATALOG.device("H100").peak("fp16") == 989 and CATALOG.device("H100").peak("fp16", sparse=True) == 1978
    assert CATALOG.device("H100").peak("fp4") is None


@pytest.mark.parametrize(
    "name, near", [("RTX 4900", "GeForce RTX 4090"), ("xeon 8480", "8480+"), ("a10o", "NVIDIA A10")]
)
def test_unknown_devices_name_near_ones(name, near):
    with pytest.raises(InputError, match="has no device") as e:
        CATALOG.find(name)
    assert near in str(e.value) and "\n" not in str(e.value)


def test_a_name_of_nothing_and_of_many():
    with pytest.raises(InputError, match="has no device 'qqqqqqqqqqqqqq'; add it"):
        CATALOG.find("qqqqqqqqqqqqqq")
    with pytest.raises(InputError, match="has no device ''"):
        CATALOG.find("")
    with pytest.raises(InputError, match="matches .* devices"):
        CATALOG.device("rtx 40*")


# A file of the user's


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_file_adds_devices_and_overrides_fields(tmp_path):
    text = (
        f"{ROW}price = 12.5\ncurrency = 'EUR'\nprice_date = '2026-05'\nprice_kind = 'street'\n"
        '[[device]]\nname = "rtx 4090"\nprice = 1400\ncurrency = "USD"\nprice_date = "2026-01-31"\n'
        'dense = { int8 = 700 }\naliases = ["mine"]\n'
    )
    catalog = load(written(tmp_path, text))
    assert len(catalog) == len(CATALOG) + 1
    new, card, old = catalog.device("x"), catalog.device("mine"), CATALOG.device("RTX 4090")
    assert (new.price.amount, new.price.currency, new.price.kind, new.sources) == (12.5, "EUR", "street", ())
    assert card.name == old.name and card.price.amount == 1400 and card.peak("int8") == 700
    assert "int8" not in card.derived and "fp16" in card.derived
    assert card.peak("fp16") == old.peak("fp16") and card.sources == old.sources and len(card.files) == 2
    assert old.price.amount == 1599


@pytest.mark.parametrize(
    "text, parts",
    [
        (f"{ROW}memory_gb = nan\n", ("'X'", "'memory_gb'", "finite number above 0", "nan")),
        (f"{ROW}bandwidth_gbs = inf\n", ("'bandwidth_gbs'", "inf")),
        (f"{ROW}price = -1\ncurrency = 'USD'\nprice_date = '2026'\n", ("'price'", "-1")),
        (f"{ROW}power_w = 0\n", ("'power_w'", "got 0")),
        (f"{ROW}power_w = true\n", ("'power_w'", "expected a number, got True")),
        (f"{ROW}power_w = '70 W'\n", ("'power_w'", "expected a number, got '70 W'")),
        (f"{ROW}cores = 1.5\n", ("'cores'", "whole number", "1.5")),
        (f"{ROW}watts = 3\n", ("'watts'", "unknown", "power_w")),
        (f"{ROW}dense = {{ fp15 = 3 }}\n", ("'dense.fp15'", "unknown", "fp16")),
        (f"{ROW}dense = {{ fp16 = nan }}\n", ("'dense.fp16'", "nan")),
        (f"{ROW}dense = 3\n", ("'dense'", "expected a table")),
        (f"{ROW}derived = ['fp16']\n", ("'derived'", "none of the peaks")),
        (f"{ROW}price = 3\n", ("'price'", "currency and price_date")),
        (f"{ROW}currency = 'USD'\n", ("'price'", "absent")),
        (f"{ROW}price = 3\ncurrency = '$'\nprice_date = '2026'\n", ("'currency'", "USD", "'$'")),
        (f"{ROW}price = 3\ncurrency = 'USD'\nprice_date = '31.5.2026'\n", ("'price_date'", "2026-05-31")),
        (f"{ROW}aliases = 'x'\n", ("'aliases'", "list of texts")),
        (f"{ROW}aliases = ['RTX 4090']\n", ("'X'", "'GeForce RTX 4090'", "already")),
        (f"{ROW}sources = ['https://x']\n", ("'sources'", "url and supports")),
        (f"{ROW}sources = [{{ url = 'ftp://x', supports = 'y' }}]\n", ("'sources.url'", "https://")),
        (ROW + ROW, ("'X'", "already")),
        (ROW.replace("gpu", "card"), ("'kind'", "gpu, cpu, npu, soc", "'card'")),
        (ROW.replace("2026", "1926"), ("'year'", "1990", "1926")),
        ('[[device]]\nname = "X"\n', ("'X'", "'vendor'", "absent")),
        ('[[device]]\nvendor = "X"\n', ("row number 1", "no name")),
        ('[[device]]\nname = ""\n', ("row 'number 1'", "'name'")),
        ('[[devices]]\nname = "X"\n', ("'devices'", "[[device]]")),
        ("device = 3\n", ("'device'", "array of tables")),
        ("[[device]\n", ("not a TOML file",)),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), ("not a TOML file",)),
    ],
)
def test_faults_are_one_sentence_with_file_row_and_key(tmp_path, text, parts):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as e:
        load(path)
    message = str(e.value)
    assert all(part in message for part in (str(path), *parts)), message
    assert "\n" not in message and "Traceback" not in message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputAbsent, match="no such file"):
        load(tmp_path / "absent.toml")
    with pytest.raises(InputError, match="Is a directory"):
        load(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a TOML file"):
        load(tmp_path / "bytes.toml")
    with open(tmp_path / "large.toml", "wb") as f:
        f.truncate((16 << 20) + 1)
    with pytest.raises(InputError, match="larger than 16 MiB"):
        load(tmp_path / "large.toml")


def test_the_schema_and_the_dataclass_have_the_same_fields():
    fields = set(CATALOG.devices[0].__dataclass_fields__) - {"files"}
    assert KEYS - {"currency", "price_date", "price_kind"} == fields
    assert {p for d in CATALOG for p in (*d.dense, *d.sparse)} <= set(PRECISIONS)


# The page


def test_the_page_is_generated():
    assert (DOCS / "choosing.md").read_text() == page.page(), "write docs/choosing.md again: make choosing"


def test_links_of_the_page_exist():
    for row in choosing.routes():
        for name in row.pelton.split("](")[1:]:
            assert (DOCS / name.split(")")[0]).exists(), name


@pytest.mark.parametrize(
    "change, key",
    [
        (("date", "soon"), "date"),
        (("url", "x"), "url"),
        (("group", "x"), "group"),
        (("what", ""), "what"),
        (("a", "b"), "a"),
    ],
)
def test_faults_in_the_tables_of_the_page(tmp_path, change, key):
    row = {"group": "server", "name": "n", "what": "w", "state": "s", "date": "2026", "url": "https://x"}
    path = tmp_path / "frameworks.toml"
    path.write_text("[[row]]\n" + "".join(f'{k} = "{v}"\n' for k, v in row.items()))
    assert choosing.frameworks(path)[0].name == "n"
    row |= dict([change])
    path.write_text("[[row]]\n" + "".join(f'{k} = "{v}"\n' for k, v in row.items()))
    with pytest.raises(InputError, match=f"row 'n', key '{key}'"):
        choosing.frameworks(path)
