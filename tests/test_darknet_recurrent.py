"""Darknet's recurrent layers, and those that return boxes, beside its sources' definitions, in numpy."""

import numpy as np
import pytest
from test_darknet_layers import ALEXEYAB, PJREDDIE, check, convolve, logistic, net, normal, run

RNG = np.random.default_rng(1)
STEPS, BATCH, UNITS, HIDDEN = 3, 2, 5, 4


def sequence(layers, x=(UNITS,)):
    sizes = dict(inputs=UNITS) if len(x) == 1 else dict(channels=x[0], height=x[1], width=x[2])
    options = "".join(f"{k}={v}\n" for k, v in dict(sizes, time_steps=7).items())
    return f"[net]\n{options}{layers}".encode()


class Linear:
    """A connected layer with normalization, and its arrays in the order of a file."""

    def __init__(self, outputs, inputs, normalize=True):
        self.bias, self.weights = normal(outputs), normal(outputs, inputs)
        self.scale, self.mean, self.variance = normal(outputs), normal(outputs), RNG.uniform(0.5, 2, outputs)
        self.arrays = [self.bias, self.weights] + [self.scale, self.mean, self.variance] * normalize
        self.normalize = normalize

    def __call__(self, x):
        y = x @ self.weights.T
        y = (y - self.mean) / np.sqrt(self.variance) * self.scale if self.normalize else y
        return y + self.bias


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("version, order", [(PJREDDIE, "ifog"), (ALEXEYAB, "figo")])
def test_lstm(tmp_path, version, order, normalize):
    w = {gate: Linear(HIDDEN, HIDDEN, normalize) for gate in order}
    u = {gate: Linear(HIDDEN, UNITS, normalize) for gate in order}
    x, h, c, want = normal(STEPS, BATCH, UNITS), np.zeros((BATCH, HIDDEN)), np.zeros((BATCH, HIDDEN)), []
    for step in x:
        i, f, o = (logistic(w[g](h) + u[g](step)) for g in "ifo")
        c = f * c + i * np.tanh(w["g"](h) + u["g"](step))
        h = o * np.tanh(c)
        want.append(h)
    arrays = [a for layer in (*w.values(), *u.values()) for a in layer.arrays]
    text = sequence(f"[lstm]\noutput={HIDDEN}\nbatch_normalize={normalize}\n")
    check(run(tmp_path, text, x, arrays, version), np.stack(want))


@pytest.mark.parametrize("tanh", [0, 1])
@pytest.mark.parametrize("version", [PJREDDIE, ALEXEYAB])
def test_gru(tmp_path, version, tanh):
    w, u = ([Linear(HIDDEN, n) for _ in "zrh"] for n in (HIDDEN, UNITS))
    x, h, want = normal(STEPS, BATCH, UNITS), np.zeros((BATCH, HIDDEN)), []
    for step in x:
        z, r = (logistic(w[k](h) + u[k](step)) for k in (0, 1))
        candidate = u[2](step) + w[2](r * h)
        h = z * h + (1 - z) * (np.tanh(candidate) if tanh else logistic(candidate))
        want.append(h)
    layers = (*w, *u) if version is PJREDDIE else (*u, *w)
    text = sequence(f"[gru]\noutput={HIDDEN}\nbatch_normalize=1\ntanh={tanh}\n")
    check(run(tmp_path, text, x, [a for layer in layers for a in layer.arrays], version), np.stack(want))


@pytest.mark.parametrize("shortcut", [0, 1])
def test_rnn_and_what_follows_it(tmp_path, shortcut):
    f, g, o, last = Linear(HIDDEN, UNITS), Linear(HIDDEN, HIDDEN), Linear(6, HIDDEN), Linear(3, 6, False)
    x, h, want = normal(STEPS, BATCH, UNITS), np.zeros((BATCH, HIDDEN)), []
    for step in x:
        h = np.tanh(f(step)) + np.tanh(g(h)) + shortcut * h
        want.append(last(np.tanh(o(h))))
    want = np.exp(want) / np.exp(want).sum(-1, keepdims=True)
    text = sequence(
        f"[rnn]\nhidden={HIDDEN}\noutput=6\nbatch_normalize=1\nactivation=tanh\nshortcut={shortcut}\n"
        "[connected]\noutput=3\nactivation=linear\n[softmax]\n"
    )
    check(run(tmp_path, text, x, [a for layer in (f, g, o, last) for a in layer.arrays]), want)


