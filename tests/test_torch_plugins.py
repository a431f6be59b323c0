"""Custom operators of torch that are plugins."""

import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here; `make test-importers` installs it")
pytest.importorskip("onnxscript", reason="onnxscript is not installed here; `make test-importers` installs it")

import pelton  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_plugins")


@torch.library.custom_op("pelton_tests::shift", mutates_args=())
def shift(
    x: torch.Tensor, by: float, sizes: list[int], w: torch.Tensor | None = None, how: str = "add", less: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x - by if less else x + by) * sum(sizes)
    return (y if w is None else y * w), x.argmax(-1)


@shift.register_fake
def _(x, by, sizes, w=None, how="add", less=False):
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.int64)


class Module(torch.nn.Module):
    def forward(self, x, w):
        a, _ = torch.ops.pelton_tests.shift(x, 2.0, [1, 2], less=True)
        b, at = torch.ops.pelton_tests.shift(torch.relu(a), 0.5, [3], w)
        return {"y": torch.relu(b), "at": at}


def register():
    @pelton.register
    class Shift(pelton.Plugin):
        torch = "pelton_tests::shift"
        by: float
        sizes: tuple
        how: str = "add"
        less: bool = False

        def layers(self, net, x, w=None):
            y = (x - self.by if self.less else x + self.by) * float(sum(self.sizes))
            return (y if w is None else y * w), net.arg_max(x, axis=-1, keepdims=False)


def given():
    torch.manual_seed(0)
    return torch.randn(3, 5), torch.randn(5)


def agrees(found, want):
    np.testing.assert_allclose(found["y"], want["y"].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["at"], want["at"].numpy())


def test_a_plugin_is_found_by_the_name_of_the_operator(tmp_path):
    register()
    x, w = given()
    n = torch.export.Dim("n", min=1, max=9)
    engine = pelton.build(Module(), example_inputs=(x, w), dynamic_shapes=({0: n}, None), level=0)
    assert not any(s.host for s in engine.plain.steps)
    agrees(engine.run({"x": x.numpy(), "w": w.numpy()}), Module()(x, w))
    torch.export.save(torch.export.export(Module(), (x, w)), tmp_path / "m.pt2")
    agrees(pelton.build(tmp_path / "m.pt2", level=0).run({"x": x.numpy(), "w": w.numpy()}), Module()(x, w))


def test_without_a_plugin_the_error_says_how_to_write_one():
    with pytest.raises(pelton.ModelError, match=r"pelton_tests::shift need plugins: .* torch = 'pelton_tests::shift'"):
        pelton.build(Module(), example_inputs=given(), level=0)


@pytest.mark.parametrize("known", [True, False])
def test_torch_compile_takes_the_plugin_or_runs_eagerly_and_says_so(known, caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO, "pelton.torch")
    torch._dynamo.reset()
    if known:
        register()
    x, w = given()
    with torch.no_grad():
        found = torch.compile(Module(), backend="pelton", options={"level": 0})(x, w)
    agrees({k: v.numpy() for k, v in found.items()}, Module()(x, w))
    said = " ".join(r.getMessage() for r in caplog.records if r.name == "pelton.torch")
    assert ("eager" in said and "pelton_tests::shift" in said) != known
