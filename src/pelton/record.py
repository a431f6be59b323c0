"""Frozen dataclasses that are cheap to define.

`dataclasses` compiles six functions for every class, up to a millisecond each, at every start of a program that loads
engines; here all classes share them.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as bare
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool):
        """Decorates as `dataclasses.dataclass(frozen=True)` does: same fields, defaults, `replace` and `match`."""
        assert frozen
        return _define


def _define(cls: type) -> type:
    bare(init=False, repr=False, eq=False)(cls)
    names = tuple(f.name for f in fields(cls))
    known = frozenset(names)
    defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    factories = {f.name: f.default_factory for f in fields(cls) if f.default_factory is not MISSING}

    def init(self: Any, *values: Any, **named: Any) -> None:
        state = self.__dict__
        state.update(defaults)
        state.update(zip(names, values))
        state.update(named)
        if values and named or len(state) != len(names) or len(values) > len(names) or not known.issuperset(named):
            complete(state, values, named)

    def complete(state: dict[str, Any], values: tuple, named: dict[str, Any]) -> None:
        if len(values) > len(names) or not known.issuperset(named) or not named.keys().isdisjoint(names[: len(values)]):
            raise TypeError(
                f"{cls.__name__} has the fields {', '.join(names)}, got {len(values)} in order and"
                f" {', '.join(named) or 'none'} by name"
            )
        state.update({name: make() for name, make in factories.items() if name not in state})
        if missing := [n for n in names if n not in state]:
            raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")

    def values_of(self: Any) -> tuple:
        return tuple([getattr(self, name) for name in names])

    def equal(self: Any, other: object) -> bool:
        return values_of(self) == values_of(other) if other.__class__ is cls else NotImplemented

    def reject_change(self: Any, name: str, *_: Any) -> NoReturn:
        raise FrozenInstanceError(
            f"cannot change the field {name!r} of {cls.__name__}; dataclasses.replace makes a changed copy"
        )

    for name, method in (
        ("__init__", init),
        ("__eq__", equal),
        ("__hash__", lambda self: hash(values_of(self))),
        ("__setattr__", reject_change),
        ("__delattr__", reject_change),
        ("__repr__", lambda self: f"{cls.__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"),
    ):
        setattr(cls, name, method)
    return cls
