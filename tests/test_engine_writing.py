"""Writing of engine files: atomic, through links and pipes, with constants created in the file."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import threading

import numpy as np
import pytest
from handmade import chain, python
from test_engine_file import with_host_step

from pelton.engine import file
from pelton.engine.constants import DeferredConstants
from pelton.errors import EngineError


def failing_after(n: int, monkeypatch) -> None:
    real, left = os.write, [n]

    def write(handle, data):
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(handle, memoryview(data)[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("room", [0, 1, 100, 5000, 15000])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, room):
    path = tmp_path / "e.pelton"
    file.write(chain(16), path)
    old = path.read_bytes()
    with monkeypatch.context() as m:
        failing_after(room, m)
        with pytest.raises(EngineError, match="No space left on device.*unchanged"):
            file.write(chain(5000), path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["e.pelton"]


def test_other_failures_of_writing(tmp_path, monkeypatch):
    with pytest.raises(EngineError, match="No such file or directory"):
        file.write(chain(16), tmp_path / "none" / "e.pelton")
    (tmp_path / "dir").mkdir()
    with pytest.raises(EngineError, match="Is a directory"):
        file.write(chain(16), tmp_path / "dir")

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(os, "fsync", interrupted)
        file.write(chain(16), tmp_path / "e.pelton")
    assert os.listdir(tmp_path) == ["dir"]


@pytest.mark.parametrize("constants", ["e.constants", "DeferredConstants(len(e.constants), iter)"])
def test_a_limit_on_file_sizes(tmp_path, constants):
    """The real thing, not a stand-in: the system refuses to write more than 10 kB."""
    code = """
        import dataclasses, resource, sys
        import numpy as np
        from handmade import chain
        from pelton.engine import file
        from pelton.engine.constants import DeferredConstants
        from pelton.errors import EngineError
        chain(16), file.write
        e = chain(50000)
        e = dataclasses.replace(e, constants=CONSTANTS)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
        try:
            file.write(e, sys.argv[1])
        except EngineError as error:
            print(error)
    """
    r = python(code.replace("CONSTANTS", constants), tmp_path / "e.pelton")
    assert "File too large" in r.stdout and os.listdir(tmp_path) == [], r.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def unmade(e, raises: type[BaseException] | None = None):
    """The engine with its constants still to be made, in pieces of 640 bytes."""
    data = np.frombuffer(e.constants, np.uint8)

    def fill(out):
        for at in range(0, len(data), 640):
            if at and raises is not None:
                raise raises("no more")
            out[at : at + 640] = data[at : at + 640]
            yield min(at + 640, len(data))

    return dataclasses.replace(e, constants=DeferredConstants(len(data), fill))


def test_constants_are_made_in_the_file_or_in_memory(tmp_path):
    """Whatever comes first; the bytes are the same."""
    e = chain(5000, constant=np.random.default_rng(0).standard_normal(5000).astype(np.float32))
    written, read, first = unmade(e), unmade(e), tmp_path / "first.pelton"
    for _ in range(2):
        file.write(written, first)
        assert first.read_bytes() == file.to_bytes(e)
        first.unlink()  # what was made there is still there for the engine
    assert bytes(written.constants.read()) == bytes(e.constants) == bytes(read.constants.read())
    assert read.constants.read().ctypes.data % 64 == 0 and not written.constants.read().flags.writeable
    file.write(read, first)
    assert first.read_bytes() == file.to_bytes(e) == file.to_bytes(read) == file.to_bytes(written)
    assert file.read(first, verify=True).name == e.name and len(unmade(e).constants) == e.constants.nbytes
    empty = dataclasses.replace(with_host_step(), buffers=with_host_step().buffers[:2], constants=b"")
    file.write(dataclasses.replace(empty, constants=DeferredConstants(0, lambda out: iter(()))), first)
    assert first.read_bytes() == file.to_bytes(empty)


def test_what_cannot_be_made_leaves_the_old_file(tmp_path):
    path = tmp_path / "e.pelton"
    file.write(chain(16), path)
    old, e = path.read_bytes(), unmade(chain(5000, constant=np.ones(5000, np.float32)), MemoryError)
    with pytest.raises(MemoryError):
        file.write(e, path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["e.pelton"] and not e.constants.is_filled


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real.pelton").write_bytes(b"old")
    (tmp_path / "link.pelton").symlink_to("real.pelton")
    file.write(chain(16), tmp_path / "link.pelton")
    assert (tmp_path / "link.pelton").is_symlink() and file.read(tmp_path / "real.pelton").name == "handmade"


@pytest.mark.parametrize("made", [lambda e: e, unmade])
def test_a_pipe_is_written_to_and_stays_one(tmp_path, made):
    """As /dev/null is, and /dev/stdout."""
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    file.write(made(chain(5000)), tmp_path / "pipe")
    reader.join()
    assert read == [file.to_bytes(chain(5000))] and (tmp_path / "pipe").is_fifo() and os.listdir(tmp_path) == ["pipe"]
