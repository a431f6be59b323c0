"""Sessions for libraries written for ONNX Runtime: its exceptions, and the internal attributes that these libraries
use."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from pelton.compat import session
from pelton.errors import BuildError, Cancelled, EngineError, Error, ModelError

from . import exceptions

Method = TypeVar("Method", bound=Callable[..., Any])

# the first match is ONNX Runtime's class for that error; InputError is its InvalidArgument as it is
_KINDS: tuple[tuple[type[Exception], type[Error]], ...] = (
    (FileNotFoundError, exceptions.NoSuchFile),
    (exceptions.InvalidProtobuf, exceptions.InvalidProtobuf),
    (ModelError, exceptions.InvalidGraph),
    (Cancelled, Cancelled),
    (BuildError, exceptions.NotImplemented),
    (EngineError, exceptions.RuntimeException),
)


def _translated(method: Method) -> Method:
    """Wraps a method so that it raises ONNX Runtime's exceptions."""

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except Error as e:
            kind = next((theirs for ours, theirs in _KINDS if isinstance(e, ours)), None)
            if kind is None or isinstance(e, (kind, exceptions.Fail)):
                raise
            new = kind(str(e))
            new.__dict__.update(e.__dict__)
            raise new.with_traceback(e.__traceback__) from e.__cause__

    return call  # type: ignore[return-value]


class OnnxRuntimeSession(session.InferenceSession):
    """pelton.InferenceSession with the exceptions of onnxruntime.capi.onnxruntime_pybind11_state."""

    @_translated
    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: session.SessionOptions | None = None,
        providers: Any = None,
        provider_options: Any = None,
        **more: Any,
    ):
        super().__init__(path_or_bytes, sess_options, providers, provider_options, **more)
        self._model_path = os.fspath(path_or_bytes) if isinstance(path_or_bytes, (str, os.PathLike)) else None
        self._model_bytes = None if self._model_path is not None else path_or_bytes

    run = _translated(session.InferenceSession.run)
    run_with_iobinding = _translated(session.InferenceSession.run_with_iobinding)

    # attributes that libraries use although they are private
    @property
    def _sess(self) -> OnnxRuntimeSession:
        return self

    @property
    def _sess_options(self) -> session.SessionOptions:
        return self.get_session_options()

    @property
    def _inputs_meta(self) -> list[session.NodeArg]:
        return self.get_inputs()

    inputs_meta = _inputs_meta

    @property
    def _outputs_meta(self) -> list[session.NodeArg]:
        return self.get_outputs()

    outputs_meta = _outputs_meta

    @property
    def _overridable_initializers(self) -> list[session.NodeArg]:
        return self.get_overridable_initializers()

    @property
    def _model_meta(self) -> session.ModelMetadata:
        return self.get_modelmeta()

    model_meta = _model_meta

    @property
    def _providers(self) -> list[str]:
        return self.get_providers()

    @property
    def _provider_options(self) -> dict[str, dict[str, str]]:
        return self.get_provider_options()


OnnxRuntimeSession.__name__ = OnnxRuntimeSession.__qualname__ = "InferenceSession"  # public names
