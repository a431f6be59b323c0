"""Rounding, pruning and clustering of weights, against simple oracles."""

import numpy as np
import pytest

import pelton
from pelton.compression import blocks, cluster, compensate, methods, prune, scaling
from pelton.compression.layers import find_layers
from pelton.compression.moments import Moments
from pelton.compression.write import Division, write_versions
from pelton.ir.evaluate import evaluate

GRIDS = [blocks.WeightGrid(bits, block, zeros) for bits in (4, 8) for block in (16, 48) for zeros in (False, True)]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def nearest(row, scale, zero, grid):
    """The codes of a row by trying every number that its blocks hold."""
    numbers = np.arange(grid.lowest, grid.highest + 1)
    return [
        int(numbers[np.abs((numbers - zero[i // grid.block]) * scale[i // grid.block] - w).argmin()])
        for i, w in enumerate(row)
    ]


def correlated(rng, rows, inner):
    """Rows of inputs with few directions, as those of layers have."""
    few = rng.standard_normal((rows, max(inner // 4, 1)))
    return few @ rng.standard_normal((few.shape[1], inner)) + 0.1 * rng.standard_normal((rows, inner))


def moments_of(x):
    return Moments(x.T @ x, x.T @ x, x.T @ x)


# --- rounding


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_rounding_to_nearest_is_the_nearest_of_all_numbers(rng, grid):
    rows = rng.standard_normal((5, 70)) * rng.uniform(0.01, 10, (5, 1))
    scales = blocks.find_scales(rows, grid, clip=False)
    packed = blocks.round_to_nearest(rows, scales)
    for row, scale, zero, codes in zip(rows, scales.scale, scales.zero, packed.codes):
        want = nearest(row, scale.astype(np.float64), zero.astype(np.int64), grid)
        assert codes.tolist() == want
    step = scales.spread(70)[0]
    assert (np.abs(packed.weights() - rows) <= 0.5001 * step).all()  # nothing is clipped


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_clipping_minimizes_the_weighted_squared_error(rng, grid):
    rows, importance = rng.standard_t(3, (6, 96)), rng.uniform(0.1, 10, 96)

    def error(scales):
        return (np.square(blocks.round_to_nearest(rows, scales).weights() - rows) * importance).sum(1)

    plain, best = (error(blocks.find_scales(rows, grid, importance, clip)) for clip in (False, True))
    assert (best <= plain * (1 + 1e-6)).all() and (grid.bits == 8 or best.sum() < 0.98 * plain.sum())


def test_blocks_of_zeros_and_of_tiny_numbers_stay_near(rng):
    rows = np.concatenate([np.zeros((1, 32)), np.full((1, 32), 1e-44), np.full((1, 32), 3e38)])
    for grid in GRIDS[:2]:
        weights = blocks.round_to_nearest(rows, blocks.find_scales(rows, grid)).weights()
        assert np.isfinite(weights).all() and (weights[0] == 0).all()
        assert np.abs(weights - rows).max() <= 0.1 * 3e38


def gptq_of_one_row(row, scale, zero, grid, moments):
    """GPTQ as the paper has it: the inverse without the columns that are done, one at a time."""
    left, codes = row.copy(), []
    for i in range(len(row)):
        inverse = np.linalg.inv(moments[i:, i:])
        (code,) = nearest(left[i : i + 1], [scale[i // grid.block]], [zero[i // grid.block]], grid)
        codes.append(code)
        error = left[i] - (code - zero[i // grid.block]) * scale[i // grid.block]
        left[i:] -= error / inverse[0, 0] * inverse[0]
    return codes


@pytest.mark.parametrize("grid", [blocks.WeightGrid(4, 16), blocks.WeightGrid(4, 32, True)], ids=str)
def test_gptq_is_that_of_the_paper(rng, grid):
    rows, x = rng.standard_normal((3, 70)), correlated(rng, 200, 70)
    moments = compensate.damped(x.T @ x)
    scales = blocks.find_scales(rows, grid)
    packed = compensate.compensate(rows, scales, moments)
    for row, scale, zero, codes in zip(rows, scales.scale.astype(np.float64), scales.zero.astype(int), packed.codes):
        assert codes.tolist() == gptq_of_one_row(row, scale, zero, grid, moments)


def test_compensation_and_descent_lower_the_output_error(rng):
    rows, x = rng.standard_normal((8, 96)), correlated(rng, 400, 96)
    full, around = compensate.damped(x.T @ x), moments_of(x)
    scales = blocks.find_scales(rows, blocks.WeightGrid(4, 32))

    def error(packed):
        assert around.error(rows, packed.weights()) == pytest.approx(
            np.square(x @ (packed.weights() - rows).T).sum() / np.square(x @ rows.T).sum()
        )
        return around.error(rows, packed.weights())

    first = compensate.compensate(rows, scales, full, ordered=True)
    better = compensate.descend(rows, first, full)
    fitted = compensate.fit_scales(rows, better, full)
    assert error(first) < 0.6 * error(blocks.round_to_nearest(rows, scales))
    assert error(fitted) <= error(better) * 1.001 and error(better) < error(first)
    assert (fitted.codes == better.codes).all()


def test_columns_without_inputs_are_rounded_plainly(rng):
    rows, x = rng.standard_normal((4, 40)), correlated(rng, 100, 40)
    x[:, 5:9] = 0
    scales = blocks.find_scales(rows, blocks.WeightGrid(4, 16))
    packed = compensate.compensate(rows, scales, compensate.damped(x.T @ x), ordered=True)
    assert (packed.codes[:, 5:9] == blocks.round_to_nearest(rows, scales).codes[:, 5:9]).all()


def test_the_target_undoes_an_error_of_the_inputs(rng):
    rows, x = rng.standard_normal((8, 24)), rng.standard_normal((500, 24))
    other = x * np.linspace(0.8, 1.2, 24)  # what the layers in front make of it
    moments = Moments(other.T @ other, x.T @ x, other.T @ x)
    before, after = (moments.error(rows, w) for w in (rows, moments.target(rows)))
    assert before == pytest.approx(np.square(other @ rows.T - x @ rows.T).sum() / np.square(x @ rows.T).sum())
    assert after < 0.5 * before


def test_an_outlier_of_the_inputs_makes_gains_worth_it(rng):
    rows, x = rng.standard_normal((16, 64)), rng.standard_normal((300, 64))
    x[:, 3] *= 40
    found = {
        scalable: methods.choose([rows], [blocks.WeightGrid(4, 64)], "clip", moments_of(x), [None], scalable)[0]
        for scalable in (False, True)
    }
    assert found[True].error < 0.95 * found[False].error and found[True].method == "clip, scaled"
    assert found[True].gain[3] > 2 * np.median(found[True].gain)


def test_zeros_survive_rounding(rng):
    rows, x = rng.standard_normal((8, 64)), correlated(rng, 300, 64)
    for zeros in (False, True):
        pruned = prune.pruned_weights(rows, prune.read_sparsity("2:4"), x.T @ x)
        grid = blocks.WeightGrid(4, 32, zeros)
        for version in methods.versions(rows, grid, "auto", moments_of(x), pruned):
            assert (version.weights[pruned] == 0).all(), version.method


# --- pruning and clusters


def test_pruning_takes_the_lowest_scores(rng):
    rows, x = rng.standard_normal((6, 44)), rng.standard_normal((50, 44)) * rng.uniform(0.1, 10, 44)
    share = prune.pruned_weights(rows, prune.read_sparsity(0.75))
    assert share.mean() == 0.75 and np.abs(rows[share]).max() <= np.abs(rows[~share]).min()
    wanda = prune.pruned_weights(rows, prune.read_sparsity("0.5"), x.T @ x)
    score = np.abs(rows) * np.linalg.norm(x, axis=0)
    for row, mask in zip(score, wanda):
        assert mask.sum() == 22 and row[mask].max() <= row[~mask].min()
    groups = prune.pruned_weights(rows, prune.read_sparsity("2:4")).reshape(6, 11, 4)
    assert (groups.sum(2) == 2).all()
    assert (prune.pruned_weights(rows[:, :5], prune.read_sparsity("2:4"))[:, 4] == 0).all()  # alone in its group


def test_clusters_are_centres_of_their_values(rng):
    values = np.concatenate([rng.normal(c, 0.01, 50) for c in (-3, 0.5, 2)]).reshape(10, 15)
    centres, codes = cluster.cluster(values, 3)
    assert centres == pytest.approx([-3, 0.5, 2], abs=0.02) and codes.shape == values.shape
    assert np.abs(centres[codes] - values).max() < 0.1
    centres, codes = cluster.cluster(np.where(np.abs(values) < 1, 0, values), 2)
    assert (centres[codes[np.abs(values) < 1]] == 0).all()
    values = rng.standard_normal(4000)
    centres, codes = cluster.cluster(values, 16)
    assert (codes == np.abs(values[:, None] - centres.astype(np.float64)).argmin(1)).mean() > 0.999
    assert np.square(centres[codes] - values).mean() < 0.012  # Lloyd and Max: 0.0095 for a normal distribution


# --- scales that the nodes in front take over


def scaled_network(rng, front):
    """Two products of one input, which comes from a norm, a factor, or a gated product with a bias."""
    net = pelton.Network()
    x = net.input("x", "f32[batch, 64]")

    def weight(inner, rows):
        return rng.standard_normal((inner, rows)).astype(np.float32)

    def vector():
        return rng.uniform(0.5, 2, 64).astype(np.float32)

    if front == "layer_norm":
        y = net.layer_norm(x, vector(), vector(), axis=1)
    elif front == "rms_norm":
        y = net.rms_norm(x, vector(), axis=1)
    elif front == "factor":
        y = net.mul(net.tanh(x), vector())
    elif front == "product":
        y = net.mul(net.sigmoid(net.matmul(x, weight(64, 64))), net.add(net.matmul(x, weight(64, 64)), vector()))
    else:
        y = net.relu(net.matmul(x, weight(64, 64)))
    net.output(net.matmul(y, weight(64, 80)), "a")
    net.output(net.matmul(y, weight(64, 96)), "b")
    if front == "read twice":
        net.output(net.relu(y), "c")
    return net.graph()


@pytest.mark.parametrize("front", ["layer_norm", "rms_norm", "factor", "product", "relu", "read twice"])
def test_the_nodes_in_front_divide_by_a_gain_exactly(rng, front):
    graph = scaled_network(rng, front)
    layers, _ = find_layers(graph)
    group = [layer for layer in layers if layer.shape[0] > 64]
    divisors = scaling.find_divisors(graph, group, layers)
    assert bool(divisors) == (front not in ("relu", "read twice")), front
    if divisors:
        gain = rng.uniform(0.1, 10, 64)
        chosen = {}
        for layer in layers:
            rows = layer.rows(graph.constants[layer.weight])
            version = methods.Version(rows, "float", 32, gain=gain if layer in group else None)
            chosen[layer] = methods.as_they_are(rows, version)
            (packed,) = methods.versions(rows, blocks.WeightGrid(8, 16), "nearest", None, None, version.gain)
            if front == "product" and layer not in group:
                chosen[layer] = packed  # its scales are divided
        written = write_versions(graph, chosen, [Division(divisors, group[0])])
        assert {v.name for v in written.constants} - {v.name for v in graph.constants}
        data = {"x": rng.standard_normal((5, 64)).astype(np.float32)}
        for name, want in evaluate(graph, data).items():
            close = 0.02 if front == "product" else 1e-5
            assert np.abs(evaluate(written, data)[name] - want).max() <= close * np.abs(want).max()
