"""TFLite's recurrent operators over several runs, beside loops written from their definitions."""

import numpy as np
import pytest
from tflite_models import ModelWriter

import pelton
from pelton.errors import ModelError
from pelton.importers.tflite import read
from pelton.importers.tflite.schema import OPTIONS

RNG = np.random.default_rng(4)
TIME, INPUTS, HIDDEN = 6, 3, 4
GATES = 4  # input, forget, cell and output


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def runs(model, feeds):
    """What a model gives for each of some inputs, with the states that it left; then the states."""
    engine = pelton.build(model, level=0, threads=1)
    states, found = engine.initial_states(), []
    for x in feeds:
        given = engine.run({"x": x, **states})
        states = {name: given.pop(output) for name, output in engine.state_outputs.items()}
        found.append(given["y"])
    return found, states


def lstm_model(weights, recurrent, biases, clip=0.0, x_spec=(), h_spec=(), c_spec=(), weight_scales=None, time=TIME):
    """weights, recurrent, biases: for each gate. Specs: dtype, scale and zero point of quantized tensors."""
    w, names = ModelWriter(), ("dtype", "scale", "zero")
    x_spec, h_spec, c_spec = (dict(zip(names, s)) for s in (x_spec, h_spec, c_spec))
    at = [{} if s is None else dict(scale=s) for s in weight_scales or [None] * 3]
    x = w.main.input((1, time, INPUTS), name="x", **x_spec)
    operands = [x, *(w.main.constant(a, **at[0]) for a in weights), *(w.main.constant(a, **at[1]) for a in recurrent)]
    operands += [-1] * 3 + [w.main.constant(a, **at[2]) for a in biases] + [-1] * 2
    operands += [w.main.tensor((1, HIDDEN), name=n, is_variable=True, **s) for n, s in (("h", h_spec), ("c", c_spec))]
    y = w.main.output((1, time, HIDDEN), name="y", **h_spec)
    options = dict(activation=4, cell_clip=clip)
    w.main.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", [*operands, *[-1] * 4], [y], "UnidirectionalSequenceLSTMOptions", **options
    )
    return w.bytes()


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_lstm(clip):
    weights, recurrent, biases = normal(GATES, HIDDEN, INPUTS), normal(GATES, HIDDEN, HIDDEN), normal(GATES, HIDDEN)
    feeds = [normal(1, TIME, INPUTS) for _ in range(2)]
    found, states = runs(lstm_model(weights, recurrent, biases, clip), feeds)
    h = c = np.zeros(HIDDEN)
    clipped = False
    for x, got in zip(feeds, found):
        for t in range(TIME):
            i, f, new, o = weights @ x[0, t] + recurrent @ h + biases
            cells = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
            c = np.clip(cells, -clip, clip) if clip else cells
            clipped |= bool((c != cells).any())
            h = sigmoid(o) * np.tanh(c)
            np.testing.assert_allclose(got[0, t], h, rtol=1e-4, atol=1e-5)
    assert clipped == bool(clip)
    np.testing.assert_allclose(states["c"][0], c, rtol=1e-4, atol=1e-5)


def test_lstm_of_integers():
    """Sums of gates are below 8 either way after each of the two products, and states are rounded at each step."""
    scales = dict(x=0.05, w=0.02, r=0.03, h=1 / 128, c=2**-11)
    weights, recurrent = (RNG.integers(-127, 128, (GATES, HIDDEN, k), np.int8) for k in (INPUTS, HIDDEN))
    bias_scale = scales["x"] * scales["w"]
    biases = RNG.integers(-900, 900, (GATES, HIDDEN), np.int32)
    model = lstm_model(
        weights,
        recurrent,
        biases,
        clip=10.0,
        x_spec=("i8", scales["x"], -3),
        h_spec=("i8", scales["h"], 5),
        c_spec=("i16", scales["c"], 0),
        weight_scales=(scales["w"], scales["r"], bias_scale),
    )
    feeds = [RNG.integers(-128, 128, (1, TIME, INPUTS), np.int8) for _ in range(3)]
    found, _ = runs(model, feeds)

    def held(gates):
        return np.clip(np.rint(gates * 4096), -32768, 32767) / 4096

    h, c, saturated = np.full(HIDDEN, 5), np.zeros(HIDDEN), False
    for x, got in zip(feeds, found):
        for t in range(TIME):
            sums = (weights.astype(int) @ (x[0, t].astype(int) + 3) + biases) * bias_scale
            first, further = held(sums), recurrent.astype(int) @ (h - 5) * (scales["r"] * scales["h"])
            saturated |= bool((np.abs(first - sums) > 1).any())
            i, f, new, o = held(first + further)
            c = np.clip(sigmoid(f) * c + sigmoid(i) * np.tanh(new), -10, 10)
            c = np.rint(c / scales["c"]) * scales["c"]
            h = np.clip(np.rint(sigmoid(o) * np.tanh(c) / scales["h"]) + 5, -128, 127).astype(int)
            assert np.abs(got[0, t].astype(int) - h).max() <= 1, t
    assert saturated


