"""ONNX Runtime's exceptions as subclasses of Pelton's.

The stand-in raises exceptions that the same `except` catches as in ONNX Runtime. Three are Pelton's own under other
names. Faults of a model are an InvalidGraph and a Fail at once, as ONNX Runtime raises either, depending on where it
detects them.
"""

from __future__ import annotations

from pelton.errors import BuildError, EngineError, Error, FormatError, InputError, ModelAbsent, ModelError

InvalidArgument = InputError
InvalidProtobuf = FormatError
NoSuchFile = ModelAbsent


class Fail(Error):
    """An error without a class of its own."""


class InvalidGraph(Fail, ModelError):
    """A model that is inconsistent, or that uses an unsupported feature."""


class NotImplemented(Fail, BuildError, NotImplementedError):
    """A sound model that cannot be built, or a feature of ONNX Runtime that Pelton lacks."""


class RuntimeException(Fail, EngineError):
    """A run that failed."""


class EPFail(Fail):
    """Never raised: no execution provider can fail by itself."""


class NotFound(Fail):
    """Never raised."""


class NoModel(Fail):
    """Never raised."""


class ModelLoaded(Fail):
    """Never raised."""


class ModelLoadCanceled(Fail):
    """Never raised."""


class ModelRequiresCompilation(Fail):
    """Never raised."""


class DeviceReset(Fail):
    """Never raised."""
