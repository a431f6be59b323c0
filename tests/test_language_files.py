"""Files of language models: safetensors and GGUF, whole, cut and altered."""

import json
import struct

import numpy as np
import pytest

import language_files as files
from pelton import language
from pelton.compat.session import engine_cache
from pelton.errors import FormatError, ModelError
from pelton.language import safetensors
from pelton.language.gguf_blocks import matrix_of
from pelton.language.gguf_file import TYPES, GgufFile, GgufTensor
from pelton.ops.quantize import unpacked

gguf = pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
from gguf import quants  # noqa: E402


# --- safetensors


def header(path, count=None, data=b"", **tensors):
    text = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(text) if count is None else count) + text + data)
    return path


def test_tensors_are_read(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"a": rng.standard_normal((3, 5)).astype(np.float32), "b": rng.standard_normal(7).astype(np.float32)}
    path = tmp_path / "x.safetensors"
    for kind, tolerance in (("F32", 0), ("BF16", 2**-7)):
        path.write_bytes(files.safetensors(arrays, kind))
        for name, stored in safetensors.tensors_of(path).items():
            np.testing.assert_allclose(safetensors.read(stored), arrays[name], rtol=tolerance)
    half = header(path, data=np.float16([1.5, -2]).tobytes(), h=dict(dtype="F16", shape=[2], data_offsets=[0, 4]))
    assert safetensors.read(safetensors.tensors_of(half)["h"]).tolist() == [1.5, -2]
    empty = header(path, e=dict(dtype="F32", shape=[0, 3], data_offsets=[0, 0]), __metadata__=dict(format="pt"))
    assert safetensors.read(safetensors.tensors_of(empty)["e"]).shape == (0, 3)


TENSORS = [
    (dict(dtype="F32", shape=[2], data_offsets=[0, 9]), "damaged or cut"),
    (dict(dtype="F32", shape=[2], data_offsets=[4, 2]), "damaged or cut"),
    (dict(dtype="F32", shape=[2], data_offsets=[-8, 0]), "damaged or cut"),
    (dict(dtype="F32", shape=[3], data_offsets=[0, 8]), "has 8 bytes"),
    (dict(dtype="F32", shape=[1 << 62, 1 << 62], data_offsets=[0, 8]), "has 8 bytes"),
    (dict(dtype="F32", shape="2", data_offsets=[0, 8]), "damaged or cut"),
    (dict(dtype="F32", shape=[True, 2], data_offsets=[0, 8]), "damaged or cut"),
    (dict(dtype="Q4", shape=[2], data_offsets=[0, 8]), "a type 'Q4' that is not known"),
    ([], "a type None that is not known"),
]


