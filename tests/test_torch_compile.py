"""PyTorch semantics under `torch.compile(backend="pelton")`: shapes, views, in-place changes, gradients."""

import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here; `make test-importers` installs it")
pytest.importorskip("onnxscript", reason="onnxscript is not installed here; `make test-importers` installs it")

from torch import nn  # noqa: E402
from torch_fixtures import cache, said  # noqa: E402, F401  (fixtures)

from pelton.compat.torch import compile_graph  # noqa: E402
from pelton.compat.torch.agreement import check_agreement  # noqa: E402
from pelton.compat.torch.compiled import CompiledGraph  # noqa: E402
from pelton.compat.torch.frozen import Unsupported  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(1)
    with torch.no_grad():
        yield


@pytest.fixture
def engines(monkeypatch):
    """The engines that compiled graphs have built."""
    found = []
    build = CompiledGraph._build

    def watched(self, args):
        found.append(build(self, args))
        return found[-1]

    monkeypatch.setattr(CompiledGraph, "_build", watched)
    return found


def compiled(function, **options):
    return torch.compile(function, backend=compile_graph, options={"level": 0, **options})


def test_encoders_are_compiled_without_the_fast_path(said, engines):
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    x = torch.randn(1, 5, 8)
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        with torch.no_grad():
            torch.backends.mha.set_fastpath_enabled(True)
            compiled(module)(x)
            assert "torch.backends.mha.set_fastpath_enabled(False) before" in said("runs eagerly")[0] and not engines
            torch._dynamo.reset()
            torch.backends.mha.set_fastpath_enabled(False)
            assert_same(compiled(module)(x), module(x))
            assert len(engines) == 1
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def assert_same(found, expected, tolerance=1e-5):
    """Equal structure, types, shapes, and values up to rounding."""
    assert type(found) is type(expected)
    if isinstance(found, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert_same(a, b, tolerance)
    elif isinstance(found, torch.Tensor):
        assert found.stride() == expected.stride() or found.is_contiguous()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    else:
        assert found == expected


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()


def test_one_engine_for_all_sizes_that_dynamo_calls_dynamic(engines):
    module = net()
    fast = compiled(module)
    for size in (3, 5, 2, 9, 130, 7):
        x = torch.randn(size, 8)
        assert_same(fast(x), module(x))
    assert len(engines) == 2 and not engines[0].engine.symbols and engines[1].engine.symbols


def test_sizes_are_numbers_of_the_program(engines):
    def function(x, y):
        rows = x.shape[0]
        return (x.reshape(rows * 2, -1) * rows + y.sum()) / (rows + y.shape[1]), rows, y.new_ones(rows + 1)

    fast = torch.compile(function, backend=compile_graph, options={"level": 0}, dynamic=True)
    for rows, columns in ((3, 5), (6, 7), (9, 8)):  # dynamo takes sizes for equal that are
        x, y = torch.randn(rows, 4), torch.randn(2, columns)
        assert_same(fast(x, y), function(x, y))
    assert len(engines) == 1


def test_changed_parameters_are_seen(engines):
    module, x = net(), torch.randn(3, 8)
    fast = compiled(module)
    assert_same(fast(x), module(x))
    module[0].weight.mul_(1.5)
    assert_same(fast(x), module(x))
    module.load_state_dict(net().state_dict())
    assert_same(fast(x), module(x))
    module[3].bias = nn.Parameter(torch.randn(4))
    assert_same(fast(x), module(x))
    assert len(engines) == 4
    fast(x)
    assert len(engines) == 4


def test_parameters_that_change_on_and_on_run_eagerly(engines, said):
    module, x = net(), torch.randn(3, 8)
    fast = compiled(module)
    for _ in range(8):
        module[0].weight.mul_(1.1)
        assert_same(fast(x), module(x))
    assert len(said("change again and again")) == 1 and len(engines) == 5


def test_modules_that_share_code_have_engines_of_their_own(engines):
    layers, x = [net() for _ in range(3)], torch.randn(3, 8)

    @torch.compile(backend=compile_graph, options={"level": 0})
    def run(layer, x):
        return layer(x)

    for _ in range(2):
        for layer in layers:
            assert_same(run(layer, x), layer(x))
    assert len(engines) == 3


def test_arguments_that_change_in_place():
    def function(x, y):
        y.add_(x.relu())
        x[0].mul_(2)
        return x @ y.T

    fast = compiled(function)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    x2, y2 = x.clone(), y.clone()
    assert_same(fast(x, y), function(x2, y2))
    assert_same([x, y], [x2, y2])


def test_buffers_that_change_are_no_constants():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(4, 8))
            self.linear = nn.Linear(8, 8)

        def forward(self, x, at):
            self.kept[at] = self.linear(x)
            return self.kept.sum(0)

    one, other = Cache(), Cache()
    other.load_state_dict(one.state_dict())
    fast = compiled(one)
    for at in range(4):
        x, place = torch.randn(8), torch.tensor(at)
        assert_same(fast(x, place), other(x, place))
    assert_same(one.kept, other.kept)


