"""Reading HDF5 files beside h5py: groups of both kinds, many of them, texts and arrays."""

import io

import numpy as np
import pytest

import pelton
from pelton.importers.keras import UnknownPart
from pelton.importers.keras.hdf5 import Hdf5

h5py = pytest.importorskip("h5py")
RNG = np.random.default_rng()


def written(write, **options):
    out = io.BytesIO()
    with h5py.File(out, "w", **options) as file:
        write(file)
    return Hdf5(out.getvalue(), "the file")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("count", [3, 9, 70, 1200])
@pytest.mark.parametrize("versions", ["earliest", "latest", None])
def test_groups_arrays_and_texts(versions, count, ordered):
    arrays = [
        (RNG.standard_normal(RNG.integers(0, 5, RNG.integers(0, 4))) * 9).astype(("f4", "f8", "f2", ">i8", "u1")[i % 5])
        for i in range(count)
    ]

    def write(file):
        for i, a in enumerate(arrays):
            group = file.create_group(f"layers/name_{i}/vars")
            group["0"] = a
            group.attrs["name"] = f"é{i}"
        layers = file["layers"]
        layers.attrs["layer_names"] = [f"n{i}".encode() for i in range(40)]
        layers.attrs["fixed"] = np.array([b"ab", b"cde"])
        layers.attrs["none"] = np.asarray([])
        for i in range(2):
            layers.attrs[f"spread{i}"] = [f"s{i}"]
        for i in range(20):
            layers.attrs[f"more{i}"] = f"text {i}"
        file.attrs["model_config"] = "x" * 100_000

    file = written(write, libver=versions, track_order=ordered)
    layers = file.group("layers")
    assert len(layers.links) == count and file.group("layers/none") is None
    for i, a in enumerate(arrays):
        found = file.array(layers, f"name_{i}/vars/0")
        assert found.dtype == a.dtype
        np.testing.assert_array_equal(found, a)
    assert file.attribute(file.group("name_1/vars", layers), "name") == "é1"
    assert file.texts(layers, "layer_names") == [f"n{i}" for i in range(40)]
    assert file.texts(layers, "fixed") == ["ab", "cde"] and file.texts(layers, "none") == []
    assert file.texts(layers, "spread") == ["s0", "s1"]
    assert file.attribute(layers, "more17") == "text 17" and file.attribute(layers, "nothing") is None
    assert len(file.attribute(file.root, "model_config")) == 100_000


def test_what_keras_does_not_write(tmp_path):
    outside = tmp_path / "outside.h5"
    with h5py.File(outside, "w") as file:
        file["secret"] = np.ones(3)

    def write(file):
        file["soft"] = h5py.SoftLink("/a")
        file["external"] = h5py.ExternalLink(str(outside), "/secret")
        file.create_dataset("small", data=np.ones(9), compression="gzip")
        file.create_dataset("bomb", (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")
        file.create_dataset("raw", (3,), "f4", external=[(str(outside), 0, 12)])
        file["complex"] = np.ones(2, complex)
        file["words"] = ["a", "b"]

    for versions in ("earliest", "latest"):
        file = written(write, libver=versions)
        for name in ("soft", "external"):
            with pytest.raises(pelton.ModelError, match=f"a link, '{name}', to somewhere else"):
                file.array(file.root, name)
        with pytest.raises(pelton.ModelError, match="in another file"):
            file.array(file.root, "raw")
        for name in ("small", "bomb", "complex", "words"):
            with pytest.raises(UnknownPart):
                file.array(file.root, name)
