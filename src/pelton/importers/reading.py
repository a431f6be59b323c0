"""Shared interface to readers of all formats: the record of an import, operands that must be known, checks, errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pelton.errors import FormatError, InputError, ModelError
from pelton.importers.input_sizes import UndecidedLayer
from pelton.ir import dims
from pelton.ir.builder import Builder
from pelton.ir.dims import Dim, Size, Undecided, is_known
from pelton.ir.graph import Value
from pelton.ir.imported import OnData
from pelton.ir.size_constraints import UndecidedNode
from pelton.ir.types import BOOL, DType

ADVICE = "set sizes, or ranges that determine it, with shapes="
RAISED = (ValueError, TypeError, LookupError, ArithmeticError)  # raised by readers of contradictory operators


class ImportRecord:
    """The results of an import: the graph under construction, problems, and facts that readers requested."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.foreign_steps: list[str] = []
        self.undecided: list[UndecidedNode] = []
        self.reader_problems: set[str] = set()  # problems that may vanish at other sizes
        self.on_data: set[str] = set()  # problems that are dependences on data
        self.unknown: list[Value] = []  # values whose unknown elements readers needed
        self.inputs: set[Value] = set()  # values that are whole inputs of the model
        self.deciding_inputs: dict[str, None] = {}  # ordered set: inputs whose values readers needed
        self.unanswered: Collection[str] = ()  # nodes with open questions about sizes
        self.known_sizes: Collection[str] = ()  # symbols whose optimum is the actual size of a run

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def problem(self, text: str, on_data: bool) -> None:
        """Records a problem of a reader."""
        self.problems.append(text)
        self.reader_problems.add(text)
        if on_data:
            self.on_data.add(text)

    def has_only_data_problems(self) -> bool:
        """True if all problems are dependences on data."""
        return self.on_data.issuperset(self.problems)

    @property
    def has_certain_problems(self) -> bool:
        """True if a problem exists for all sizes of the inputs."""
        return not self.reader_problems.issuperset(self.problems)

    def note_undecided_node(
        self, where: str, operands: Iterable[Value], question: BaseException | None, conditional: bool = False
    ) -> None:
        """Records a node that could not be imported, with the symbols that its operands depend on. conditional: True if
        not every run reaches it."""
        used = dims.symbols([(*v.type.shape, *self.builder.sizes.get(v, np.empty(0)).flat) for v in operands])
        asked = question if isinstance(question, Undecided) else None
        self.undecided.append(UndecidedNode(where, tuple(used), asked, conditional))

    def raise_size_question(self, value: Value, where: str) -> None:
        """Raises Undecided if a value depends only on comparisons of known sizes, so that these can be constrained."""
        if where in self.unanswered:
            return
        questions = list[Undecided]()
        for v, maker in self.builder.ancestors(value, self.builder.questions):
            if v in self.builder.questions:
                questions.append(self.builder.questions[v])
            elif maker is None:
                return
        for question in questions:
            asked = {s.name for s in dims.symbols(question.difference)}
            if asked and asked <= set(self.known_sizes):
                raise question

    def note_deciding_inputs(self, value: Value) -> tuple[str, ...]:
        """Records and returns the inputs of the model that determine a value; none if it depends on data."""
        names = list[str]()
        for v, maker in self.builder.ancestors(value, self.inputs):
            if v in self.inputs:
                if not decides(v.type.dtype, v.type.rank):
                    return ()
                names.append(v.name)
            elif maker is None:
                # an element of a sequence, or a value of a body that is imported once for all iterations
                return ()
        self.deciding_inputs.update(dict.fromkeys(sorted(names)))
        return tuple(sorted(names))


def decides(dtype: DType, rank: int) -> bool:
    """True if an input of this type may determine the graph (axes, a shape, a count, a condition), unlike data."""
    return rank <= 1 and (dtype is BOOL or dtype.is_integer or dtype.is_float)


