"""Versions of operators: unknown attributes, operands and versions are refused."""

from __future__ import annotations

import re
import types

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper
from onnx_checks import check
from onnx_models import MICROSOFT, one_node

import pelton.importers.onnx.load as onnx_load
from pelton.errors import ModelError
from pelton.importers.onnx import node as onnx_node, schemas
from pelton.importers.onnx.load import load
from pelton.importers.onnx.microsoft.refused import REFUSED
from pelton.importers.onnx.node import READERS
from pelton.importers.onnx.ops.declared import AsDeclared
from pelton.ir.text import to_text

NEWEST = onnx.defs.onnx_opset_version()

# attributes that change no result of a model at inference
WITHOUT_EFFECT = {
    "accuracy_level": "the least precision of products",
    "chunk_size": "a hint how to divide the work",
    "broadcast": "shapes that differ without it are no model",
    "consumed_inputs": "says what may be overwritten",
    "k_norm_epsilon": "of a norm whose weights are an input that is refused",
    "kv_cache_bit_width": "of caches that are refused",
    "locale": "of letters that have other cases elsewhere",
    "multi_class": "ONNX Runtime does not read it either",
    "nodes_hitrates": "says which branches are frequent",
    "nodes_hitrates_as_tensor": "says which branches are frequent",
    "output_sequence": "says whether an output is used",
    "q_norm_epsilon": "of a norm whose weights are an input that is refused",
    "qk_norm_epsilon": "of norms whose weights are inputs that are refused",
    "qk_output": "of an output that is refused",
    "rotary_embedding_dim": "of positions, which the reader refuses",
    "stash_type": "the type of sums, which are f32 or wider",
    "training_mode": "ONNX Runtime does not read it either",
    "use_sparse_mixer": "ONNX Runtime's kernel for CPUs does not read it either",
}
# operators of which a function body, a step of a script or the onnx package reads these attributes
READ_ELSEWHERE = {
    "Attention": r"(left|right)_window_size",
    "Bernoulli": r"dtype|seed",
    "BifurcationDetector": r"(min|max)_ngram_size",
    "NonMaxSuppression": r"center_point_box",
    "Optional": r"type",
    "SequenceEmpty": r"dtype",
    "StringNormalizer": r"stopwords|is_case_sensitive",
    "Tokenizer": r"pad_value|mincharnum|mark",
    "Unique": r"axis|sorted",
}
# operators of which ONNX Runtime's kernels for CPUs do not read these attributes either
IGNORED = {
    "DecoderMaskedMultiHeadAttention": r"output_qk|past_present_share_buffer",
    "MRotaryEmbedding": r"scale|is_packed_batching",
    "RotaryEmbedding": r"scale|is_packed_batching",
}
# attributes whose names readers put together
COMPOSED = {
    "FusedGemm": r"activation_(alpha|beta|gamma)",
    "FusedMatMul": r"transBatch[AB]",
    "GroupQueryAttention": r"[kv]_quant_type",
    "LabelEncoder": r"(keys|values)_(int64s|floats|strings|tensor)",
    "QMoE": r"fc[123]_expert_weight_bits",
    "TreeEnsemble": r"nodes_(true|false)(leafs|nodeids)",
    "TreeEnsembleClassifier": r"(nodes|class)_(node|tree)ids|(nodes_values|class_weights|base_values)_as_tensor",
    "TreeEnsembleRegressor": r"nodes_(node|tree)ids|target_(tree|node)?ids|target_weights"
    r"|(nodes_values|target_weights|base_values)_as_tensor",
}


