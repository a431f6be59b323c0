"""A Llama with weights in blocks as an ONNX model, in the form that onnxruntime-genai's builder writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.llm.llama import BLOCK, Blocks, Llama

MICROSOFT = "com.microsoft"


class Writer:
    """Nodes and constants of a model. level: accuracy_level of products; 4 allows rows in 8 bits."""

    def __init__(self, model: Llama, level: int):
        self.model, self.level = model, level
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> str:
        """Adds a node, and returns its first output."""
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], domain=domain, **attributes))
        return outputs[0]

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def linear(self, x: str, name: str, m: Blocks) -> str:
        """Adds a product with a matrix. A minimum of blocks becomes a zero point, −least / scale."""
        rows, inner = m.codes.shape
        codes = m.codes if m.bits == 8 else m.codes[:, ::2] | m.codes[:, 1::2] << 4
        scale, more = m.scale.astype(np.float32), []
        if m.least is not None:
            least = m.least.astype(np.float32)
            equal = scale == 0  # blocks of one number, whose codes are 0: (0 + 1) · least
            scale = np.where(equal, least, scale)
            zeros = np.divide(-least, scale, out=np.zeros_like(least), where=scale != 0)
            more = [self.constant(f"{name} zeros", zeros)]
        parts = self.constant(f"{name} codes", codes.reshape(rows, inner // BLOCK, -1))
        inputs = [x, parts, self.constant(f"{name} scale", scale), *more]
        sizes = dict(K=inner, N=rows, bits=m.bits, block_size=BLOCK, accuracy_level=self.level)
        return self.node("MatMulNBits", inputs, [f"{name} y"], MICROSOFT, **sizes)

    def embedding(self, tokens: str) -> str:
        table = self.model.matrices["token_embd"]
        parts = [
            self.constant("table codes", table.codes),
            self.constant("table scale", table.scale.astype(np.float32)),
        ]
        attributes = dict(bits=8, block_size=BLOCK, gather_axis=0, quantize_axis=1)
        return self.node("GatherBlockQuantized", [parts[0], tokens, parts[1]], ["embedding"], MICROSOFT, **attributes)

    def norm(self, x: str, name: str, residual: str | None) -> tuple[str, str]:
        """Adds a norm of the sum of x and a residual; returns it, and the sum."""
        weight, epsilon = self.constant(name, self.model.norms[name]), self.model.epsilon
        if residual is None:
            y = self.node("SimplifiedLayerNormalization", [x, weight], [f"{name} y"], axis=-1, epsilon=epsilon)
            return y, x
        outputs = [f"{name} y", "", "", f"{name} sum"]
        kind = "SkipSimplifiedLayerNormalization"
        return self.node(kind, [x, residual, weight], outputs, MICROSOFT, epsilon=epsilon), outputs[3]

    def layer(self, i: int, x: str, residual: str | None, places: list[str]) -> tuple[str, str]:
        """Adds a layer behind the sum of x and a residual; returns both for the next one."""
        block = f"blk.{i}"

        def product(x: str, part: str) -> str:
            return self.linear(x, f"{block}.{part}", self.model.matrices[f"{block}.{part}"])

        y, total = self.norm(x, f"{block}.attn_norm", residual)
        inputs = [*(product(y, f"attn_{part}") for part in "qkv"), *caches(i, "past_key_values"), *places]
        outputs = [f"{block}.attention", *caches(i, "present")]
        heads = dict(num_heads=self.model.heads, kv_num_heads=self.model.kv_heads, do_rotary=1)
        y = self.node("GroupQueryAttention", inputs, outputs, MICROSOFT, **heads)
        y, total = self.norm(product(y, "attn_output"), f"{block}.ffn_norm", total)
        gate, up = product(y, "ffn_gate"), product(y, "ffn_up")
        sigmoid = self.node("Sigmoid", [gate], [f"{block}.sigmoid"])
        silu = self.node("Mul", [gate, sigmoid], [f"{block}.silu"])
        return product(self.node("Mul", [silu, up], [f"{block}.gated"]), "ffn_down"), total

    def lengths(self) -> list[str]:
        """Adds the lengths that the mask says: of the last position, and of all of them."""
        axis, one = self.constant("axis", np.array([1])), self.constant("one", np.array([1]))
        count = self.node("ReduceSum", ["attention_mask", axis], ["count"], keepdims=0)
        last = self.node("Cast", [self.node("Sub", [count, one], ["last"])], ["last i32"], to=TensorProto.INT32)
        shape = self.node("Shape", ["attention_mask"], ["mask shape"])
        total = self.node("Gather", [shape, self.constant("index", np.int64(1))], ["total"], axis=0)
        return [last, self.node("Cast", [total], ["total i32"], to=TensorProto.INT32)]


def caches(layer: int, when: str) -> list[str]:
    return [f"{when}.{layer}.{part}" for part in ("key", "value")]


def onnx_model(model: Llama, level: int) -> bytes:
    """Returns the ONNX model of a Llama: logits of tokens behind those in its caches."""
    writer = Writer(model, level)
    rotations = (writer.constant(f"{name}_cache", a) for name, a in zip(("cos", "sin"), model.rotations(np.float32)))
    places = [*writer.lengths(), *rotations]
    x, residual = writer.embedding("input_ids"), None
    for i in range(model.layers):
        x, residual = writer.layer(i, x, residual, places)
    hidden, _ = writer.norm(x, "output_norm", residual)
    logits = writer.linear(hidden, "head", model.head)

    def ports(when: str, length: str) -> list[onnx.ValueInfoProto]:
        shape = [1, model.kv_heads, length, model.depth]
        names = (name for i in range(model.layers) for name in caches(i, when))
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "rows"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "total_length"]),
    ]
    output = helper.make_tensor_value_info(logits, TensorProto.FLOAT, [1, "rows", len(model.head.codes)])
    output.name = writer.node("Identity", [logits], ["logits"])
    graph = helper.make_graph(
        writer.nodes,
        "llama",
        [*inputs, *ports("past_key_values", "past_length")],
        [output, *ports("present", "present_length")],
        [*writer.constants.values()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
