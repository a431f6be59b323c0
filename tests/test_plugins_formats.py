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

        def layers(self, net, x, w=None):
            y = x * self.by + self.plus
            return y if w is None else y * net.reshape(w, (w.shape[0], 1, 1))


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
        ("[1]", "must be a JSON object"),
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
    for wrong, reason in (
        ("by=two", "must be like 1.0, got 'two'"),
        ("of=1", "'of' is none of them"),
        ("of=x", "'of' is none of them"),
    ):
        with pytest.raises(pelton.ModelError, match=f"line 5: .*{reason}"):
            pelton.build(f"{cfg}{wrong}\n".replace("by=2\n" if "by" in wrong else "?", "").encode(), level=0)


def test_a_custom_operator_of_tflite(shifted):
    w = ModelWriter()
    x, y = w.main.input((2, 3), name="x"), w.main.output((2, 3), name="y")
    w.main.op("Shifted", [x], [y], custom=b"")
    a = normal(2, 3)
    np.testing.assert_allclose(pelton.build(w.bytes(), level=0).run({"x": a})["y"], a, rtol=1e-6)


@pytest.fixture
def weighted():
    @pelton.register
    class Weighted(pelton.Plugin):
        """x · w + b for each channel, to a power."""

        caffe = "Power"
        darknet = "weighted"
        power: float = 1.0

        def weights(self, x):
            return [(x.shape[1],), (x.shape[1],)]

        def layers(self, net, x, w, b):
            return (x * net.reshape(w, (-1, 1, 1)) + net.reshape(b, (-1, 1, 1))) ** self.power


def test_weights_of_a_section_of_darknet(weighted, tmp_path):
    a, w, b = normal(1, 3, 4, 4), normal(3), normal(3)
    cfg = tmp_path / "net.cfg"
    cfg.write_text("[net]\nheight=4\nwidth=4\nchannels=3\n[weighted]\npower=2\n")
    net = pelton.build(cfg, level=0)
    assert len({float(v) for v in net.run({"data": a})["weighted_0"].ravel()}) > 9  # of random weights
    for count, reason in ((6, None), (5, "is too short: the weights of layer 0"), (7, "4 are left over")):
        data = np.array([0, 2, 0, 0, 0], "<i4").tobytes() + np.concatenate([w, b, b])[:count].tobytes()
        (tmp_path / "net.weights").write_bytes(data)
        if reason is None:
            (found,) = pelton.build(cfg, level=0).run({"data": a}).values()
            np.testing.assert_allclose(found, (a * w[:, None, None] + b[:, None, None]) ** 2, rtol=1e-5, atol=1e-6)
        else:
            with pytest.raises(pelton.ModelError, match=reason):
                pelton.build(cfg, level=0)


def test_parameters_and_weights_of_a_layer_of_caffe(weighted, tmp_path):
    """Its type is one that the house reads, too."""
    a, w, b = normal(1, 3, 2, 2), normal(3), normal(3)
    net = text((1, 3, 2, 2), layer("Power", "power_param { power: 3 }")).encode()
    alone = pelton.build(net, level=0).run({"x": a})["y"]
    np.testing.assert_allclose(alone, (a + 1) ** 3, rtol=1e-5, atol=1e-6)  # weights of one axis are 1 without fillers
    (tmp_path / "w.caffemodel").write_bytes(caffemodel({"y": ("Power", [w, b])}))
    found = pelton.build(ModelFiles(net, tmp_path / "w.caffemodel"), level=0).run({"x": a})["y"]
    np.testing.assert_allclose(found, (a * w[:, None, None] + b[:, None, None]) ** 3, rtol=1e-4, atol=1e-5)
    with pytest.raises(pelton.ModelError, match="layer 'y'.*'scale' is none of them"):
        pelton.build(text((1, 3, 2, 2), layer("Power", "power_param { scale: 3 }")).encode(), level=0)


def test_a_plugin_is_taken_instead_of_one_of_the_house():
    @pelton.register
    class Turned(pelton.Plugin):
        caffe = "Permute"
        order: tuple = ()

        def layers(self, net, x):
            return -net.transpose(x, self.order)

    a = normal(1, 3, 2, 4)
    net = text((1, 3, 2, 4), layer("Permute", "permute_param { order: [0, 3, 1, 2] }")).encode()
    np.testing.assert_array_equal(pelton.build(net, level=0).run({"x": a})["y"], -a.transpose(0, 3, 1, 2))
    with pytest.raises(pelton.InputError, match="caffe 'Permute' is read as turned"):

        @pelton.register
        class Again(pelton.Plugin):
            caffe = "Permute"

            def layers(self, net, x):
                return x
