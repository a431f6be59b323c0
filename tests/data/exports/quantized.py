"""Networks of the other scripts, quantized by onnxruntime: pip install onnxruntime onnx; python quantized.py [NAME…]"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from keep import HERE, Made, export, run
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process


class Feeds(CalibrationDataReader):
    def __init__(self, feeds: list[dict[str, np.ndarray]]):
        self.left = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def kept(name: str) -> list[dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(HERE / f"{name}.npz") as arrays:
        for key in arrays.files:
            side, _, rest = key.partition(":")
            if side.startswith("in"):
                found.setdefault(side, {})[rest] = arrays[key]
    return [*found.values()]


def made(name: str, quantize: Any) -> Made:
    """What onnxruntime gives is what is meant: nobody else knows these models."""
    feeds = kept(name)
    with tempfile.TemporaryDirectory() as folder:
        first, prepared, last = (Path(folder) / n for n in ("first.onnx", "prepared.onnx", "last.onnx"))
        first.write_bytes(np.load(HERE / f"{name}.npz")["model"].tobytes())
        quant_pre_process(first, prepared, skip_symbolic_shape=True)
        quantize(prepared, last, feeds)
        data = last.read_bytes()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return data, feeds, [session.run(None, f) for f in feeds]


# reduce_range: onnxruntime's sums of products of bytes overflow without on machines that have no VNNI
def static(**more: Any) -> Any:
    def quantize(model: Path, to: Path, feeds: list[dict[str, np.ndarray]]) -> None:
        quantize_static(model, to, Feeds(feeds), calibrate_method=CalibrationMethod.MinMax, **more)

    return quantize


def dynamic(**more: Any) -> Any:
    return lambda model, to, feeds: quantize_dynamic(model, to, **more)


@export
def quantized_images_qdq() -> Made:
    return made(
        "torch_images",
        static(quant_format=QuantFormat.QDQ, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8),
    )


@export
def quantized_images_operators() -> Made:
    return made(
        "torch_images", static(quant_format=QuantFormat.QOperator, reduce_range=True, weight_type=QuantType.QInt8)
    )


@export
def quantized_conv_unsigned() -> Made:
    return made(
        "keras_conv",
        static(quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8, weight_type=QuantType.QUInt8),
    )


@export
def quantized_encoder_dynamic() -> Made:
    return made("torch_encoder", dynamic(weight_type=QuantType.QInt8, reduce_range=True))


@export
def quantized_speech_dynamic() -> Made:
    return made("torch_speech", dynamic(weight_type=QuantType.QUInt8))


@export
def quantized_perceptron_dynamic() -> Made:
    return made("keras_attention", dynamic(weight_type=QuantType.QInt8, reduce_range=True, per_channel=True))


if __name__ == "__main__":
    run()
