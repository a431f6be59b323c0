"""Wrong input of `pelton advise`: one sentence for each, on the key or the flag."""

from __future__ import annotations

import sys

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

import pelton
from pelton.cli import main


@pytest.fixture(scope="module")
def onnx_model(tmp_path_factory):
    net = pelton.Network("small")
    x = net.input("x", "f32[batch, 8, 16, 16]")
    net.output(net.relu(net.convolution(x, np.ones((8, 8, 3, 3), np.float32), padding=1)), "y")
    path = tmp_path_factory.mktemp("advise") / "small.onnx"
    pelton.export_onnx(net, path)
    return str(path)


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--devices", "RTX 4091"], "near names: GeForce RTX 4090"),
        (["--devices", "absent.toml"], "there is no such file"),
        (["--devices", "cpu:that"], "cpu:this"),
        (["--devices", "L4", "--batch", "32", "--qps", "10", "--latency", "10ms"], "contradict each other"),
        (["--devices", "L4", "--use", "2"], "at most 1"),
        (["--devices", "L4", "-o", "x.toml"], "--measure"),
        (["--devices", "L4", "--html", "/absent/x.html"], "no folder"),
        (["--devices", "L4", "--plot", "/absent/x.svg"], "no folder"),
        (["--devices", "L4", "--plot", "x.png"], "ends in .svg"),
        (["--measure", "-o", "x.toml"], "leave out the model"),
        (["--devices", "Jetson Orin NX 8GB"], "no source states its peaks"),
        (["--devices", "L4", "--batch", "64", "--qps", "100", "--latency", "1ms", "--budget", "1"], "0.63 s to arrive"),
    ],
)
def test_wrong_input_is_one_sentence(capsys, onnx_model, flags, said):
    assert main(["advise", onnx_model, "-q", *flags]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out and err.startswith("error: ")


@pytest.mark.parametrize(
    "flags",
    (
        *(["--budget", "-1"], ["--budget", "inf"], ["--latency", "0"], ["--latency", "0ms"], ["--latency", "1e9s"]),
        *(
            ["--batch", "0"],
            ["--batch", "2.5"],
            ["--qps", "nan"],
            ["--qps", "0"],
            ["--devices", ""],
            ["--devices", "L4,,T4"],
        ),
        *(["--energy-price", "-1"], ["--years", "0"]),
    ),
)
def test_wrong_numbers_are_usage(capsys, onnx_model, flags):
    with pytest.raises(SystemExit) as e:
        main(["advise", onnx_model, *flags])
    out, err = capsys.readouterr()
    assert e.value.code == 2 and not out
    assert err.startswith(f"error: argument {flags[0]}: expected") and repr(flags[1]) in err and err.count("\n") == 2


@pytest.mark.parametrize(
    "line, said",
    [
        ('price = nan\ncurrency = "USD"\nprice_date = "2026"', "'price': expected a finite number above 0, got nan"),
        ('price = -1\ncurrency = "USD"\nprice_date = "2026"', "'price': expected a finite number above 0, got -1"),
        ("bandwidth_gbs = nan", "'bandwidth_gbs': expected a finite number above 0, got nan"),
        ("dense = { int8 = inf }", "'dense.int8': expected a finite number above 0, got inf"),
        ("memory_gb = 0", "'memory_gb': expected a finite number above 0, got 0"),
    ],
)
def test_rows_of_the_user_are_checked(capsys, onnx_model, tmp_path, line, said):
    path = tmp_path / "mine.toml"
    path.write_text(f'[[device]]\nname = "NVIDIA L4"\n{line}\n')
    assert main(["advise", onnx_model, "--catalog", str(path), "--devices", "L4"]) == 2
    out, err = capsys.readouterr()
    assert f"mine.toml: row 'NVIDIA L4', key {said}" in err and err.count("\n") == 1 and not out


def test_a_device_without_a_published_peak(capsys, onnx_model):
    assert main(["advise", onnx_model, "--devices", "NVIDIA Grace CPU", "-q"]) == 2
    assert "no source states its peaks" in capsys.readouterr().err
