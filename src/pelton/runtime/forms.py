"""Converts sequences, maps and optionals of a model to and from the arrays at an engine's ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.engine.plan import numpy_dtype
from pelton.errors import InputError

# Name in the model → its ports in order, for a list; None for an optional without a value;
# {"keys": port, "values": port, "types": element types of both} for a map;
# {"rows": port, "keys": [...]} for a list of maps, one per row of a matrix.
Forms = Mapping[str, Any]


def arrays_of_ports(inputs: Mapping[str, Any], forms: Forms) -> dict[str, Any]:
    """Converts inputs of the model to arrays by port; raises InputError if they do not match the build."""
    out: dict[str, Any] = {}
    for name, value in inputs.items():
        if name not in forms:
            out[name] = value
            continue
        ports = forms[name]
        if ports is None:
            if value is not None:
                raise InputError(
                    f"input {name!r} is an optional without a value in this engine, got {type(value).__name__};"
                    " build one for a value by leaving it out of values="
                )
        elif isinstance(ports, dict):
            out.update(map_arrays(name, value, ports))
        elif not isinstance(value, (list, tuple)) or len(value) != len(ports):
            actual = f"{len(value)} of them" if isinstance(value, (list, tuple)) else type(value).__name__
            raise InputError(
                f"input {name!r} is a list of {len(ports)} arrays in this engine, got {actual}; build an engine for"
                " another number with shapes="
            )
        else:
            out.update(zip(ports, value))
    return out


def map_arrays(name: str, value: Any, form: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Converts a map to keys and values, arrays [n] sorted by key; an empty map has one key, 0 or "", for 0 or ""."""
    if not isinstance(value, Mapping):
        raise InputError(
            f"input {name!r} is a map, a dict from {form['types'][0]} to {form['types'][1]}; got {type(value).__name__}"
        )
    of_keys, of_values = (numpy_dtype(t) for t in form["types"])
    try:
        pairs = sorted(value.items()) or [("" if of_keys.hasobject else 0, "" if of_values.hasobject else 0)]
        keys, values = np.array([k for k, _ in pairs], of_keys), np.array([v for _, v in pairs], of_values)
        if of_keys.hasobject != all(isinstance(k, str) for k, _ in pairs) or keys.ndim != 1 or values.ndim != 1:
            raise TypeError("keys or values of another type")
    except (TypeError, ValueError, OverflowError) as e:
        raise InputError(
            f"input {name!r} is a map, a dict from {form['types'][0]} to {form['types'][1]}: {e}"
        ) from None
    return {form["keys"]: keys, form["values"]: values}


def model_outputs(results: Mapping[str, Any], forms: Forms) -> dict[str, Any]:
    """Converts arrays by port to the outputs of the model."""
    of = {port: name for name, ports in forms.items() for port in ports or () if isinstance(ports, list)}
    rows = {form["rows"]: form["keys"] for form in forms.values() if isinstance(form, dict)}
    out: dict[str, Any] = {}
    for port, array in results.items():
        if port in of:
            out.setdefault(of[port], []).append(array)
        elif port in rows:
            out[port] = [dict(zip(rows[port], row)) for row in array.tolist()]
        else:
            out[port] = array
    return out | {name: [*ports] if isinstance(ports, list) else ports for name, ports in forms.items() if not ports}