class FileValues:
    """Checks of a file's numbers for an operator or a layer."""

    def error(self, reason: str) -> ModelError:
        """Builds the error to raise, from a sentence without its subject: "needs an axis …"."""
        raise NotImplementedError

    def real(self, given: Any, what: str) -> float:
        """Returns a number of a file."""
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise self.error(f"needs a number as {what}, got {given!r:.60}")
        return float(given)

    def whole(self, given: Any, what: str, low: int, high: int) -> int:
        """Returns a whole number of a file."""
        if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
            raise self.error(f"needs an integer from {low} on as {what}, got {given!r:.60}")
        return given

    def wholes(self, given: Any, what: str, low: int, high: int, count: int | None = None) -> tuple[int, ...]:
        """Returns `count` whole numbers of a file."""
        numbers = given if isinstance(given, (list, tuple)) else None
        if numbers is None or count not in (None, len(numbers)) or any(type(n) is not int for n in numbers):
            raise self.error(f"needs {'' if count is None else f'{count} '}whole numbers as {what}, got {given!r:.60}")
        return tuple(self.whole(n, what, low, high) for n in numbers)


class Checks(FileValues):
    """Checks of the axes and sizes of an operator or a layer."""

    def axis(self, axis: int, rank: int, what: str = "an axis") -> int:
        """Returns an axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.error(f"needs {what} between {-rank} and {rank - 1}, got {axis}")
        return axis % rank

    def axes(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        """Returns different axes, counted from the front, in order."""
        result = tuple(sorted(self.axis(a, rank) for a in axes))
        if len(set(result)) < len(result):
            raise self.error(f"needs different axes, got {list(result)}")
        return result

    def at_least(self, size: Size, least: Size, reason: str) -> None:
        """Refuses a size below another for this reason; narrows dynamic dimensions if a run decides."""
        room = size - least
        low, high = dims.bounds(room)
        if high < 0:
            raise self.error(reason)
        if low < 0:
            raise Undecided(str(self.error(reason)), room, ">=")

    def number(self, size: Size, what: str) -> int:
        """Returns a size that must be a number."""
        if not is_known(size):
            raise self.error(f"needs a fixed {what}, got {size}; set it with shapes=")
        return int(size)


class Operands(Checks):
    """The operands of an operator that must be known to read it: numbers, or sizes of dynamic dimensions."""

    @property
    def record(self) -> ImportRecord:
        """The record of the import."""
        raise NotImplementedError

    @property
    def op(self) -> str:
        """The name of the operator."""
        raise NotImplementedError

    @property
    def where(self) -> str:
        """The place of the operator, for messages."""
        raise NotImplementedError

    def operand(self, i: int) -> Value:
        """Returns the value of an operand."""
        raise NotImplementedError

    def elements(self, i: int) -> np.ndarray | None:
        """Returns the elements of a constant operand, or of one made of sizes, which are objects; None for others."""
        raise NotImplementedError

    def numbers(self, i: int, what: str) -> np.ndarray:
        """Returns the elements of operand i, which must be a constant or made of sizes; the latter are objects."""
        array = self.elements(i)
        if array is None:
            raise self.unknown_operand(self.operand(i), what)
        return array

    def integers(self, i: int, what: str) -> tuple[Size, ...]:
        """Returns the elements of a constant operand as integers or sizes."""
        return tuple(d if isinstance(d, Dim) else int(d) for d in self.numbers(i, what).reshape(-1))

    def unknown_operand(self, value: Value, what: str) -> OnData:
        """Builds the error to raise for a computed operand; records that the operator needs its elements."""
        self.record.unknown.append(value)
        inputs = self.record.note_deciding_inputs(value)
        if inputs:
            names = ("input " if len(inputs) == 1 else "inputs ") + " and ".join(map(repr, inputs))
            reason = f"on {names} of the model; set its value with values={{{inputs[0]!r}: ...}}"
        else:
            reason = "on the data; fix the model's sizes, or declare the shapes of its outputs"
        return OnData(f"{self.op} needs a constant as its {what}, but it depends {reason} ({self.where})", inputs)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Adds the place of an operator to the errors of its reader; a question about sizes becomes an UndecidedLayer."""
    try:
        yield
    except (UndecidedLayer, OnData):  # they name the place already
        raise
    except Undecided as e:
        raise UndecidedLayer(f"{e}; {ADVICE} ({where})", where, e) from None
    except FormatError as e:
        raise type(e)(f"{e} ({where})") from None
    except (InputError, ModelError) as e:
        text = str(e) if where in str(e) else f"{e} ({where})"
        if isinstance(e.__cause__, Undecided):
            raise UndecidedLayer(text, where, e.__cause__) from None
        raise ModelError(text) from None
    except RAISED as e:
        raise ModelError(f"cannot be read: {e} ({where})") from e