def test_lstm_of_integers_needs_a_number_of_steps():
    model = lstm_model(*(normal(GATES, HIDDEN, k) for k in (INPUTS, HIDDEN)), normal(GATES, HIDDEN), 0.3, time=1025)
    with pytest.raises(ModelError, match="needs a fixed number of steps, up to 1024, as it has clipped cells"):
        read(model)


@pytest.mark.parametrize("rank", [1, 2])
def test_svdf(rank):
    filters, steps, batch = 6, 5, 2
    features, time, bias = normal(filters, INPUTS), normal(filters, steps), normal(filters // rank)
    w = ModelWriter()
    x = w.main.input((batch, INPUTS), name="x")
    state = w.main.tensor((batch, filters * steps), name="state", is_variable=True)
    y = w.main.output((batch, filters // rank), name="y")
    w.main.op("SVDF", [x, *map(w.main.constant, (features, time, bias)), state], [y], "SVDFOptions", rank=rank)
    feeds = [normal(batch, INPUTS) for _ in range(steps + 2)]
    found, _ = runs(w.bytes(), feeds)
    memory = np.zeros((batch, filters, steps))
    for x, got in zip(feeds, found):
        memory = np.concatenate([memory[:, :, 1:], (x @ features.T)[:, :, None]], axis=2)
        want = (memory * time).sum(2).reshape(batch, -1, rank).sum(2) + bias
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_options_have_the_numbers_of_the_schema():
    """`union BuiltinOptions` of schema.fbs, in its order."""
    names = """
NONE Conv2D DepthwiseConv2D ConcatEmbeddings LSHProjection Pool2D SVDF RNN FullyConnected Softmax Concatenation
Add L2Norm LocalResponseNormalization LSTM ResizeBilinear Call Reshape SkipGram SpaceToDepth
EmbeddingLookupSparse Mul Pad Gather BatchToSpaceND SpaceToBatchND Transpose Reducer Sub Div Squeeze SequenceRNN
StridedSlice Exp TopKV2 Split LogSoftmax Cast Dequantize MaximumMinimum ArgMax Less Neg PadV2 Greater
GreaterEqual LessEqual Select Slice TransposeConv SparseToDense Tile ExpandDims Equal NotEqual Shape Pow ArgMin
FakeQuant Pack LogicalOr OneHot LogicalAnd LogicalNot Unpack FloorDiv Square ZerosLike Fill
BidirectionalSequenceLSTM BidirectionalSequenceRNN UnidirectionalSequenceLSTM FloorMod Range
ResizeNearestNeighbor LeakyRelu SquaredDifference MirrorPad Abs SplitV Unique ReverseV2 AddN GatherNd Cos Where
Rank ReverseSequence MatrixDiag Quantize MatrixSetDiag HardSwish If While DepthToSpace NonMaxSuppressionV4
NonMaxSuppressionV5 ScatterNd SelectV2 Densify SegmentSum BatchMatMul Cumsum CallOnce BroadcastTo Rfft2d Conv3D
Hashtable HashtableFind HashtableImport HashtableSize VarHandle ReadVariable AssignVariable Random Bucketize
Gelu DynamicUpdateSlice UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum ATan2 Sign
Bitcast BitwiseXor RightShift
""".split()
    assert OPTIONS == {i: f"{name}Options" for i, name in enumerate(names) if f"{name}Options" in OPTIONS.values()}
