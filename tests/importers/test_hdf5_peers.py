"""HDF5 files as h5py writes them, of all versions, including parts that Keras does not write."""

import keras_hdf5 as made
import numpy as np
import pytest

import pelton
from pelton.importers.keras import UnknownPart
from pelton.importers.keras.hdf5 import Hdf5

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("count", [3, 9, 70, 2500])
@pytest.mark.parametrize("versions", [None, "earliest", "v108", ("v110", "v112"), "latest"])
def test_groups_arrays_and_texts(versions, count, ordered):
    made.check(Hdf5(made.written(made.fill, count, libver=versions, track_order=ordered), "the file"), count)


@pytest.mark.parametrize("versions", ["earliest", "latest"])
def test_what_keras_does_not_write(tmp_path, versions):
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
        file["nothing"] = h5py.Empty("f4")

    file = Hdf5(made.written(write, libver=versions), "the file")
    for name in ("soft", "external"):
        with pytest.raises(pelton.ModelError, match=f"a link, '{name}', to somewhere else"):
            file.array(file.root, name)
    with pytest.raises(pelton.ModelError, match="in another file"):
        file.array(file.root, "raw")
    for name in ("small", "bomb", "complex", "words"):
        with pytest.raises(UnknownPart):
            file.array(file.root, name)
    assert file.array(file.root, "nothing").size == 0
