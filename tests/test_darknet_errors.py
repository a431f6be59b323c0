"""Damaged configurations and weights of Darknet: every message names place, expectation and finding."""

import random
import struct
import time

import pytest
from fuzz import darknet
from fuzz.mutate import bytes_changed

import pelton
from pelton import importers

HEADER = struct.pack("<3iq", 0, 2, 0, 0)
NET = "[net]\nwidth=8\nheight=8\nchannels=3\n"
CONV = "[convolutional]\nfilters=4\nsize=3\npad=1\nactivation=leaky\n"
YOLO = "[yolo]\nmask=0,1\nanchors=1,2,3,4\nnum=2\nclasses=1\n"


def load(text, weights=None):
    source = text if isinstance(text, bytes) else text.encode()
    return importers.load(source if weights is None else importers.ModelFiles(source, weights))


@pytest.mark.parametrize(
    "text, message",
    [
        ("[net]\n", "must have from 1 to 4095 layers, got 0"),
        ("[net]\nwidth=8\nheight=8\n[maxpool]\n", "must have height, width and channels, or inputs"),
        (NET + "[maxpool]\nsize\n", "line 6: an option must be like stride=1, got 'size'"),
        (NET + "[maxpool\nsize=2\n", r"line 5: a section must be like \[convolutional\], got '\[maxpool'"),
        (NET + "[maxpool]\nsize=two\n", r"line 6: size must be numbers.*got 'two' \(layer 0, \[maxpool\]\)"),
        (NET + "[maxpool]\nsize=2.5\n", "line 6: size must be an integer, got 2.5"),
        (NET + "[maxpool]\nsize=1e20\n", "line 6: size must be from 1 to 4096, got 1e20"),
        (NET + "[maxpool]\nsize=2,3\n", "line 6: size must be one number, got 2,3"),
        (NET + "[maxpool]\nsize=99\nstride=1\npadding=0\n", r"line 5: .*needs windows that fit.*\(layer 0"),
        (NET + "[convolution]\n", r"line 5: layers \[convolution\] are unknown \(did you mean 'convolutional'\?\)"),
        (NET + CONV + "[Gaussian_yolo]\n", r"line 10: layers \[Gaussian_yolo\] are unknown"),
        (NET + CONV.replace("leaky", "laeky"), r"line 9: activation 'laeky' is unknown \(did you mean 'leaky'\?\)"),
        (NET + CONV + "groups=2\n", "line 10: groups=2 must divide 3 channels and 4 filters"),
        (NET + CONV + "xnor=1\n", "line 10: xnor=1 is not supported"),
        (NET + "[route]\nlayers=-1\n", "line 6: layers must name layers before this one, 0 to -1 or 0 to -1, got -1"),
        (NET + CONV + "[route]\nlayers=1\n", "line 11: layers must name layers before this one, 0 to 0 or -1 to -1"),
        (NET + CONV + "[route]\n", "line 10: it needs the option layers="),
        (NET + CONV + "[maxpool]\nstride=2\n[route]\nlayers=0,1\n", "must be of one size, they are 8 × 8, 4 × 4"),
        (NET + CONV + "[shortcut]\nfrom=7\n", "line 11: from must name layers before this one"),
        (NET + CONV + "[maxpool]\nstride=3\n[shortcut]\nfrom=0\n", "its size, 3 × 3, or a multiple, got 8 × 8"),
        (NET + "[reorg]\nstride=2\n", "stride=2 must divide the image 3 × 8 × 8, and its square the channels"),
        (NET + "[softmax]\ntree=9k.tree\n", "line 6: softmax over a tree of classes is not supported"),
        (NET + CONV + YOLO, r"2 anchors · \(5 \+ 1 classes\) = 12 filters, got 4"),
        (NET + CONV.replace("=4", "=12") + YOLO + CONV, r"line 15: it reads boxes, \[128, 6\]"),
        (NET + YOLO.replace("mask=0,1", "mask=0,2"), "mask must name anchors, 0 to 1, got 0,2"),
        (NET + YOLO.replace("3,4", "3"), "anchors must be 4 numbers above 0, two for each of num=2, got 3"),
        (NET + "[upsample]\nstride=1000\n[upsample]\nstride=1000\n", "product must be below 2³¹"),
        (NET + CONV.replace("filters=4", "filters=1000000") * 2, "weights of 1000000 × .* are too large"),
        (
            NET + "[connected]\noutput=1000\n[connected]\noutput=1000000\n",
            "weights of 1000000 × 1000 numbers are too large",
        ),
        (NET + "[crop]\n" * 4096, "must have from 1 to 4095 layers, got 4096"),
        (NET.replace("8", "1048576") + CONV, "product must be below 2³¹"),
    ],
)
def test_configurations_that_are_wrong(text, message):
    start = time.monotonic()
    with pytest.raises(pelton.ModelError, match=message):
        load(text)
    assert time.monotonic() - start < 10


