"""Calibration tables: TensorRT's text format, byte by byte, and invalid tables."""

import numpy as np
import pytest

import pelton
from pelton.calibration import CalibrationTable

WRITTEN = b"""TRT-8601-EntropyCalibration2
data: 3c010a14
(Unnamed Layer* 4) [Fully Connected]_output: 3d65992f
a: b: 3f800000
"""


def test_a_table_that_tensorrt_wrote():
    found = CalibrationTable.from_bytes(WRITTEN)
    assert (found.algorithm, found.version) == ("EntropyCalibration2", "8601")
    assert list(found.scales) == ["data", "(Unnamed Layer* 4) [Fully Connected]_output", "a: b"]
    # 0x3c010a14: exponent 120 - 127, fraction 0x010a14
    assert found.scales["data"] == np.float32((1 + 0x010A14 / 2**23) * 2.0**-7)
    assert found.scales["a: b"] == 1
    assert all(type(s) is np.float32 for s in found.scales.values())
    assert found.to_bytes() == WRITTEN
    assert CalibrationTable.from_bytes(WRITTEN.replace(b"\n", b"\r\n")) == found
    assert CalibrationTable.from_bytes(memoryview(bytearray(WRITTEN.rstrip()))) == found


def test_what_is_written():
    table = CalibrationTable({"x": 1 / 127, "später: ja": np.float32(2.5)}, "MinMaxCalibration", "100300")
    text = "TRT-100300-MinMaxCalibration\nx: 3c010204\nspäter: ja: 40200000\n"
    assert table.to_bytes() == text.encode()
    assert CalibrationTable({}).to_bytes() == b"TRT-100300-EntropyCalibration2\n"
    # small ones keep their zeros in front
    assert b"\nx: 00800000\n" in CalibrationTable({"x": np.finfo(np.float32).tiny}).to_bytes()


@pytest.mark.parametrize(
    "header", ["TRT-3001-EntropyCalibration", "TRT-8XXX-EntropyCalibration2", "TRT-7103-LegacyCalibration"]
)
def test_headers_of_all_times(header):
    assert CalibrationTable.from_bytes(f"{header}\nx: 3c010a14\n".encode()).to_bytes().startswith(header.encode())


def test_files_are_replaced_whole(tmp_path):
    path = tmp_path / "m.cache"
    path.write_bytes(b"old")
    table = CalibrationTable({"x": 0.5})
    table.save(path)
    assert CalibrationTable.load(str(path)) == table and [p.name for p in tmp_path.iterdir()] == ["m.cache"]
    with pytest.raises(pelton.InputError, match="cannot write the calibration table"):
        table.save(tmp_path / "nowhere" / "m.cache")
    with pytest.raises(FileNotFoundError, match="m.none cannot be read"):
        CalibrationTable.load(tmp_path / "m.none")
    with pytest.raises(pelton.InputError, match="cannot be read"):
        CalibrationTable.load(tmp_path)


@pytest.mark.parametrize(
    "bits, shown",
    [
        ("00000000", "0.0"),
        ("7f800000", "inf"),
        ("7fc00000", "nan"),
        ("bc010a14", "-0.007"),
        ("00000001", "1e-45"),
        ("0", "0.0"),
    ],
)
def test_scales_that_are_none_in_files(bits, shown):
    with pytest.raises(
        pelton.InputError, match=f"t.cache, line 3: tensor 'b' has the scale {shown}.*calibrate with inputs"
    ):
        CalibrationTable.from_bytes(f"TRT-8601-MinMaxCalibration\na: 3c010a14\nb: {bits}\n".encode(), "t.cache")


@pytest.mark.parametrize("scale", [0, -1.0, np.inf, np.nan, 1e39, 1e-39, "1", None, True, 1j])
def test_scales_that_are_none(scale):
    with pytest.raises(pelton.InputError, match="tensor 'x' has the scale"):
        CalibrationTable({"x": scale})


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "its first line is ''"),
        (b"PK\x03\x04\n", "first line"),
        (b"\xff\xfe", "utf-8"),
        (b"x: 3c010a14\n", "its first line is 'x: 3c010a14'"),
        (b"TRT-8601-MinMaxCalibration\nx 3c010a14\n", "line 2: expected 'tensor: '"),
        (b"TRT-8601-MinMaxCalibration\nx: 3c010a140\n", "line 2"),
        (b"TRT-8601-MinMaxCalibration\nx: 0x3c01\n", "line 2"),
        (b"TRT-8601-MinMaxCalibration\n: 3c010a14\n", "line 2"),
        (b"TRT-8601-MinMaxCalibration\nx: \n", "line 2"),
        (b"TRT-8601-MinMaxCalibration\nx: 3c010a14\n\nx: 3c010a14\n", "line 4: a second scale of tensor 'x'"),
    ],
)
def test_what_is_no_table(data, why):
    with pytest.raises(pelton.InputError, match=why):
        CalibrationTable.from_bytes(data)


@pytest.mark.parametrize("name", ["a\nb", "a\r", "", 7])
def test_names_that_no_line_can_hold(name):
    with pytest.raises(pelton.InputError, match="without line breaks"):
        CalibrationTable({name: 1.0})


@pytest.mark.parametrize("given", [dict(version="8 6"), dict(algorithm="Min Max"), dict(algorithm="a\n")])
def test_headers_that_no_line_can_hold(given):
    with pytest.raises(pelton.InputError, match="version and algorithm"):
        CalibrationTable({}, **given)


def test_tables_of_other_models():
    table = CalibrationTable({"x": 1.0, "a": 1.0}, notes={"zero": "it is 0"})
    assert table.missing(["x", "b", "zero", "c"]) == ["b", "c"]
    assert table.check(["x", "a", "b", "zero"]) == ["b"] and table.check([]) == []
    with pytest.raises(pelton.InputError, match=r"table t belongs to another model.*3 tensors.*lacks 2 \('b', 'c'\)"):
        table.check(["x", "b", "c"], "table t")
    with pytest.raises(TypeError):
        table.scales["y"] = 1
