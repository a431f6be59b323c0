"""Records equal frozen dataclasses in all features that the engine's data uses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, astuple, dataclass, field, fields, replace
from typing import Any

import pytest

from pelton.record import record


@record(frozen=True)
class Made:
    """What is tried."""

    name: str
    size: int
    shape: tuple[int, ...] = (1, 2)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def twice(self) -> int:
        return 2 * self.size


@dataclass(frozen=True)
class Usual:
    name: str
    size: int
    shape: tuple[int, ...] = (1, 2)
    info: Mapping[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    "values, named",
    [
        (("a", 3), {}),
        (("a",), {"size": 3}),
        ((), {"size": 3, "name": "a"}),
        (("a", 3, (4,), {"x": 1}), {}),
        (("a",), {"info": {"y": 2}, "size": 5}),
        (("a", 3, (4,)), {}),
    ],
)
def test_it_takes_what_a_dataclass_takes(values, named):
    made, usual = Made(*values, **named), Usual(*values, **named)
    assert (
        astuple(made) == astuple(usual)
        and repr(made) == repr(usual).replace("Usual", "Made")
        and made.twice == 2 * usual.size
    )
    assert made == Made(*values, **named) and made != Made("other", 1) and made != usual and made != astuple(made)
    assert replace(made, size=9) == Made(made.name, 9, made.shape, made.info) and pickle.loads(
        pickle.dumps(made)
    ) == made == copy.deepcopy(made)


@pytest.mark.parametrize(
    "values, named",
    [
        ((), {}),
        (("a",), {}),
        (("a", 1, (), {}, 5), {}),
        (("a", 1), {"name": "b"}),
        (("a", 1), {"wrong": 2}),
        (("a",), {"wrong": 2}),
        ((), {"name": "a", "wrong": 2}),
        (("a",), {"name": "a", "size": 1}),
    ],
)
def test_it_refuses_what_a_dataclass_refuses(values, named):
    for kind in (Usual, Made):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_it_is_frozen_has_a_hash_and_matches():
    one, other = Made("a", 1, info={}), Made("a", 1, info={})
    assert one.info is not Made("b", 2).info and [f.name for f in fields(one)] == ["name", "size", "shape", "info"]
    for change in (lambda: setattr(one, "size", 2), lambda: delattr(one, "size"), lambda: setattr(one, "new", 2)):
        with pytest.raises(FrozenInstanceError):
            change()
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)  # a dict is in it
    assert hash(Made("a", 1, info=())) == hash(Made("a", 1, info=())) != hash(Made("a", 2, info=())) and one == other
    match one:
        case Made(name, size):
            assert (name, size) == ("a", 1)
        case _:
            raise AssertionError("it does not match")