def names_read_by(thing, seen: set[int]) -> set[str]:
    """The strings that a reader spells, with all functions and classes of the importer that it calls."""
    if id(thing) in seen:
        return set()
    seen.add(id(thing))
    if isinstance(thing, type):
        return set().union(*(names_read_by(v, seen) for v in vars(thing).values()))
    code = getattr(thing, "__code__", None)
    names: set[str] = set()
    codes = [code] if code else []
    while codes:
        code = codes.pop()
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                codes.append(constant)
            elif isinstance(constant, str):
                names.add(constant)
            elif isinstance(constant, (tuple, frozenset)):
                names.update(c for c in constant if isinstance(c, str))
        for name in code.co_names:
            called = thing.__globals__.get(name)
            module = getattr(called, "__module__", None) or ""
            if isinstance(called, (set, frozenset, tuple, dict)):
                names.update(c for c in called if isinstance(c, str))
                for reader in called.values() if isinstance(called, dict) else ():
                    names |= names_read_by(reader, seen)
            elif module.startswith("pelton.importers.onnx.") and module != onnx_node.__name__:
                names |= names_read_by(called, seen)
    return names


def versions() -> list:
    """The schemas of all operators with a reader that are in force at an opset which the importer reads."""
    found = []
    for s in onnx.defs.get_all_schemas_with_history():
        later = [t.since_version for t in schemas.history(s.name, s.domain) if t.since_version > s.since_version]
        oldest = onnx_load.OLDEST if not s.domain else 1
        if (s.domain, s.name) in READERS and min(later, default=oldest + 1) > oldest:
            found.append(s)
    return found + [s for key, s in schemas._onnxruntime().items() if key in READERS]


VERSIONS = versions()


def title(schema) -> str:
    return f"{schema.domain or 'ai.onnx'}-{schema.name}-{schema.since_version}"


def opset_of(schema) -> int:
    """An opset at which a schema is in force."""
    return max(schema.since_version, onnx_load.OLDEST) if not schema.domain else schema.since_version


def value_of(spec) -> object:
    """A value of an attribute other than its default."""
    default = onnx.helper.get_attribute_value(spec.default_value) if spec.default_value.type else None
    tensor = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    graph = helper.make_graph([], "g", [], [])
    match spec.type.value:
        case AttributeProto.INT:
            return 7 if default != 7 else 8
        case AttributeProto.FLOAT:
            return 0.625
        case AttributeProto.STRING:
            return "other"
        case AttributeProto.INTS:
            return [3]
        case AttributeProto.FLOATS:
            return [0.625]
        case AttributeProto.STRINGS:
            return ["other"]
        case AttributeProto.GRAPH:
            return graph
        case AttributeProto.TENSOR:
            return tensor
        case AttributeProto.TENSORS:
            return [tensor]
        case AttributeProto.SPARSE_TENSOR:
            indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64))
            return helper.make_sparse_tensor(tensor, indices, [1])
    return helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1])


def call(schema, **attributes) -> onnx.ModelProto:
    """A node with as few operands and attributes as its schema allows, and these attributes."""
    required = {name: value_of(a) for name, a in schema.attributes.items() if a.required}
    operands = ["f32[2, 3]"] * schema.min_input
    domain = dict(domain=schema.domain, version=schema.since_version) if schema.domain else {}
    opset = NEWEST if schema.domain else opset_of(schema)
    m = one_node(schema.name, *operands, opset=opset, outputs=max(1, schema.min_output), **domain)
    m.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in {**required, **attributes}.items())
    return m


