#!/usr/bin/env python3
"""Writes benchmark networks as ONNX files with random weights.

    python benchmarks/models.py FOLDER [NAME …] [--batch N]

Without names, writes networks that Pelton was not tuned for; names may also select those of the tuned suite. Seven are
graphs from the `onnx` package, with random weights; the others are exported from torch and torchvision, or defined
here. Batch norms have statistics of a random batch, and products without one are scaled, so values neither vanish nor
explode; two inputs must have different outputs. Needs onnx, onnxruntime and torch; some other networks need
torchvision.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from networks import MODELS

OPSET = 17
SUITE = ("resnet50", "googlenet", "mobilenet_v2", "yolov2", "bert_base", "lstm")
LIGHT = {
    "alexnet": "bvlc_alexnet",
    "densenet121": "densenet121",
    "googlenet": "inception_v1",
    "inception_v2": "inception_v2",
    "resnet50": "resnet50",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
}
# The shift of batch norms. ReLUs that zero half of all values amplify rounding errors layer by layer, which those of
# trained networks do not: no runtime would be right in half precision.
SHIFT = 1.5
# by how much two inputs must change the output, relative to its largest value
MIN_CHANGE = 0.01


def export(name: str, path: Path, batch: int) -> None:
    build, feed = MODELS[name]
    torch.manual_seed(0)
    # without the fused attention layer, which ONNX does not have
    torch.backends.mha.set_fastpath_enabled(False)
    module = build()
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    for m in norms:
        m.momentum = 1.0
        nn.init.uniform_(m.weight, 0.8, 1.2)
        nn.init.normal_(m.bias, SHIFT, 0.05)
    with torch.no_grad():
        if norms:
            module.train()(*feed(4).values())
        feeds = feed(batch)
        torch.onnx.export(
            module.eval(),
            (*feeds.values(),),
            str(path),
            input_names=[*feeds],
            output_names=["y"],
            opset_version=OPSET,
            dynamo=False,
        )


def fill_light(name: str, path: Path, batch: int) -> None:
    """A graph of the onnx package, whose weights are ConstantOfShape nodes, with random ones in their place."""
    model = onnx.load(Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{LIGHT[name]}.onnx")
    graph, rng = model.graph, np.random.default_rng(0)
    known = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    shapes = {n.output[0]: known[n.input[0]].tolist() for n in graph.node if n.op_type == "ConstantOfShape"}
    nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    shaped = {n.output[0]: n.input[0] for n in nodes if n.op_type == "Reshape"}
    products = {shaped.get(w, w) for n in nodes if n.op_type in ("Conv", "Gemm") for w in n.input[1:2]}
    centred = {w for n in nodes if n.op_type in ("Conv", "Gemm") for w in n.input[2:]}
    shifts = {w for n in nodes if n.op_type == "BatchNormalization" for w in n.input[2:3]}
    for key, shape in shapes.items():
        if key in products:
            value = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        elif key in centred:
            value = rng.normal(0, 0.05, shape)
        elif key in shifts:
            value = rng.normal(SHIFT, 0.05, shape)
        else:
            value = rng.uniform(0.8, 1.2, shape)
        graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), key))
    used = {x for n in nodes for x in n.input}
    weights = [w for w in graph.initializer if w.name in used]
    inputs = [i for i in graph.input if i.name in used - {w.name for w in weights}]
    targets = {n.input[1] for n in nodes if n.op_type == "Reshape"}
    for field, items in ((graph.node, nodes), (graph.initializer, weights), (graph.input, inputs)):
        del field[:]
        field.extend(items)
    model.ir_version = 8
    model = onnx.version_converter.convert_version(model, OPSET)
    settle(model)
    if batch != 1:
        for w in model.graph.initializer:
            shape = numpy_helper.to_array(w)
            if w.name in targets and shape[0] == 1:
                w.CopyFrom(numpy_helper.from_array(np.array([batch, *shape[1:]]), w.name))
        for port in (*model.graph.input, *model.graph.output):
            port.type.tensor_type.shape.dim[0].dim_value = batch
        del model.graph.value_info[:]
    onnx.save(model, path)


def settle(model: onnx.ModelProto) -> None:
    """Sets batch norms to the statistics of one random input, in order, and normalizes other products alike.

    Nodes run one by one: the whole graph would must be loaded again for each of them.
    """
    import onnxruntime

    stored = {w.name: w for w in model.graph.initializer}
    known = {name: numpy_helper.to_array(w) for name, w in stored.items()}
    shaped: dict[str, str] = {}  # a reshaped weight → the weight

    def change_to(name: str, value: np.ndarray) -> None:
        known[name] = value.astype(np.float32)
        stored[name].CopyFrom(numpy_helper.from_array(known[name], name))

    def run(n: onnx.NodeProto) -> list[np.ndarray]:
        given = {i: known[i] for i in n.input if i}
        ports = [
            onnx.helper.make_tensor_value_info(i, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for i, a in given.items()
        ]
        one = onnx.helper.make_graph(
            [n], n.op_type, ports, [onnx.helper.make_empty_tensor_value_info(o) for o in n.output if o]
        )
        alone = onnx.helper.make_model(one, ir_version=model.ir_version, opset_imports=model.opset_import)
        session = onnxruntime.InferenceSession(alone.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, given)

    x = model.graph.input[0]
    shape = [d.dim_value for d in x.type.tensor_type.shape.dim]
    known[x.name] = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    normed = {n.input[0] for n in model.graph.node if n.op_type == "BatchNormalization"}
    for n in model.graph.node:
        if n.op_type == "BatchNormalization":
            found = known[n.input[0]]
            change_to(n.input[3], found.mean((0, 2, 3)))
            change_to(n.input[4], np.maximum(found.var((0, 2, 3)), 1e-2))
        results = run(n)
        if n.op_type in ("Conv", "Gemm") and n.output[0] not in normed:
            found, (weight, *bias) = results[0], (shaped.get(i, i) for i in n.input[1:])
            wide = found[0, 0].size > 1  # each channel has statistics
            mean, spread = np.float32(0), found.std()
            if wide:
                mean, spread = found.mean((0, 2, 3)), np.maximum(found.std((0, 2, 3)), 0.1)
            change_to(weight, known[weight] / (spread[:, None, None, None] if wide else spread))
            for name in bias:
                change_to(name, (known[name] - mean) / spread + SHIFT * wide)
            for name, of in shaped.items():
                known[name] = known[of].reshape(known[name].shape)
            results = run(n)
        if n.op_type == "Reshape" and n.input[0] in stored:
            shaped[n.output[0]] = n.input[0]
        known.update(zip((o for o in n.output if o), results))


def change(path: Path) -> float:
    """The change of the first output between two random inputs, relative to its maximum; SystemExit if too small."""
    import onnxruntime

    def draw(port, rng: np.random.Generator) -> np.ndarray:
        if "float" in port.type:
            return rng.standard_normal(port.shape).astype(np.float32)
        return np.ones(port.shape, np.int64) if port.name == "mask" else rng.integers(0, 1000, port.shape)

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outs = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        feeds = {port.name: draw(port, rng) for port in session.get_inputs()}
        outs.append(session.run(None, feeds)[0].astype(np.float64))
    by = float(np.abs(outs[0] - outs[1]).max() / np.abs(outs[0]).max())
    if not by > MIN_CHANGE:
        raise SystemExit(f"{path}: two inputs change the output by only {by:.2g} of its largest value")
    return by


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("folder", type=Path)
    ask.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(sorted([*LIGHT, *MODELS]))}; if none is given, all but {', '.join(SUITE)}",
    )
    ask.add_argument("--batch", type=int, default=1)
    a = ask.parse_args()
    unknown = [n for n in a.names if n not in LIGHT and n not in MODELS]
    if unknown:
        ask.error(f"there is no {unknown[0]}; there are {', '.join(sorted([*LIGHT, *MODELS]))}")
    a.folder.mkdir(parents=True, exist_ok=True)
    for name in a.names or sorted({*LIGHT, *MODELS} - {*SUITE}):
        path = a.folder / (name + (f"_b{a.batch}" if a.batch > 1 else "") + ".onnx")
        (fill_light if name in LIGHT else export)(name, path, a.batch)
        size = path.stat().st_size / 1e6
        print(f"{path}: {size:.1f} MB, two inputs differ by {change(path):.2f} of the largest output", flush=True)


if __name__ == "__main__":
    main()
