"""The tables of docs/network.md: every snippet runs, and the tables are complete."""

import re
from pathlib import Path

import numpy as np
import pytest

import pelton

PAGE = (Path(__file__).parents[1] / "docs" / "network.md").read_text()
MODEL = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
# words of the column that are no snippets: names in prose
WORDS = {"net", "onnx", "onnx = (domain, type)"}
# LayerType of NvInfer.h, TensorRT 11.1
LAYERS = """CONVOLUTION CAST ACTIVATION POOLING LRN SCALE SOFTMAX DECONVOLUTION CONCATENATION ELEMENTWISE PLUGIN UNARY
PADDING SHUFFLE REDUCE TOPK GATHER MATRIX_MULTIPLY RAGGED_SOFTMAX CONSTANT IDENTITY PLUGIN_V2 SLICE SHAPE
PARAMETRIC_RELU RESIZE TRIP_LIMIT RECURRENCE ITERATOR LOOP_OUTPUT SELECT FILL QUANTIZE DEQUANTIZE CONDITION
CONDITIONAL_INPUT CONDITIONAL_OUTPUT SCATTER EINSUM ASSERTION ONE_HOT NON_ZERO GRID_SAMPLE NMS REVERSE_SEQUENCE
NORMALIZATION PLUGIN_V3 SQUEEZE UNSQUEEZE CUMULATIVE DYNAMIC_QUANTIZE ATTENTION_INPUT ATTENTION_OUTPUT ROTARY_EMBEDDING
KVCACHE_UPDATE MOE DIST_COLLECTIVE""".split()
ACTIVATIONS = """RELU SIGMOID TANH LEAKY_RELU ELU SELU SOFTSIGN SOFTPLUS CLIP HARD_SIGMOID SCALED_TANH THRESHOLDED_RELU
GELU_ERF GELU_TANH""".split()
ELEMENTWISE = "SUM PROD MAX MIN SUB DIV POW FLOOR_DIV AND OR XOR EQUAL GREATER LESS".split()


def rows(title):
    """(what users of another library write, what they write here) of a section's table."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)[1]
    return [tuple(line.strip("|").split(" | ", 1)) for line in section.splitlines() if line.startswith("| ")][2:]


TABLES = ("From TensorRT's INetworkDefinition", "From ONNX GraphSurgeon", "From onnxscript")
SNIPPETS = [
    code for table in TABLES for _, here in rows(table) for code in re.findall(r"`([^`]+)`", here) if code not in WORDS
]


def names(net):
    """What the snippets speak of."""
    rng = np.random.default_rng(0)

    def some(*shape):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)

    x = net.input("x", "f32[2, 8, 8, 8]")
    found = {"net": net, "x": x, "a": net.relu(x, name="a"), "b": net.exp(x, name="b"), "np": np, "pelton": pelton}
    found |= dict.fromkeys(("scale", "shift", "bias", "mean", "variance"), some(8))
    found |= dict(weight=some(8, 8, 3, 3), matrix=some(8, 8), slopes=some(8, 1, 1), grid=some(2, 5, 6, 2))
    found |= dict(indices=np.array([[1, 0, 1]]), places=np.zeros((2, 3, 8, 8), np.int64), updates=some(2, 3, 8, 8))
    found |= dict(
        tuples=np.array([[0, 3], [1, 7]]), rows=some(2, 8, 8), condition=x > 0.5, cos=some(8, 4), sin=some(8, 4)
    )
    found |= dict(flag=net.reduce_sum(x, keepdims=False) > 0, q=net.cast(x, "i8"), boxes=some(2, 9, 4))
    found |= dict(scores=some(2, 3, 9), lengths=np.arange(1, 9) % 3, sequence=some(5, 2, 4), w=some(1, 32, 4))
    return found | dict(r=some(1, 32, 8))


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_of_the_tables_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(MODEL.read_bytes())
    build = pelton.build
    monkeypatch.setattr(pelton, "build", lambda *args, **how: build(*args, level=0, threads=1, **how))
    net = pelton.Network()
    given = names(net)
    if "net.graph" in code or "export_onnx" in code or "build" in code:
        net.output(given["b"], "y")
    found = eval(code, given)
    assert found is not None or code.startswith("net.replace") or "save" in code or "print" in code
    made = found if isinstance(found, tuple) else (found,)
    for t in made:
        if isinstance(t, type(given["x"])) and t.network is net and t.name not in net.outputs:
            net.output(t)
    if net.outputs:
        net.graph()


def test_all_of_tensorrt_is_there():
    left = " ".join(row[0] for row in rows(TABLES[0]))
    words = set(re.findall(r"[A-Z][A-Z_0-9]+", left))
    assert len(LAYERS) == 57 and set(LAYERS) <= words
    assert set(ACTIVATIONS) <= words and set(ELEMENTWISE) <= words
    assert len(SNIPPETS) > 150


def test_the_families_name_methods():
    """What the families name can be called."""
    named = {m for _, methods in rows("Layers by family") for m in re.findall(r"`(\w+)`", methods)}
    net = pelton.Network()
    assert [m for m in sorted(named) if not callable(getattr(net, m, None))] == []
    assert len(named) > 110