@pytest.mark.parametrize("size, options", [(3, ""), (1, "size=1\npad=0\n"), (5, "size=5\npad=1\n")])
def test_crnn(tmp_path, size, options):
    (f, g, o), biases = (
        [normal(n, m, size, size) * 0.3 for n, m in ((3, 2), (3, 3), (4, 3))],
        [normal(n) for n in (3, 3, 4)],
    )
    x, h, want = normal(STEPS, BATCH, 2, 5, 6), np.zeros((BATCH, 3, 5, 6)), []

    def apply(x, w, b):
        return logistic(convolve(x, w, pad=size // 2) + b[:, None, None])

    for step in x:
        h = apply(step, f, biases[0]) + apply(h, g, biases[1])
        want.append(apply(h, o, biases[2]))
    arrays = [a for w, b in zip((f, g, o), biases) for a in (b, w)]
    text = sequence(f"[crnn]\nhidden_filters=3\noutput_filters=4\n{options}", (2, 5, 6))
    check(run(tmp_path, text, x, arrays), np.stack(want))


def boxes(x, anchors, classes, activate, picture):
    """The loops of get_region_box and get_yolo_box, for one picture [anchors · (5 + classes), h, w]."""
    h, w = x.shape[1:]
    x, found = x.reshape(len(anchors), 5 + classes, h, w), []
    for row in range(h):
        for column in range(w):
            for n, (aw, ah) in enumerate(anchors):
                bx, by, bw, bh, objectness, *scores = x[n, :, row, column].astype(np.float64)
                o = logistic(objectness)
                found.append(
                    [(column + logistic(bx)) / w, (row + logistic(by)) / h]
                    + [np.exp(bw) * aw / picture[1], np.exp(bh) * ah / picture[0], o, *(activate(np.array(scores)) * o)]
                )
    return np.array(found)


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


@pytest.mark.parametrize("flag, activate", [(1, softmax), (0, logistic)])
def test_region_layers(tmp_path, flag, activate):
    x, anchors = normal(2, 16, 4, 3), [(1.5, 2.5), (3.0, 0.5)]
    text = net(f"[region]\nanchors=1.5,2.5,3,.5\nclasses=3\nnum=2\nsoftmax={flag}\n", 16, 4, 3)
    check(run(tmp_path, text, x), np.stack([boxes(a, anchors, 3, activate, (4, 3)) for a in x]))


def test_yolo_layers_are_all_outputs(tmp_path):
    x = normal(2, 16, 4, 6)
    first = "[yolo]\nanchors=10,20, 30,40, 50,60, 70,80\nmask=2,0\nnum=3\nclasses=3\n"
    text = net(first + "[route]\nlayers=-2\n[maxpool]\nsize=2\nstride=2\n" + first, 16, 4, 6)
    text = text.replace(b"[yolo]", b"[activation]\n[yolo]", 1)
    whole, half = run(tmp_path, text, x)
    anchors, pooled = [(50, 60), (10, 20)], x.reshape(2, 16, 2, 2, 3, 2).max((3, 5))
    check(whole, np.stack([boxes(a, anchors, 3, logistic, (4, 6)) for a in x]))
    check(half, np.stack([boxes(a, anchors, 3, logistic, (4, 6)) for a in pooled]))


def test_detection_layers(tmp_path):
    side, classes, num = 2, 3, 2
    x = normal(2, side * side * (classes + 5 * num), 1, 1)
    text = net(f"[detection]\nside={side}\nclasses={classes}\ncoords=4\nnum={num}\nsqrt=1\n", x.shape[1], 1, 1)
    want = []
    for p in x.reshape(2, -1):
        rows = []
        for cell in range(side * side):
            for n in range(num):
                scale = p[side * side * classes + cell * num + n]
                bx, by, bw, bh = p[side * side * (classes + num) + (cell * num + n) * 4 :][:4]
                probabilities = p[cell * classes : (cell + 1) * classes]
                center = [(bx + cell % side) / side, (by + cell // side) / side]
                rows.append([*center, bw**2, bh**2, scale, *(scale * probabilities)])
        want.append(rows)
    check(run(tmp_path, text, x), np.array(want))
