"""Readers of com.microsoft.nchwc, the operators of models that ONNX Runtime saved after all of its optimizations.

Their tensors hold channels in blocks of one CPU vector. Blocks are a layout: tensors are read as [batch, channels,
height, width], and weights are reordered as in ONNX. Channels are padded to whole blocks; ReorderOutput removes the
padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import onnx

from pelton.importers.onnx.node import Binding, Reading, reads
from pelton.importers.onnx.ops.conv import (
    average_pool,
    convolution,
    emit_activation,
    global_average_pool,
    global_max_pool,
    max_pool,
)
from pelton.importers.onnx.ops.image import emit_resize
from pelton.importers.onnx.program import Program
from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Value
from pelton.ops.foreign import parts

NCHWC = "com.microsoft.nchwc"
SIZES = (8, 16)  # channels of a block, by the CPU
_BLOCKS: WeakKeyDictionary[Program, int] = WeakKeyDictionary()

_WINDOW = "auto_pad kernel_shape strides pads dilations"
_POOL = f"{_WINDOW} ceil_mode"

reads("MaxPool", domain=NCHWC, attributes=f"{_POOL} storage_order", inputs=1)(max_pool)
reads("AveragePool", domain=NCHWC, attributes=f"{_POOL} count_include_pad", inputs=1)(average_pool)
reads("GlobalMaxPool", domain=NCHWC, attributes="", inputs=1)(global_max_pool)
reads("GlobalAveragePool", domain=NCHWC, attributes="", inputs=1)(global_average_pool)


@reads("ReorderInput", domain=NCHWC, attributes="channels_last", inputs=1)
def reorder_input(n: Reading) -> Binding:
    x = _image(n)
    x = n.transpose(x, (0, 3, 1, 2)) if n.flag("channels_last") else x
    more = -x.type.shape[1] % _block(n)
    return n.emit("pad", x, n.like(x, 0), pads=(0, 0, 0, 0, 0, more, 0, 0)) if more else x


@reads("ReorderOutput", domain=NCHWC, attributes="channels channels_last", inputs=1)
def reorder_output(n: Reading) -> Binding:
    x, channels = _image(n), n.attr("channels", 0)
    if not 0 < channels <= x.type.shape[1]:
        raise n.refuse(f"ReorderOutput needs channels from 1 to {x.type.shape[1]}, got {channels}")
    y = n.slice(x, 1, 0, channels)
    return n.transpose(y, (0, 2, 3, 1)) if n.flag("channels_last") else y


def _image(n: Reading) -> Value:
    x = n.input(0)
    if x.type.rank != 4 or not is_known(x.type.shape[3 if n.op == "ReorderInput" and n.flag("channels_last") else 1]):
        raise n.refuse(f"{n.op} needs images [batch, channels, height, width] of known channels, got {x.type}")
    return x


@reads("Conv", domain=NCHWC, attributes=f"{_WINDOW} group activation activation_params", inputs=4)
def conv(n: Reading) -> Binding:
    """Computes a convolution, + a sum, and an activation."""
    y, total = convolution(n, n.input(0), _weights(n), n.optional(2)), n.optional(3)
    y = y if total is None else n.emit("add", y, total)
    return emit_activation(n, y, n.attr("activation", ""), n.attr("activation_params", ()))


def _weights(n: Reading) -> Value:
    """Returns the weights as [outputs, inputs, height, width]. The file has blocks of outputs, with their elements
    innermost; inputs are also in blocks if a group has that many."""
    held = n.known(n.input(1))
    if held is None or held.ndim != 4:
        raise n.refuse(f"{n.op} of {NCHWC} needs constant weights of rank 4, got {n.input(1).type}")
    block, (outputs, inputs, *window) = _block(n), held.shape
    by_output = _is_by_output(n.node, held.shape, block)
    if outputs % block or not by_output and inputs % block:
        raise n.refuse(f"{n.op} of {NCHWC} needs weights in blocks of {block} channels, got {n.input(1).type}")
    if by_output:
        plain = held.reshape(outputs // block, inputs, *window, block).transpose(0, 4, 1, 2, 3)
    else:
        blocks = held.reshape(outputs // block, inputs // block, *window, block, block)
        plain = blocks.transpose(0, 5, 1, 4, 2, 3)
    return n.constant(np.ascontiguousarray(plain.reshape(held.shape)))


def _is_by_output(node: onnx.NodeProto, shape: tuple[int, ...], block: int) -> bool:
    """True if only outputs are in blocks: for images that are not in blocks, or one channel a group."""
    group = _group(node)
    return shape[1] < block if group == 1 else shape[1] == 1 and shape[0] == group


def _group(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "group"), 1)


@reads("Upsample", domain=NCHWC, attributes="scales mode coordinate_transformation_mode", inputs=1)
def upsample(n: Reading) -> Binding:
    x, scales = _image(n), n.attr("scales", ())
    if len(scales) != 4 or min(scales) < 1 or scales[:2] != (1, 1):
        raise n.refuse(f"Upsample of {NCHWC} needs scales [1, 1, height, width] of 1 and more, got {list(scales)}")
    shape: tuple[Size, ...] = tuple(size * scale for size, scale in zip(x.type.shape, scales))
    coordinates = n.attr("coordinate_transformation_mode", "asymmetric")
    how = dict(shape=shape, scales=tuple(map(float, scales)), coordinates=coordinates)
    return emit_resize(n, x, mode=n.attr("mode", "nearest"), nearest="floor", **how)


# --- the size of blocks


def _block(n: Reading) -> int:
    """Returns the channels of a block, which the file does not state: by its weights, else ONNX Runtime's on this CPU.

    Raises ModelError if the weights contradict each other.
    """
    if n.program not in _BLOCKS:
        sizes = _sizes_shown(n.program.source.model)
        if len(sizes) > 1:
            raise n.refuse(
                f"{n.program.source.name} has weights in blocks of 8 and of 16 channels; save the model again"
            )
        if not sizes:
            n.program.warn(
                f"{n.program.source.name} was saved after optimizations for one kind of CPU, without saying which;"
                f" read with blocks of {_block_here()} channels, as ONNX Runtime has on this CPU; if it was saved on"
                " another one, save it again with graph_optimization_level ORT_ENABLE_EXTENDED"
            )
        _BLOCKS[n.program] = next(iter(sizes), _block_here())
    return _BLOCKS[n.program]


def _sizes_shown(model: onnx.ModelProto) -> set[int]:
    """Returns the block sizes that follow from shapes of weights."""
    every = list(parts(model, "NodeProto"))
    nodes = [node for node in every if node.domain == NCHWC]
    shapes = {t.name: tuple(t.dims) for graph in parts(model, "GraphProto") for t in graph.initializer}
    plain = {i.name for i in model.graph.input}
    in_blocks = {name for node in nodes if node.op_type != "ReorderOutput" for name in node.output}
    makers = {name: node for node in every for name in node.output}
    kept: dict[str, int] = {}  # output of a convolution → its channels without padding
    for node in nodes:
        channels = next((a.i for a in node.attribute if a.name == "channels"), 0)
        if node.op_type == "ReorderOutput" and channels and (conv := _convolution_of(node.input[0], makers)):
            kept[conv.output[0]] = channels
    shown = set()
    for node in nodes:
        shape = shapes.get(node.input[1], ()) if node.op_type == "Conv" and len(node.input) > 1 else ()
        if len(shape) != 4:
            continue
        channels = kept.get(node.output[0], shape[0])
        fits = {
            block
            for block in SIZES
            if shape[0] == -(-channels // block) * block
            and (_is_by_output(node, shape, block) or shape[1] % block == 0)
            # images with fewer channels than a block are not in blocks
            and not (_group(node) == 1 and node.input[0] in (in_blocks if shape[1] < block else plain))
        }
        shown |= fits if len(fits) == 1 else set()
    return shown


def _convolution_of(name: str, makers: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """Returns the convolution whose channels a tensor in blocks has: all operators but Concat preserve them."""
    for _ in range(len(makers)):
        node = makers.get(name)
        if node is None or not node.input or node.op_type == "Concat":
            return None
        if (node.domain, node.op_type) == (NCHWC, "Conv"):
            return node
        name = node.input[0]
    return None


def _block_here() -> int:
    """Returns the channels of ONNX Runtime's blocks on this CPU."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return SIZES[0]
    return SIZES["avx512f" in flags or "asimd" in flags]
