"""Plugins as layers of Caffe, sections of Darknet and custom operators of TFLite."""

import numpy as np
import pytest
from caffe_models import caffemodel, layer, text
from tflite_models import ModelWriter

import pelton
from pelton.importers.registry import ModelFiles

pytestmark = pytest.mark.usefixtures("own_plugins")
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def shifted():
    @pelton.register
    class Shifted(pelton.Plugin):
        """x · by + plus, by an optional weight for each channel."""

        caffe = "Shifted"
        darknet = "shifted"
        tflite = "Shifted"
        by: float = 1.0
        plus: float = 0.0

        def infer(self, x, w=None):
            return x

        def expand(self, x, w=None):
            from pelton.ops.words import add, mul, reshape

            y = add(mul(x, self.by), self.plus)
            return y if w is None else mul(y, reshape(w, shape=(w.type.shape[0], 1, 1)))


def test_a_layer_of_caffe(shifted, tmp_path):
    a, w = normal(1, 3, 2, 2), normal(3)
    param = """python_param { param_str: '{"by": 2.0, "plus": 1}' }"""
    alone = pelton.build(text((1, 3, 2, 2), layer("Shifted", param)).encode(), level=0)
    np.testing.assert_allclose(alone.run({"x": a})["y"], 2 * a + 1, rtol=1e-6)
    (tmp_path / "w.caffemodel").write_bytes(caffemodel({"y": ("Shifted", [w])}))
    for kind in ("Shifted", "Python"):
        net = text((1, 3, 2, 2), layer(kind, param.replace("{ ", '{ module: "m" layer: "Shifted" ', 1)))
        found = pelton.build(ModelFiles(net.encode(), tmp_path / "w.caffemodel"), level=0).run({"x": a})["y"]
        np.testing.assert_allclose(found, (2 * a + 1) * w[:, None, None], rtol=1e-6)
    for wrong, reason in (
        ("{", "is no JSON"),
        ("[1]", "should be a JSON object"),
        ('{"of": 1}', "'of' is none of them"),
    ):
        with pytest.raises(pelton.ModelError, match=rf"layer 'y'.*{reason}"):
            net = text((1, 3, 2, 2), layer("Shifted", f"python_param {{ param_str: '{wrong}' }}"))
            pelton.build(net.encode(), level=0)


def test_a_section_of_darknet(shifted):
    cfg = "[net]\nheight=4\nwidth=4\nchannels=3\n[shifted]\nby=2\nplus=0.5\n"
    a = normal(1, 3, 4, 4)
    (found,) = pelton.build(cfg.encode(), level=0).run({"data": a}).values()
    np.testing.assert_allclose(found, 2 * a + 0.5, rtol=1e-6)
    for wrong, reason in (("by=two", "should be like 1.0, got 'two'"), ("of=1", "'of' is none of them")):
        with pytest.raises(pelton.ModelError, match=f"line 5: .*{reason}"):
            pelton.build(f"{cfg}{wrong}\n".replace("by=2\n" if "by" in wrong else "?", "").encode(), level=0)


def test_a_custom_operator_of_tflite(shifted):
    w = ModelWriter()
    x, y = w.main.input((2, 3), name="x"), w.main.output((2, 3), name="y")
    w.main.op("Shifted", [x], [y], custom=b"")
    a = normal(2, 3)
    np.testing.assert_allclose(pelton.build(w.bytes(), level=0).run({"x": a})["y"], a, rtol=1e-6)
