"""The networks that browsers run, as ONNX files, with their inputs. Weights are random but for two networks: times
depend on sizes alone."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import pelton
from pelton.exporters.onnx import to_onnx
from pelton.network.tensor import NetworkTensor

from ..arm.networks import mobilenet_v2

OPSET = 20  # the oldest with Gelu
WORDS, LAYERS, WIDTH, HEADS, TOKENS = 8192, 6, 384, 6, 128  # of the BERT
CLASSES, BINS = 80, 16  # of the detector; bins for each side of a box
SILERO = "silero_vad/data/silero_vad_openvino_16k.onnx"  # the file without `If`


@dataclass(frozen=True)
class WebNetwork:
    """A network: its title, a function that writes its ONNX file, and one that draws its inputs by their shapes.

    images: True if TF.js' operators can express it.
    """

    title: str
    write: Callable[[Path, Path], None]
    draw: Callable[[np.random.Generator, str, Sequence[int]], np.ndarray]
    images: bool = True


class Layers:
    """Convolutions with random weights. Behind their activations, outputs neither grow nor vanish with depth."""

    def __init__(self, name: str):
        self.net, self.random = pelton.Network(name), np.random.default_rng(0)

    def weights(self, *shape: int, gain: float = 1.0) -> np.ndarray:
        return self.random.standard_normal(shape, np.float32) * np.float32(gain * np.prod(shape[1:]) ** -0.5)

    def convolution(
        self, x: NetworkTensor, outputs: int, kernel: int = 1, stride: int = 1, gain: float = 1.0, bias: float = 0.1
    ) -> NetworkTensor:
        w = self.weights(outputs, int(x.shape[1]), kernel, kernel, gain=gain)
        b = self.random.standard_normal(outputs, np.float32) * np.float32(bias)
        return self.net.convolution(x, w, b, stride=stride, padding=kernel // 2)

    def relu(self, x: NetworkTensor, outputs: int, kernel: int = 3) -> NetworkTensor:
        return self.net.relu(self.convolution(x, outputs, kernel, gain=2**0.5))

    def silu(self, x: NetworkTensor, outputs: int, kernel: int = 1, stride: int = 1) -> NetworkTensor:
        y = self.convolution(x, outputs, kernel, stride, gain=1.5, bias=0.3)
        return self.net.mul(y, self.net.sigmoid(y))


def unet() -> pelton.Network:
    """Ronneberger et al., 2015, padded, with 16 to 128 channels and bilinear upsampling."""
    new, kept, widths = Layers("unet"), [], (16, 32, 64, 128)
    net = new.net
    x = net.input("x", "f32[1, 3, 256, 256]")
    for level, width in enumerate(widths):
        x = net.max_pool(x, 2) if level else x
        x = new.relu(new.relu(x, width), width)
        kept.append(x)
    for width, side in zip(widths[-2::-1], kept[-2::-1]):
        x = net.concat([net.resize(x, scale=2.0, mode="linear"), side], 1)
        x = new.relu(new.relu(x, width), width)
    net.output(new.convolution(x, 2), "mask")
    return net


def bert() -> pelton.Network:
    """Devlin et al., 2019: six layers of 384, for 128 tokens of a vocabulary of 8,192."""
    net, new = pelton.Network("bert"), Layers("")
    ids = net.input("ids", f"i64[1, {TOKENS}]")

    def linear(x: NetworkTensor, outputs: int) -> NetworkTensor:
        bias = new.random.standard_normal(outputs, np.float32) * np.float32(0.1)
        return net.add(net.matmul(x, new.weights(outputs, int(x.shape[-1])).T.copy()), bias)

    def norm(x: NetworkTensor) -> NetworkTensor:
        scale, shift = new.random.uniform(0.5, 1.5, WIDTH), new.random.uniform(-0.1, 0.1, WIDTH)
        return net.layer_norm(x, scale.astype(np.float32), shift.astype(np.float32), epsilon=1e-12)

    def heads(x: NetworkTensor, perm: Sequence[int]) -> NetworkTensor:
        return net.transpose(net.reshape(x, (1, TOKENS, HEADS, WIDTH // HEADS)), perm)

    places = new.random.standard_normal((1, TOKENS, WIDTH), np.float32)
    x = norm(net.add(net.gather(new.random.standard_normal((WORDS, WIDTH), np.float32), ids), places))
    for _ in range(LAYERS):
        q, v = (heads(linear(x, WIDTH), (0, 2, 1, 3)) for _ in range(2))
        k = heads(linear(x, WIDTH), (0, 2, 3, 1))
        scores = net.softmax(net.mul(net.matmul(q, k), np.float32((WIDTH // HEADS) ** -0.5)))
        mixed = net.reshape(net.transpose(net.matmul(scores, v), (0, 2, 1, 3)), (1, TOKENS, WIDTH))
        x = norm(net.add(linear(mixed, WIDTH), x))
        x = norm(net.add(linear(net.gelu(linear(x, 4 * WIDTH)), WIDTH), x))
    net.output(x, "features")
    return net


def detector() -> pelton.Network:
    """A detector of the YOLO family on 320 × 320: cross-stage blocks, a pyramid of three levels, and two branches of
    heads on each: bins of the sides of boxes, and scores of classes."""
    new = Layers("detector")
    net = new.net

    def block(x: NetworkTensor, outputs: int, count: int, add: bool) -> NetworkTensor:
        half = outputs // 2
        parts = [*net.split(new.silu(x, outputs), 2, 1)]
        for _ in range(count):
            y = new.silu(new.silu(parts[-1], half, 3), half, 3)
            parts.append(net.add(parts[-1], y) if add else y)
        return new.silu(net.concat(parts, 1), outputs)

    def join(x: NetworkTensor, side: NetworkTensor, outputs: int) -> NetworkTensor:
        return block(net.concat([x, side], 1), outputs, 1, add=False)

    x = new.silu(net.input("x", "f32[1, 3, 320, 320]"), 16, 3, 2)
    sides = []
    for outputs, count in ((32, 1), (64, 2), (128, 2), (256, 1)):
        x = block(new.silu(x, outputs, 3, 2), outputs, count, add=True)
        sides.append(x)
    pools = [new.silu(x, 128)]
    for _ in range(3):
        pools.append(net.max_pool(pools[-1], 5, stride=1, padding=2))
    p5 = new.silu(net.concat(pools, 1), 256)
    p4 = join(net.upsample(p5, 2), sides[2], 128)
    p3 = join(net.upsample(p4, 2), sides[1], 64)
    p4 = join(new.silu(p3, 64, 3, 2), p4, 128)
    p5 = join(new.silu(p4, 128, 3, 2), p5, 256)
    boxes, scores = [], []
    for p in (p3, p4, p5):
        rows, columns = map(int, p.shape[2:])

        def head(outputs: int, width: int, p=p, places: int = rows * columns) -> NetworkTensor:
            y = new.convolution(new.silu(new.silu(p, width, 3), width, 3), outputs)
            return net.reshape(net.transpose(y, (0, 2, 3, 1)), (1, places, outputs))

        boxes.append(head(4 * BINS, 64))
        scores.append(head(CLASSES, 80))
    net.output(net.concat(boxes, 1), "boxes")
    net.output(net.sigmoid(net.concat(scores, 1)), "scores")
    return net


def _of(network: Callable[[], pelton.Network]) -> Callable[[Path, Path], None]:
    def write(path: Path, downloads: Path) -> None:
        to_onnx(network().graph(), path, opset=OPSET)

    return write


def _resnet20(path: Path, downloads: Path) -> None:
    """Writes the network of the demo, for one picture of 32 × 32."""
    model = onnx.load(Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx")
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)


def _silero(path: Path, downloads: Path) -> None:
    """Takes the network out of its wheel."""
    wheels = sorted(downloads.glob("silero_vad-*.whl"))
    if not wheels:
        raise FileNotFoundError(f"there is no wheel of silero-vad in {downloads}: run `make bench-web`")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        path.write_bytes(wheel.read(SILERO))


def _normal(random: np.random.Generator, name: str, shape: Sequence[int]) -> np.ndarray:
    return random.standard_normal(shape, np.float32)


def _pixels(random: np.random.Generator, name: str, shape: Sequence[int]) -> np.ndarray:
    return random.uniform(0, 255, shape).astype(np.float32)


def _tokens(random: np.random.Generator, name: str, shape: Sequence[int]) -> np.ndarray:
    return random.integers(0, WORDS, shape)


def _sound(random: np.random.Generator, name: str, shape: Sequence[int]) -> np.ndarray:
    return np.clip(random.standard_normal(shape, np.float32) * np.float32(0.3), -1, 1)


NETWORKS: Mapping[str, WebNetwork] = {
    "resnet20": WebNetwork("ResNet-20, 32 × 32", _resnet20, _pixels),
    "mobilenet_v2": WebNetwork("MobileNetV2, 224 × 224", _of(mobilenet_v2), _normal),
    "unet": WebNetwork("U-Net, 256 × 256", _of(unet), _normal),
    "bert": WebNetwork(f"BERT, {LAYERS} layers of {WIDTH}, {TOKENS} tokens", _of(bert), _tokens, images=False),
    "silero": WebNetwork("Silero VAD, 32 ms of sound", _silero, _sound, images=False),
    "detector": WebNetwork("YOLO-like detector, 320 × 320", _of(detector), _normal),
}