def refusal(m: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        load(m)
    return str(caught.value)


@pytest.mark.parametrize("schema", VERSIONS, ids=title)
def test_every_attribute_of_a_version_is_read_or_refused(schema):
    key = schema.domain, schema.name
    reader, (known, _) = READERS[key], onnx_node._KNOWN.get(key, (None, None))
    if isinstance(reader, AsDeclared):
        read = {reader.op.onnx_names.get(name, name) for name in reader.op.attrs} | {"axis"}
    else:
        read = names_read_by(reader, set())
    if schema.name in REFUSED and schema.domain == MICROSOFT:
        return
    attributes = set(schema.attributes)
    if known is not None:
        for name in attributes - known:
            text = refusal(call(schema, **{name: value_of(schema.attributes[name])}))
            assert f"with attribute {name!r} is not supported" in text
        attributes &= known
    elsewhere = [re.compile(of.get(schema.name, "$")) for of in (READ_ELSEWHERE, IGNORED, COMPOSED)]
    unread = {
        name
        for name in attributes - read - WITHOUT_EFFECT.keys()
        if not any(pattern.fullmatch(name) for pattern in elsewhere)
    }
    assert not unread, f"nothing reads or refuses {sorted(unread)}"


@pytest.mark.parametrize("schema", VERSIONS, ids=title)
def test_attributes_that_a_version_does_not_have_are_refused(schema):
    version = f"{schema.name} of opset {schema.since_version} has no attribute"
    assert f"{version} 'nonsense'; export" in refusal(call(schema, nonsense=1))
    for other in schemas.history(schema.name, schema.domain):
        for name in other.attributes.keys() - schema.attributes.keys() - schemas.MEANINGLESS:
            text = refusal(call(schema, **{name: value_of(other.attributes[name])}))
            assert f"{version} {name!r}, which opset" in text and f"{other.since_version}" in text


@pytest.mark.parametrize("schema", VERSIONS, ids=title)
def test_operands_beyond_those_of_a_version_are_refused(schema):
    m = call(schema)
    (made,) = m.graph.node
    _, inputs = onnx_node._KNOWN.get((schema.domain, schema.name), (None, None))
    if inputs is not None and inputs < schema.max_input:
        more = onnx.ModelProto()
        more.CopyFrom(m)
        known = [*made.input, *[""] * (inputs - len(made.input)), made.input[0]]
        more.graph.node[0].input[:] = known
        assert f"with input {inputs} is not supported" in refusal(more)
    if schema.max_input < 1000:
        more = onnx.ModelProto()
        more.CopyFrom(m)
        more.graph.node[0].input[:] = [made.input[0] if made.input else ""] * (schema.max_input + 1)
        assert f"inputs, got {schema.max_input + 1}" in refusal(more)
    if schema.max_output < 1000:
        made.output.extend(f"more{i}" for i in range(schema.max_output + 1 - len(made.output)))
        assert f"has {schema.max_output} outputs, the node has {schema.max_output + 1}" in refusal(m)


def test_every_reader_has_a_schema_or_says_what_it_knows():
    of_onnx = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    stated = {key for key, (attributes, _) in onnx_node._KNOWN.items() if attributes is not None}
    assert not READERS.keys() - of_onnx - stated - schemas._onnxruntime().keys()


def test_no_version_is_newer_than_the_readers():
    """A newer onnx package may have changed an operator: its reader is looked at before NEWEST is raised."""
    newest: dict[str, int] = {}
    for s in VERSIONS:
        newest[s.domain] = max(newest.get(s.domain, 0), s.since_version)
    assert all(newest[domain] <= version for domain, version in schemas.NEWEST.items() if domain in newest)


def test_operators_of_later_opsets_and_opsets_of_later_packages_are_refused(monkeypatch):
    assert "Gelu exists from opset 20 on, but the model imports 19" in refusal(one_node("Gelu", "f32[2]", opset=19))
    later = one_node("Relu", "f32[2]", opset=NEWEST + 1)
    assert f"has opset {NEWEST + 1} of ai.onnx, the installed onnx package knows {NEWEST}" in refusal(later)
    monkeypatch.setitem(schemas.NEWEST, "", 13)
    assert "of opset 14 is newer than the latest that" in refusal(one_node("Relu", "f32[2]"))
    check(one_node("Relu", "f32[2]", opset=13))


@pytest.mark.parametrize(
    "op, operands, attributes",
    [
        ("BatchNormalization", ["f32[1, 2, 3]", *[np.ones(2, np.float32)] * 4], dict(spatial=1)),
        ("Relu", ["f32[2, 3]"], dict(consumed_inputs=[0])),
        ("SpaceToDepth", ["f32[1, 2, 4, 4]"], dict(blocksize=2, mode="DCR")),
        ("MaxPool", ["f32[1, 2, 4, 4]"], dict(kernel_shape=[2, 2], opset=8, ceil_mode=0)),
        ("Upsample", ["f32[1, 2, 4, 4]"], dict(scales=[1.0, 1.0, 2.0, 2.0], opset=8, height_scale=2.0)),
    ],
    ids=str,
)
def test_what_says_nothing_is_no_fault(op, operands, attributes):
    """The default of another version, and what only old exporters write, mean what their absence means."""
    m = one_node(op, *operands, **attributes)
    if op == "Upsample":
        assert "has no attribute 'height_scale', which opset 1 has" in refusal(m)
        return
    plain = onnx.ModelProto()
    plain.CopyFrom(m)
    names = schemas.schema_of(op, attributes.get("opset", 17), "").attributes
    kept = [a for a in plain.graph.node[0].attribute if a.name in names]
    assert len(kept) < len(m.graph.node[0].attribute)
    del plain.graph.node[0].attribute[:]
    plain.graph.node[0].attribute.extend(kept)
    assert to_text(load(m).graph) == to_text(load(plain).graph)


def test_training_is_refused():
    statistics = [np.ones(2, np.float32)] * 4
    for op, operands in (("BatchNormalization", ["f32[1, 2, 3]", *statistics]), ("Dropout", ["f32[2, 3]"])):
        assert "with is_test=0 trains" in refusal(one_node(op, *operands, opset=6, is_test=0))
        load(one_node(op, *operands, opset=6, is_test=1))


@pytest.mark.parametrize("opset", [6, 7, 8])
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (3, 4, 5, 6), (2, 3, 5), (4, 3)], ids=str)
@pytest.mark.parametrize("attributes", [{}, dict(across_channels=1), dict(normalize_variance=0)], ids=str)
def test_mean_variance_normalization_before_its_axes(shape, attributes, opset):
    """Over all but the channels, or over all; the same as in ONNX Runtime, where that is installed."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 3 + np.arange(shape[1]).reshape(-1, *[1] * (len(shape) - 2))).astype(np.float32)
    m = one_node("MeanVarianceNormalization", f"f32[{', '.join(map(str, shape))}]", opset=opset, **attributes)
    axes = tuple(a for a in range(len(shape)) if a != 1 or attributes.get("across_channels"))
    want = x.astype(np.float64) - x.mean(axes, np.float64, keepdims=True)
    if attributes.get("normalize_variance", 1):
        want /= x.std(axes, np.float64, keepdims=True)
    check(m, {"y0": want.astype(np.float32)}, {"x0": x})


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_upsample_of_opset_6_has_a_scale_for_each_axis(mode):
    how = dict(mode=mode, height_scale=2.0, width_scale=3.0)
    m = one_node("Upsample", "f32[1, 2, 3, 4]", opset=6, **how)
    later = one_node("Upsample", "f32[1, 2, 3, 4]", opset=8, mode=mode.removeprefix("bi"), scales=[1.0, 1.0, 2.0, 3.0])
    assert to_text(load(m).graph) == to_text(load(later).graph)


@pytest.mark.parametrize("opset", [7, 13, 16])
@pytest.mark.parametrize("domain", ["", MICROSOFT])
def test_layer_normalization_of_onnxruntime_gives_its_mean_at_any_opset(opset, domain):
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    m = one_node(
        "LayerNormalization",
        "f32[2, 3, 5]",
        np.full(5, 2, np.float32),
        opset=opset,
        outputs=3,
        domain=domain,
        epsilon=0.1,
    )
    mean = x.mean(-1, np.float64, keepdims=True)
    factor = 1 / np.sqrt(x.var(-1, np.float64, keepdims=True) + 0.1)
    want = {"y0": 2 * (x - mean) * factor, "y1": mean, "y2": factor}
    check(m, {k: v.astype(np.float32) for k, v in want.items()}, {"x0": x})


def test_schemas_of_onnxruntime_are_those_that_are_installed():
    pytest.importorskip("onnxruntime")
    import onnxruntime_schemas

    lines = onnxruntime_schemas.PATH.read_text().splitlines()
    installed = onnxruntime_schemas.render().splitlines()
    if lines[0] != installed[0]:
        pytest.skip(f"{lines[0]} wrote the schemas, this is {installed[0]}")
    assert lines == installed