@pytest.mark.parametrize("about, message", TENSORS)
def test_damaged_tensors_are_refused(about, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        safetensors.tensors_of(header(tmp_path / "x", data=bytes(8), x=about))


def test_damaged_headers_are_refused(tmp_path):
    path = tmp_path / "x"
    for count in (2_000_000_000, 1 << 63, (1 << 64) - 1):
        with pytest.raises(FormatError, match=f"its header would have {count} bytes"):
            safetensors.tensors_of(header(path, count))
    path.write_bytes(b"abc")
    with pytest.raises(FormatError, match="fewer than the 8"):
        safetensors.tensors_of(path)
    for text, message in ((b"{", "no JSON"), (b"[1]", "no JSON object"), (b"[" * 100000, "no JSON"), (b"\xff", "JSON")):
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(FormatError, match=message):
            safetensors.tensors_of(path)


def test_integers_are_no_weights(tmp_path):
    path = header(tmp_path / "x", data=bytes(8), x=dict(dtype="I64", shape=[1], data_offsets=[0, 8]))
    with pytest.raises(ModelError, match="of type I64 are not supported"):
        safetensors.read(safetensors.tensors_of(path)["x"])


# --- GGUF

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}
HALVES |= {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_blocks_are_those_of_the_package_gguf(kind):
    rng, of = np.random.default_rng(0), gguf.GGMLQuantizationType[kind.name]
    data = rng.integers(0, 256, (5, 3 if kind.count > 1 else 96, kind.size)).astype(np.uint8)
    for at in HALVES.get(kind.name, ()):
        data[..., at : at + 2] = rng.normal(0, 0.1, data.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        data[0, 0, :16] = data[1, 0, :2] = 0  # a block of zeros, one of its least number
    if kind.count == 1:
        data = quants.quantize(rng.standard_normal((5, 96)).astype(np.float32), of).view(np.uint8)
    data = data.reshape(5, -1)
    want = quants.dequantize(
        data if kind.count > 1 else data.view(quants.quantize(np.zeros((1, 1), "f4"), of).dtype), of
    )
    matrix = matrix_of(GgufTensor(kind, want.shape, 0), data.reshape(-1))
    if kind.count > 1:
        zero = 1 << (matrix.bits - 1) if matrix.zero is None else matrix.zero.repeat(matrix.block, 1)
        assert matrix.shape == want.shape
        codes = unpacked(matrix.codes, matrix.bits).astype(np.float64)
        matrix = (codes - zero) * matrix.scale.astype(np.float64).repeat(matrix.block, 1)
    np.testing.assert_allclose(matrix, want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    files.write_gguf(path, files.llama())
    return path.read_bytes()


def opened(data, path):
    """Reads all that a start reads, and all tensors; returns the message of an error."""
    from pelton.language.gguf import gguf_model

    path.write_bytes(data)
    try:
        source = gguf_model(path)
        source.tokens()
        file = GgufFile(path)
        for tensor in file.tensors.values():
            matrix_of(tensor, file.bytes_of(tensor))
    except ModelError as e:
        return str(e)
    return None


def test_the_whole_file_is_read(whole, tmp_path):
    assert opened(whole, tmp_path / "x") is None


def test_cut_files_are_refused(whole, tmp_path):
    pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")
    for length in [*range(0, 64, 3), *np.linspace(64, len(whole) - 1, 60).astype(int)]:
        message = opened(whole[:length], tmp_path / "x")
        assert message and "\n" not in message, length


def test_altered_files_are_read_or_refused_in_a_sentence(whole, tmp_path):
    pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")
    rng, refused = np.random.default_rng(0), 0
    begin = len(whole) - sum(t.size for t in GgufFile(_written(whole, tmp_path)).tensors.values())
    for _ in range(400):
        data = bytearray(whole)
        at = int(rng.integers(0, begin))
        width = int(rng.choice([1, 4, 8]))
        data[at : at + width] = rng.integers(0, 256, width).astype(np.uint8).tobytes()
        message = opened(bytes(data), tmp_path / "x")
        refused += message is not None
        assert message is None or "\n" not in message and len(message) < 600, message
    assert refused > 100


def test_a_later_start_reads_no_head_of_an_unchanged_file(whole, tmp_path, monkeypatch):
    pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")
    monkeypatch.setattr(engine_cache, "FRESH", -1.0)  # else digests of new files are not recorded
    path, options = _written(whole, tmp_path), dict(threads=1, context=16, cache_folder=tmp_path / "cache")
    first = language.open(path, **options)

    def reads(*args):
        raise AssertionError("the file was read")

    with monkeypatch.context() as patch:
        patch.setattr(GgufFile, "__init__", reads)
        second = language.open(path, **options)
        with pytest.raises(AssertionError, match="the file was read"):
            language.open(path, **{**options, "context": 17})  # which needs another engine
    assert second.description == first.description
    for name in ("bos", "eos", "special", "template", "names"):
        assert getattr(second.tokens, name) == getattr(first.tokens, name)
    assert second.tokens.coder.tokenizer.to_str() == first.tokens.coder.tokenizer.to_str()
    at = whole.index(b"<s>") + 1
    path.write_bytes(whole[:at] + b"S" + whole[at + 1 :])
    assert language.open(path, **options).tokens.token(0) == "<S>"


def _written(data, folder):
    (folder / "whole").write_bytes(data)
    return folder / "whole"


METADATA = [
    ({"llama.expert_count": 8}, "llama.expert_count is not supported"),
    ({"pre": "martian"}, "words of the kind 'martian' are not supported"),
    (
        {"llama.rope.scaling.type": "spiral", "llama.rope.scaling.factor": 2},
        "rope.scaling.type 'spiral' is not supported",
    ),
    ({"llama.rope.dimension_count": 40}, "must rotate a part of 16"),
]


@pytest.mark.parametrize("metadata, message", METADATA, ids=[m for _, m in METADATA])
def test_metadata_that_is_not_known_is_refused_by_name(metadata, message, tmp_path):
    pytest.importorskip("tokenizers", reason="the tokens of language models need the package tokenizers")
    files.write_gguf(tmp_path / "x.gguf", files.llama(), **metadata)
    assert message in (opened((tmp_path / "x.gguf").read_bytes(), tmp_path / "y") or "")


def test_other_architectures_and_types_are_refused_by_name(whole, tmp_path):
    assert "of the architecture 'mamba' are not supported" in opened(
        whole.replace(b"llama", b"mamba", 1), tmp_path / "x"
    )
    data = bytearray(whole)
    at = whole.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8  # behind one axis
    assert data[at : at + 4] == bytes(4)  # F32
    data[at] = 16
    assert "has the type IQ2_XXS, which is not supported" in opened(bytes(data), tmp_path / "x")
