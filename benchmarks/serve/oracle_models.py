"""Models that a Triton server and `pelton serve` both have: programs in Python for the one, engines for the other."""

from __future__ import annotations

from pathlib import Path

import pelton

from .client_models import save

# datatype of the protocol → Pelton's element type
DATATYPES = {
    "BOOL": "bool",
    "UINT8": "u8",
    "UINT16": "u16",
    "UINT32": "u32",
    "UINT64": "u64",
    "INT8": "i8",
    "INT16": "i16",
    "INT32": "i32",
    "INT64": "i64",
    "FP16": "f16",
    "FP32": "f32",
    "FP64": "f64",
    "BYTES": "string",
}
PROGRAM = '''import json

import triton_python_backend_utils as pb


class TritonPythonModel:
    """Adds and subtracts two inputs, or returns the only one."""

    def initialize(self, args):
        self.outputs = [o["name"] for o in json.loads(args["model_config"])["output"]]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        arrays = [tensor.as_numpy() for tensor in request.inputs()]
        if len(arrays) == 2:
            names = [tensor.name() for tensor in request.inputs()]
            a, b = (arrays[names.index(name)] for name in ("INPUT0", "INPUT1"))
            arrays = [a + b, a - b]
        wanted = request.requested_output_names()
        tensors = [pb.Tensor(name, array) for name, array in zip(self.outputs, arrays) if name in wanted]
        return pb.InferenceResponse(tensors)
'''
LABELS = ("car", "bike", "bus")


def write(engines: Path, programs: Path) -> None:
    """Writes the models into two repositories: engines for `pelton serve`, programs for Triton."""
    for datatype, dtype in DATATYPES.items():
        _write(engines, programs, f"identity_{datatype.lower()}", datatype, dtype, "n", 8)
    _write(engines, programs, "batched", "FP32", "f32", 4, 8, more="dynamic_batching { }\n")
    _write(engines, programs, "single", "FP32", "f32", 4, 0)
    _write(engines, programs, "scores", "FP32", "f32", len(LABELS), 8, labels=True)
    _write(engines, programs, "add_sub", "INT32", "i32", 4, 8, inputs=2)


def _write(
    engines: Path,
    programs: Path,
    name: str,
    datatype: str,
    dtype: str,
    width: int | str,
    batch: int,
    inputs: int = 1,
    labels: bool = False,
    more: str = "",
) -> None:
    kind = {"BYTES": "STRING"}.get(datatype, datatype)
    size = width if isinstance(width, int) else -1
    extra = ' label_filename: "labels.txt"' if labels else ""
    ports = [(f"INPUT{i}", f"OUTPUT{i}") for i in range(inputs)]
    config = f'name: "{name}"\nmax_batch_size: {batch}\n{more}'
    config += "".join(f'input {{ name: "{i}" data_type: TYPE_{kind} dims: {size} }}\n' for i, _ in ports)
    config += "".join(f'output {{ name: "{o}" data_type: TYPE_{kind} dims: {size}{extra} }}\n' for _, o in ports)
    save(_network(name, f"{dtype}[{'batch, ' if batch else ''}{width}]", ports), engines / name, config=config)
    (programs / name / "1").mkdir(parents=True)
    (programs / name / "1" / "model.py").write_text(PROGRAM)
    (programs / name / "config.pbtxt").write_text(f'backend: "python"\n{config}')
    if labels:
        for folder in (engines, programs):
            (folder / name / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))


def _network(name: str, shape: str, ports: list[tuple[str, str]]) -> pelton.Network:
    net = pelton.Network(name)
    tensors = [net.input(i, shape) for i, _ in ports]
    if len(tensors) == 2:
        tensors = [net.add(*tensors), net.sub(*tensors)]
    for tensor, (_, output) in zip(tensors, ports):
        net.output(tensor, output)
    return net
