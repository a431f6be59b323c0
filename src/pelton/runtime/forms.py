"""Inputs and outputs of a model that are lists of arrays or nothing, as the ports of an engine that they consist of."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pelton.errors import InputError

Forms = Mapping[str, "list[str] | None"]                         # name in the model → its ports in order, None for an optional without a value


def spread(inputs: Mapping[str, Any], forms: Forms) -> dict[str, Any]:
    """Inputs of the model as arrays for ports; InputError where they are not what the engine was built for."""
    out: dict[str, Any] = {}
    for name, value in inputs.items():
        if name not in forms:
            out[name] = value
            continue
        ports = forms[name]
        if ports is None:
            if value is not None:
                raise InputError(f"input {name!r} is an optional without a value in this engine, given {type(value).__name__}; "
                                 "build one for a value by leaving it out of values=")
        elif not isinstance(value, (list, tuple)) or len(value) != len(ports):
            given = f"{len(value)} of them" if isinstance(value, (list, tuple)) else type(value).__name__
            raise InputError(f"input {name!r} is a list of {len(ports)} arrays in this engine, given {given}; shapes= says how many there are in another")
        else:
            out.update(zip(ports, value))
    return out


def gathered(results: Mapping[str, Any], forms: Forms) -> dict[str, Any]:
    """What ports gave as outputs of the model."""
    of = {port: name for name, ports in forms.items() for port in ports or ()}
    out: dict[str, Any] = {}
    for port, array in results.items():
        if port in of:
            out.setdefault(of[port], []).append(array)
        else:
            out[port] = array
    return out | {name: ports for name, ports in forms.items() if not ports}
