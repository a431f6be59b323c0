"""Results of torch's exporters beside torch: right programs are built, wrong ones refused."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here; `make test-importers` installs it")
pytest.importorskip("onnxscript", reason="onnxscript is not installed here; `make test-importers` installs it")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import pelton  # noqa: E402
from pelton import importers  # noqa: E402
from pelton.cli import main  # noqa: E402
from pelton.importers import Traceable  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def note(function, *args, **given):
    """How the conversion of a function compares; ModelError if it is wrong."""
    return importers.load(Traceable(Net(function), args), **given).info.conversion


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(3)


randn, index = torch.randn, torch.tensor([0, 1, 1, 3])
SUSPECTS = {
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), randn(5), index, randn(4)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True), randn(1, 2, 6, 8)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=0.6, mode="nearest"), randn(1, 3, 8, 10)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=4), randn(1, 3, 9, 10)),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), randn(4, 5), torch.tensor([0, 4, 2, 2])),
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_operators_that_torch_writes_wrongly_are_refused_or_right(name):
    """Those of torch 2.13."""
    function, *args = SUSPECTS[name]
    try:
        imported = importers.load(Traceable(Net(function), tuple(args)))
    except pelton.ModelError as e:
        assert "differs from torch" in str(e) and "the first layer that differs is" in str(e), e
        assert "accept_conversion=" in str(e)
    else:
        assert imported.info.conversion.startswith("equal to torch")


RIGHT = {
    "index": (lambda x, i: x[i] * 2, randn(9, 4), torch.tensor([[8, 1], [0, 3]])),
    "two": (lambda x: (x.sum(1), {"a": x > 0, "b": x.argmax(1)}), randn(4, 6)),
    "equals": (lambda x: torch.topk(F.relu(x), 6), randn(4, 8)),
    "zeros": (lambda x: torch.softmax(x, -1), torch.zeros(3, 4)),
    "halves": (lambda x: F.linear(x, x).softmax(-1), randn(8, 8).half()),
    "bfloat": (lambda x: F.linear(x, x).softmax(-1), randn(8, 8).bfloat16()),
    "nan": (lambda x: torch.log(x), randn(20)),
    "complex": (lambda x: torch.fft.rfft(x), randn(2, 8)),
    "constant": (lambda x, y: x + 1, randn(4), randn(3)),
    "data": (lambda x: x.nonzero().float() * 2, torch.tensor([[0.0, 1, 2], [3, 0, 0]])),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_noted_in_silence(name, caplog):
    function, *args = RIGHT[name]
    state = torch.get_rng_state()
    try:
        assert note(function, *args).startswith("equal to torch")
    except importers.imported.OnData:
        assert name == "data"  # which build makes a script of
    assert torch.equal(state, torch.get_rng_state())
    assert not [r for r in caplog.records if r.name.startswith("pelton") and r.levelno >= logging.WARNING]


def test_random_programs_are_not_compared():
    program = torch.export.export(Net(lambda x: F.dropout(x, 0.5, training=True)), (randn(99),))
    assert "its results differ from run to run" in importers.load(program).info.conversion
    assert "but for 1 outputs" in note(lambda x: (x * 2, x + torch.rand_like(x)), randn(9))


@pytest.fixture
def wrong_exporter(monkeypatch):
    """torch's exporter, which takes Relu for LeakyRelu."""
    export = torch.onnx.export

    def wrong(model, args=(), buffer=None, **given):
        found = export(model, args, buffer, **given)
        if buffer is not None:
            proto = onnx.ModelProto.FromString(buffer.getvalue())
            buffer.seek(0)
            buffer.truncate()
        else:
            proto = found.model_proto
        for node in proto.graph.node:
            if node.op_type == "Relu":
                node.op_type = "LeakyRelu"
        if buffer is None:
            return type("Program", (), {"model_proto": proto, "exported_program": found.exported_program})
        buffer.write(proto.SerializeToString())
        return found

    monkeypatch.setattr(torch.onnx, "export", wrong)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_every_door_refuses_a_wrong_export(wrong_exporter, tmp_path, capsys, caplog):
    net, x = Layers().eval(), randn(3, 8)
    program = torch.export.export(net, (x,))
    torch.export.save(program, tmp_path / "net.pt2")
    torch.jit.save(torch.jit.script(net), tmp_path / "net.pt")
    sources = (
        (net, {"example_inputs": x}),
        (net, {"shapes": {"x": "1..3..8x8"}}),
        (program, {}),
        (tmp_path / "net.pt2", {}),
        (tmp_path / "net.pt", {"shapes": {"x": "3x8"}}),
    )
    for model, given in sources:
        with pytest.raises(pelton.ModelError, match="the conversion to ONNX differs from torch .* is off by"):
            pelton.build(model, level=0, **given)
    with pytest.raises(pelton.ModelError, match=r"the first layer that differs is 'relu' \(aten.relu.default\)"):
        pelton.import_onnx(program)
    path = str(tmp_path / "net.pt2")
    for command in (["convert", path, "-o", str(tmp_path / "net.onnx")], ["check", path]):
        assert main(command) != 0
        assert "differs from torch" in capsys.readouterr().err
    assert main(["convert", path, "-o", str(tmp_path / "net.onnx"), "--accept-conversion"]) == 0
    assert "conversion: differs from torch" in capsys.readouterr().out
    engine = pelton.build(program, level=0, accept_conversion=True)
    assert "(accepted)" in engine.meta["model"]["conversion"] and "(accepted)" in caplog.text
    assert np.abs(engine(x.numpy())[0] - net(x).detach().numpy()).max() > 1e-3


def test_the_summary_says_how_it_compares(tmp_path, capsys):
    torch.export.save(torch.export.export(Layers().eval(), (torch.zeros(3, 8),)), tmp_path / "net.pt2")
    assert main(["build", str(tmp_path / "net.pt2"), "-o", str(tmp_path / "net.pelton"), "--level", "0"]) == 0
    assert f"equal to torch {torch.__version__.partition('+')[0]} on its example inputs" in capsys.readouterr().out