def test_views_stay_views():
    def function(x):
        return x.view(6, 2), x.relu(), x

    x = torch.randn(3, 4)
    view, _, same = compiled(function)(x)
    assert view.data_ptr() == x.data_ptr() and same is x


def test_outputs_lie_in_memory_as_they_would(said):
    def function(x):
        return (x * 2).permute(0, 2, 3, 1), (x + 1).transpose(1, 2)[:, 1:], x.sum((2, 3))[:, None].expand(-1, 3, -1) * 1

    fast, x = compiled(function), torch.randn(2, 3, 4, 5)
    found = fast(x)
    assert_same(list(found), list(function(x)))
    assert found[0].permute(0, 3, 1, 2).is_contiguous()
    assert said("is an engine") and not said("eagerly")


@pytest.mark.parametrize(
    "strided", [lambda x: x.T, lambda x: x[::2], lambda x: x[:, 1:], lambda x: x[:1].expand(4, 6)], ids=range(4)
)
def test_strided_inputs(strided):
    x = strided(torch.randn(6, 6))

    def function(x):
        return (x * 2 + 1).exp().sum(0)

    assert_same(compiled(function)(x), function(x))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8]
)
def test_element_types(dtype):
    def function(x, y):
        return torch.where(x == y, x, y), torch.cat([x, y]), x.to(torch.float32) + 1

    x, y = (torch.randint(0, 3, (4, 5)).to(dtype) for _ in range(2))
    assert_same(compiled(function)(x, y), function(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_in_half_precision(dtype):
    module, x = net().to(dtype), torch.randn(3, 8, dtype=dtype)
    assert_same(compiled(module)(x), module(x), 2e-2)


def test_complex_numbers_run_eagerly(said):
    def function(x):
        return torch.view_as_real(torch.fft.fft(x) * 2j)

    x = torch.randn(8)
    assert_same(compiled(function)(x), function(x))


def test_numbers_none_and_nothing(said):
    def function(x, count, factor, flag):
        y = x * factor + count
        return y if flag else -y, None, count * 2, "text"

    fast = compiled(function)
    for count, factor, flag in ((1, 2.5, True), (2, 0.5, False), (3, 1.5, True), (4, 2.5, True)):
        x = torch.randn(3)
        assert_same(fast(x, count, factor, flag), function(x, count, factor, flag))


@pytest.mark.parametrize("shape", [(0, 8), (0,), (3, 0, 2), ()])
def test_empty_and_scalar(shape):
    def function(x):
        return x.relu() + 1, x.sum()

    x = torch.randn(shape)
    assert_same(compiled(function)(x), function(x))


def test_gradients_run_eagerly(said):
    module, x = net(), torch.randn(3, 8)
    fast = compiled(module)
    with torch.enable_grad():
        fast(x).sum().backward()
    assert module[0].weight.grad.norm() > 0
    assert said("needs gradients")
    assert_same(fast(x), module(x))
    assert said("is an engine")


def test_inference_mode():
    with torch.inference_mode():
        module, x = net(), torch.randn(3, 8)
        assert_same(compiled(module)(x), module(x))


def test_what_has_no_kernel_runs_eagerly(said):
    def function(x):
        return torch.linalg.svd(x)[1] * 2

    x = torch.randn(4, 4)
    assert_same(compiled(function)(x), function(x), 1e-4)
    assert len(said("runs eagerly")) == 1


def test_graph_breaks():
    def function(x):
        y = x.relu() * 2
        print(end="")
        if y.sum() > 0:
            y = y + 1
        return y.exp()

    fast = compiled(function)
    for sign in (1, -1):
        x = sign * torch.rand(5)
        assert_same(fast(x), function(x))


def test_dropout_and_random_numbers():
    module, x = nn.Sequential(nn.Linear(8, 1000), nn.Dropout(0.5)).train(), torch.randn(3, 8)
    share = (compiled(module)(x) == 0).float().mean()
    assert 0.4 < share < 0.6
    first, second = (compiled(lambda x: x + torch.rand(100))(torch.zeros(100)) for _ in range(2))
    assert not torch.equal(first, second)


def test_batch_norm_in_training():
    one, other = (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train() for _ in range(2))
    other.load_state_dict(one.state_dict())
    fast = compiled(one)
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6)
        assert_same(fast(x), other(x), 1e-4)
    assert_same(list(one.buffers()), list(other.buffers()), 1e-4)


def test_threads():
    module = net()
    fast, inputs = compiled(module), [torch.randn(3, 8) for _ in range(4)]
    fast(inputs[0])
    expected, wrong = [module(x) for x in inputs], []

    def work(at):
        with torch.no_grad():
            wrong.extend(at for _ in range(200) if not torch.allclose(fast(inputs[at]), expected[at], atol=1e-5))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_results_are_new_memory_each_time():
    module, x = net(), torch.randn(3, 8)
    fast = compiled(module)
    first = fast(x)
    kept = first.clone()
    fast(torch.randn(3, 8))
    assert torch.equal(first, kept)


def test_options():
    with pytest.raises(Exception, match="unknown option levle"):
        torch.compile(net(), backend=compile_graph, options={"levle": 0})(torch.randn(3, 8))
    with pytest.raises(Exception, match="on the CPU, given target='cuda'"):
        torch.compile(net(), backend=compile_graph, options={"target": "cuda"})(torch.randn(3, 8))
    with pytest.raises(Exception, match="has no modes"):
        torch.compile(net(), backend=compile_graph, mode="max-autotune")(torch.randn(3, 8))


def test_a_second_process_finds_the_engine():
    program = (
        "import logging, torch; from torch import nn\n"
        "from pelton.compat.torch import compile_graph\n"
        "import pelton.compat.torch.compiled as c\n"
        "torch.manual_seed(0); m = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval(); x = torch.randn(2, 8)\n"
        "built = []; build = c.build\n"
        "c.build = lambda *a, **k: built.append(1) or build(*a, **k)\n"
        "with torch.no_grad(): y = torch.compile(m, backend=compile_graph, options={'level': 0})(x)\n"
        "torch.testing.assert_close(y, m(x).detach()); print(len(built))\n"
    )
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True) for _ in range(2)]
    assert [r.stdout.strip() for r in runs] == ["1", "0"], [r.stderr for r in runs]


def test_the_entry_point():
    from importlib.metadata import entry_points

    (found,) = entry_points(group="torch_dynamo_backends", name="pelton")
    assert found.load() is compile_graph


@pytest.mark.parametrize("wrong", [lambda y: y * 1.1, lambda y: y.double(), lambda y: y[:1], lambda y: y / 0])
def test_engines_have_to_agree_with_torch(wrong):
    y = torch.randn(3, 8)
    check_agreement([y * (1 + 1e-6), None, 3], [y, None, 3])
    check_agreement([y / 0, y == y], [y / 0, y == y])
    with pytest.raises(Unsupported, match="output 1 of its engine"):
        check_agreement([y, wrong(y)], [y, y])
