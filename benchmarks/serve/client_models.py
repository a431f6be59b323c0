"""Repositories of models for the tests of others: their own where these have files, else engines of networks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import onnx

import pelton

QUEUE = """dynamic_batching {
  max_queue_delay_microseconds: 1000000
  preferred_batch_size: [ 8 ]
  default_queue_policy { max_queue_size: 1 }
}
"""
STATE = 'state [ { input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]'


def save(network: pelton.Network, folder: Path, versions: tuple[int, ...] = (1,), config: str = "") -> None:
    """Builds an engine into a model's folder, for each version."""
    engine = pelton.build(network, level=0, threads=1)
    for version in versions:
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
        engine.save(folder / str(version) / "model.pelton")
    if config:
        (folder / "config.pbtxt").write_text(config)


def identity(folder: Path, dtype: str, tensors: int = 1, width: int | str = "n", axes: int = 1, more: str = "") -> None:
    """Writes a model that returns its inputs INPUT0, … as OUTPUT0, …."""
    net = pelton.Network(folder.name)
    sizes = ", ".join([str(width), *(f"n{i}" for i in range(1, axes))])
    for i in range(tensors):
        net.output(net.input(f"INPUT{i}", f"{dtype}[batch, {sizes}]"), f"OUTPUT{i}")
    save(net, folder, config=f'name: "{folder.name}"\nmax_batch_size: 8\n{more}')


def sums(folder: Path, dtype: str, versions: tuple[int, ...], serve: str) -> None:
    """Writes the model of two inputs that Triton's tests have in many formats: a sum and a difference of 16 numbers,
    which change places from the second version on. serve: the versions that its policy selects."""
    for version in versions:
        net = pelton.Network(folder.name)
        a, b = (net.input(f"INPUT{i}", f"{dtype}[batch, 16]") for i in (0, 1))
        results = [net.add(a, b), net.sub(a, b)]
        for i, result in enumerate(results if version == 1 else results[::-1]):
            net.output(result, f"OUTPUT{i}")
        save(net, folder, (version,))
    labels = 'output [ { name: "OUTPUT0" dims: [ 16 ] label_filename: "output0_labels.txt" } ]\n'
    (folder / "config.pbtxt").write_text(f'name: "{folder.name}"\nmax_batch_size: 8\nversion_policy: {serve}\n{labels}')
    (folder / "output0_labels.txt").write_text("".join(f"label{i}\n" for i in range(16)))


def examples(checkout: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Copies docs/examples/model_repository of the server's checkout. A model in Python is replaced by an engine; those
    without files are left out. Returns the models that are as they were, and those left out.

    simple_string_dyna_sequence does what the library in C++ does that qa/L0_http/test.sh uses.
    """
    kept, left = [], []
    for source in sorted((checkout / "docs/examples/model_repository").iterdir()):
        files = list(source.glob("[0-9]*/*"))
        target = folder / source.name
        if not files:
            left.append(source.name)
        elif files[0].suffix == ".py":
            identity(target, "string")
            text = (source / "config.pbtxt").read_text()
            (target / "config.pbtxt").write_text(re.sub(r'^backend: "python"\n', "", text, flags=re.M))
        else:
            shutil.copytree(source, target)
            kept.append(source.name)
    _string_sequences(folder / "simple_dyna_sequence", folder / "simple_string_dyna_sequence")
    return kept, left


def _string_sequences(source: Path, target: Path) -> None:
    """Writes a model that adds up the inputs of a sequence, and at its end the identifier, which is a text."""
    shutil.copytree(source, target)
    text = (target / "config.pbtxt").read_text().replace(source.name, target.name)
    text = re.sub(r"(CONTROL_SEQUENCE_CORRID\n.*data_type:).*", r"\1 TYPE_STRING", text)
    text = text.replace("sequence_batching {", f"sequence_batching {{ {STATE}", 1)
    (target / "config.pbtxt").write_text(text)
    number, words = onnx.TensorProto.INT32, onnx.TensorProto.STRING
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        make("Cast", ["CORRID"], ["number"], to=number),
        make("Mul", ["number", "END"], ["last"]),
        make("Sub", ["START", "START"], ["no_start"]),
        make("Sub", ["READY", "READY"], ["no_ready"]),
        *(
            make("Add", [a, b], [c])
            for a, b, c in (
                ("INPUT", "SUM", "sum"),
                ("sum", "no_start", "all"),
                ("all", "no_ready", "SUM_OUT"),
                ("SUM_OUT", "last", "OUTPUT"),
            )
        ),
    ]
    inputs = [value(n, number, ["batch", 1]) for n in ("INPUT", "START", "END", "READY", "SUM")]
    outputs = [value(n, number, ["batch", 1]) for n in ("OUTPUT", "SUM_OUT")]
    graph = onnx.helper.make_graph(nodes, target.name, [*inputs, value("CORRID", words, ["batch", 1])], outputs)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        target / "1" / "model.onnx",
    )


def identities(folder: Path) -> None:
    """Writes the models of qa/L0_http's tests, with the shapes that the generators of qa/common give them."""
    identity(folder / "onnx_zero_1_float32", "f32")
    identity(folder / "onnx_zero_1_float32_queue", "f32", more=QUEUE)
    identity(folder / "onnx_zero_1_float16", "f16", axes=2)
    identity(folder / "onnx_zero_1_object", "string")
    identity(folder / "onnx_zero_1_object_1_element", "string", width=1)
    identity(folder / "onnx_zero_3_float32", "f32", tensors=3)
    identity(folder / "simple_identity", "string")
    identity(folder / "simple_identity_int64", "i64")


def platform_sums(folder: Path, dtype: str, platforms: tuple[str, ...]) -> None:
    """Writes PLATFORM_TYPE_TYPE_TYPE for each platform, with the versions of qa/common/gen_qa_models.py."""
    name = {"f32": "float32", "i32": "int32"}[dtype]
    serve = "{ specific { versions: [1, 3] }}" if dtype == "f32" else "{ all { }}"
    for platform in platforms:
        sums(folder / f"{platform}_{name}_{name}_{name}", dtype, (1, 2, 3), serve)


def remove_version(folder: Path, version: int) -> None:
    """Removes a version of a model."""
    shutil.rmtree(folder / str(version))
