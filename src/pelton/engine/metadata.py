"""Validates the metadata that runs read; the rest of it is only shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

Refuse = Callable[[str], NoReturn]
STREAMS, MOST = ("streams", "threads"), 256  # keys of streams, and their maximum


def check_metadata(meta: Mapping[str, Any], refuse: Refuse) -> None:
    """Rejects metadata of another form than runs expect."""
    threads, forms, model = meta.get("threads"), meta.get("forms"), meta.get("model")
    if not (threads is None or type(threads) is int and threads > 0):
        refuse(f"it is for {threads!r:.50} threads")
    streams = meta.get("streams")
    if not (streams is None or isinstance(streams, dict) and all(map(_is_count, map(streams.get, STREAMS)))):
        refuse(f"its streams are {streams!r:.50}")
    if forms and not (isinstance(forms, dict) and forms.keys() == {"inputs", "outputs"}):
        refuse(f"the forms of its inputs and outputs are {forms!r:.50}")
    for kind, is_form in (("inputs", _is_input_form), ("outputs", _is_output_form)):
        entries = forms[kind] if forms else {}
        if not isinstance(entries, dict) or not all(map(is_form, entries.values())):
            refuse(f"the forms of its {kind} are {entries!r:.50}")
    if not (model is None or isinstance(model, dict)):
        refuse(f"its record of the model is {model!r:.50}")
    states = (model or {}).get("states") or {}
    if not isinstance(states, dict) or not all(map(_is_state, states.values())):
        refuse(f"its states are {states!r:.50}")


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 < number <= MOST


def _is_input_form(form: Any) -> bool:
    """Returns True for a list of ports, a map of two, or an optional without a value."""
    if isinstance(form, dict):
        return _are_texts([form.get("keys"), form.get("values"), *_list(form.get("types"))], 4)
    return form is None or _are_texts(form)


def _is_output_form(form: Any) -> bool:
    """Returns True for a list of ports, one whose rows are maps with these keys, or an optional without a value."""
    if isinstance(form, dict):
        keys = form.get("keys")
        return isinstance(form.get("rows"), str) and isinstance(keys, list) and all(map(_is_plain, keys))
    return form is None or _are_texts(form)


def _is_state(state: Any) -> bool:
    """Returns True for the output with the next run's values, and the initial values, or one for all."""
    if not isinstance(state, (list, tuple)) or len(state) != 2:
        return False
    return isinstance(state[0], str) and (_is_plain(state[1]) or isinstance(state[1], list))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _are_texts(values: Any, count: int | None = None) -> bool:
    if not isinstance(values, (list, tuple)) or count not in (None, len(values)):
        return False
    return all(isinstance(v, str) for v in values)
