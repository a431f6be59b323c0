"""The result of a compression; importing it needs no package of the compiler."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pelton.options import Options

if TYPE_CHECKING:
    from pelton.ir.imported import Imported
    from pelton.runtime import Engine


@dataclass(frozen=True)
class Compressed:
    """A model with compressed weights, the result of `pelton.compress`.

    report: JSON data; docs/compress.md describes it.
    """

    report: dict[str, Any]
    _model: Any = field(repr=False)
    _imported: Imported = field(repr=False)
    _threads: int | None = None

    def export_onnx(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Returns the model as an `onnx.ModelProto`, and writes it atomically to a file if a path is given. Weights of
        few bits are DequantizeLinear of constants, of opset 21.

        Raises ModelError, naming the operator, if ONNX cannot express the model."""
        from pelton import exporters

        return exporters.to_onnx(self._imported.graph, path)

    def build(self, **options: Any) -> Engine:
        """Builds an engine. options: fields of `pelton.Options`. Raises the errors of `pelton.build`."""
        from pelton.builder.build import build_imported

        options = {"threads": self._threads, **options}
        engine = build_imported(self._model, self._imported, Options().but(**options))
        engine.plain.meta["compression"] = self.report  # type: ignore[index]
        return engine
