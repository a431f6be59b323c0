"""Pairs inputs with the outputs that hold their values for the next run, by names, types and shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pelton.errors import InputError

from .plan import Port

BEFORE = frozenset("past prev previous init initial old".split())  # words of inputs alone
AFTER = frozenset("present next new updated final".split())  # words of outputs alone
EITHER = frozenset("in input out output".split())  # any tensor may have them
KINDS = frozenset("state states cache caches cached".split())
# at least one such word, if no other word of the name says that the value is of the run before
STATE = KINDS | frozenset("hidden cell memory mem mems h c hx cx conv recurrent ssm".split())
# other forms of such names, by words: of the caches of Hugging Face's models, torch's recurrent layers, and ONNX's
INPUT_FORMS = ((r"^past key values ", "past "), (r"^([hc]) 0$", r"\1 initial"))
OUTPUT_FORMS = (
    (r"^present key values ", "present "),
    (r"^([hc])n$", r"\1 next"),
    (r" n$", " next"),
    (r"^y ([hc])$", r"\1 next"),
)


@dataclass(frozen=True)
class PortName:
    """The words that the names of a pair have in common. is_state: they, or those left out, name a state; is_sided: a
    word is left out."""

    core: tuple[str, ...]
    is_state: bool
    is_sided: bool


def words(name: str) -> list[str]:
    """Splits a name: "past_key_values.0.key" → past, key, values, 0, key; "convState1" → conv, state, 1."""
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def _parsed(name: str, is_input: bool) -> PortName:
    text = " ".join(words(name))
    for form, replacement in INPUT_FORMS if is_input else OUTPUT_FORMS:
        text = re.sub(form, replacement, text)
    whole, own = text.split(), BEFORE if is_input else AFTER
    core = tuple(w for w in whole if w not in own | EITHER)
    is_state = any(w in own for w in whole) or any(w in STATE for w in core)
    return PortName(core, is_state, len(core) < len(whole))


def _without_kinds(core: tuple[str, ...]) -> tuple[str, ...]:
    """Drops "state" and the like, as `conv_state` is the pair of `present_conv`."""
    return tuple(w for w in core if w not in KINDS) or ("state",)


KEYS: tuple[Callable[[tuple[str, ...]], tuple[str, ...]], ...] = (lambda core: core, _without_kinds)


def misfit(before: Port, after: Port) -> str:
    """Says why an output cannot be the next value of an input; "" if it can."""
    if before.dtype != after.dtype:
        return f"{before.name!r} is {before.dtype}, {after.name!r} is {after.dtype}"
    known = zip(before.shape, after.shape)
    if len(before.shape) == len(after.shape) and all(a == b or not type(a) is type(b) is int for a, b in known):
        return ""
    return f"{before.name!r} has shape {list(before.shape)}, {after.name!r} has {list(after.shape)}"


def named_pairs(inputs: Iterable[Port], outputs: Iterable[Port]) -> dict[str, str]:
    """Returns input → output for names such as `past.0.key` and `present.0.key`, `conv_state` and `present_conv`, `h`
    and `h_out`, `state` and `stateN`, if types and shapes agree and no other name fits as well."""
    pairs: dict[str, str] = {}
    names = [[(p, _parsed(p.name, side == 0)) for p in ports] for side, ports in enumerate((inputs, outputs))]
    for key in KEYS:
        by: dict[tuple[str, ...], tuple[list[Port], list[Port]]] = {}
        for side, parsed in enumerate(names):
            for port, name in parsed:
                if name.is_state:
                    by.setdefault(key(name.core), ([], []))[side].append(port)
        sided = {port.name for parsed in names for port, name in parsed if name.is_sided}
        for befores, afters in by.values():
            if len(befores) == len(afters) == 1:
                (before,), (after,) = befores, afters
                if {before.name, after.name} & sided and not misfit(before, after):
                    pairs[before.name] = after.name
        used = pairs.keys(), set(pairs.values())
        names = [[e for e in parsed if e[0].name not in own] for parsed, own in zip(names, used)]
    return pairs


def checked_pairs(pairs: Mapping[str, str], inputs: Sequence[Port], outputs: Sequence[Port]) -> dict[str, str]:
    """Returns the caller's pairs. Raises InputError for names that are no ports, outputs of two pairs, and ports that
    do not fit."""
    if not isinstance(pairs, Mapping):
        raise InputError(f"pairs are a dict from inputs to outputs, got {pairs!r:.80}")
    for side, names, ports in (("input", pairs.keys(), inputs), ("output", pairs.values(), outputs)):
        known = [p.name for p in ports]
        for name in names:
            if name not in known:
                raise InputError(f"pairs name {name!r}, which is no {side} of the engine; it has {', '.join(known)}")
    by_name = {p.name: p for p in inputs}, {p.name: p for p in outputs}
    for before, after in pairs.items():
        if why := misfit(by_name[0][before], by_name[1][after]):
            raise InputError(f"{after!r} is no next value of {before!r}: {why}")
    if len(set(pairs.values())) < len(pairs):
        twice = next(o for o in pairs.values() if list(pairs.values()).count(o) > 1)
        raise InputError(f"pairs name the output {twice!r} twice")
    return dict(pairs)


def state_pairs(
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    declared: Mapping[str, str],
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns all pairs of an engine: those that the model declares, the outputs that extend an input in place, those
    that names say, and the caller's, which replace all others of their ports."""
    pairs = {p.shares: p.name for p in outputs if p.shares is not None} | dict(declared)
    wanted = checked_pairs(own or {}, inputs, outputs)
    pairs = {i: o for i, o in pairs.items() if o not in wanted.values() or i in wanted} | wanted
    free = [p for p in inputs if p.name not in pairs], [p for p in outputs if p.name not in pairs.values()]
    order = [p.name for p in inputs]
    return dict(sorted({**pairs, **named_pairs(*free)}.items(), key=lambda pair: order.index(pair[0])))