def test_files_of_weights_that_are_wrong(tmp_path):
    path = tmp_path / "net.weights"
    layer = r"layer 0 \(\[convolutional\], line 5 of the configuration\)"
    for data, message in (
        (b"", "a header has 16 or 20 bytes, got 0"),
        (HEADER[:15], "a header has 16 or 20 bytes, got 15"),
        (HEADER[:18], f"the bias of {layer} need 16 bytes .4 numbers. from byte 20 on, 0 are left"),
        (HEADER + b"\0" * 15, f"the bias of {layer} need 16 bytes .4 numbers. from byte 20 on, 15 are left"),
        (HEADER + b"\0" * 447, f"the weights of {layer} need 432 bytes .4 × 3 × 3 × 3 numbers. from byte 36 on"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer, not the file"),
        (HEADER + b"\0" * 452, "has 472 bytes, the layers of its configuration take 468: 4 are left over"),
    ):
        path.write_bytes(data)
        with pytest.raises(pelton.ModelError, match=message):
            load(NET + CONV, path)
    path.write_bytes(HEADER + b"\0" * 448)
    assert load(NET + CONV, path).graph.outputs[0].name == "convolutional_0"
    with pytest.raises(pelton.ModelError, match="cannot be read: No such file"):
        load(NET + CONV, tmp_path / "other.weights")


def test_files_are_found_by_content_and_by_stem(tmp_path):
    (tmp_path / "named.txt").write_text("# a comment\n\n [net]\nwidth=8\nheight=8\nchannels=3\n" + CONV)
    found = importers.load(tmp_path / "named.txt")
    assert found.info.producer == "Darknet" and "weights are random" in found.info.warnings[0]
    (tmp_path / "named.weights").write_bytes(HEADER + b"\0" * 448)
    assert not importers.load(tmp_path / "named.txt").info.warnings
    assert importers.load(tmp_path / "named.txt", outputs=["convolutional_0"]).graph.outputs
    with pytest.raises(pelton.ModelError, match="there is no file"):
        importers.load(tmp_path / "missing.cfg")
    (tmp_path / "other.cfg").write_text("[DEFAULT]\na=1\n")
    with pytest.raises(pelton.ModelError):
        importers.load(tmp_path / "other.cfg")


def test_options_that_are_given_twice():
    found = load(NET + CONV + "filters=5\n")
    assert found.graph.outputs[0].type.shape[1] == 4
    assert "line 10: filters is already set in line 6, which has priority" in found.info.warnings[0]


def test_damaged_configurations_end_in_a_message():
    ended = {"loaded": 0, "refused": 0}
    for seed in range(300):
        start = time.monotonic()
        try:
            ended[darknet.case(seed)] += 1
        except pelton.Error:
            ended["refused"] += 1
        except Exception as e:
            raise AssertionError(f"python -m fuzz --kind darknet --seed {seed} --runs 1 ends in {e!r}") from e
        assert time.monotonic() - start < 20, f"seed {seed}"
    assert min(ended.values()) > 20


def test_damaged_weights_end_in_a_message_unless_they_are_numbers(tmp_path):
    path = tmp_path / "net.weights"
    whole = HEADER + b"\0\0\x80\x3f" * 112
    for seed in range(100):
        rng = random.Random(seed)
        path.write_bytes(bytes_changed(whole, rng))
        try:
            load(NET + CONV, path)
        except pelton.ModelError:
            continue
        assert path.stat().st_size in (len(whole), len(whole) - 4)
