"""An HDF5 file with everything that Keras writes, and its expected content.

`PYTHONPATH=src python tests/keras_hdf5.py` writes two of them to tests/data/keras_hdf5.npz, with h5py."""

import io
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data" / "keras_hdf5.npz"
COUNT = 60  # of the layers in them: more than a node of a tree holds
TYPES = ("f4", "f8", "f2", ">i8", "u1")


def array(i):
    """The variable of layer i: of any type, number of axes, and size, none too."""
    shape = (*((i * 7 + 3 * axis) % 5 for axis in range(i % 4)),)
    return (np.arange(np.prod(shape, dtype=int)) * 3 % 11 + i).astype(TYPES[i % 5]).reshape(shape)


def fill(file, count):
    """Writes to an open file of h5py."""
    for i in range(count):
        group = file.create_group(f"layers/name_{i}/vars")
        group["0"] = array(i)
        group.attrs["name"] = f"é{i}"
    layers = file["layers"]
    layers.attrs["layer_names"] = [f"n{i}".encode() for i in range(40)]
    layers.attrs["fixed"] = np.array([b"ab", b"cde"])
    layers.attrs["none"] = np.asarray([])
    for i in range(2):
        layers.attrs[f"spread{i}"] = [f"s{i}"]
    for i in range(20):
        layers.attrs[f"more{i}"] = f"text {i}"
    file.attrs["model_config"] = "x" * 9000


def check(file, count):
    """Asserts that a file (an Hdf5) has what `fill` writes."""
    layers = file.group("layers")
    assert len(layers.links) == count and file.group("layers/none") is None
    for i in range(count):
        found = file.array(layers, f"name_{i}/vars/0")
        assert found.dtype == array(i).dtype and found.shape == array(i).shape
        np.testing.assert_array_equal(found, array(i))
    assert file.attribute(file.group("name_1/vars", layers), "name") == "é1"
    assert file.texts(layers, "layer_names") == [f"n{i}" for i in range(40)]
    assert file.texts(layers, "fixed") == ["ab", "cde"] and file.texts(layers, "none") == []
    assert file.texts(layers, "spread") == ["s0", "s1"]
    assert file.attribute(layers, "more17") == "text 17" and file.attribute(layers, "nothing") is None
    assert file.attribute(file.root, "model_config") == "x" * 9000


def written(write, *given, **options):
    """The bytes of a file. options: those of h5py.File."""
    import h5py

    out = io.BytesIO()
    with h5py.File(out, "w", **options) as file:
        write(file, *given)
    return out.getvalue()


if __name__ == "__main__":
    made = {"earliest": written(fill, COUNT), "latest": written(fill, COUNT, libver="latest", track_order=True)}
    np.savez_compressed(DATA, **{name: np.frombuffer(data, np.uint8) for name, data in made.items()})
