"""ONNX Runtime's exceptions as kinds of Pelton's.

Where ONNX Runtime raises one of these, the stand-in raises one that the same `except` catches. Three are Pelton's own
under other names. What is wrong with a model is an InvalidGraph and a Fail at once, since which of the two ONNX Runtime
raises depends on where it notices.
"""

from __future__ import annotations

from pelton.errors import BuildError, EngineError, Error, FormatError, InputError, ModelAbsent, ModelError

InvalidArgument = InputError
InvalidProtobuf = FormatError
NoSuchFile = ModelAbsent


class Fail(Error):
    """Anything that has no kind of its own."""


class InvalidGraph(Fail, ModelError):
    """A model that is inconsistent, or that uses something that cannot be imported."""


class NotImplemented(Fail, BuildError, NotImplementedError):
    """A sound model that cannot be built, or something that ONNX Runtime has and Pelton has not."""


class RuntimeException(Fail, EngineError):
    """A run that ended otherwise than expected."""


class EPFail(Fail):
    """Never raised: there are no execution providers that could fail by themselves."""


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
