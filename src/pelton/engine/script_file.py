"""The file of a script: an engine's file with other sections: the plan, the shared constants, and each engine as a file
of its own without constants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from pelton.errors import EngineError
from pelton.system import files

from . import file
from .chain import chain
from .constants import DeferredConstants, bytes_of
from .container import (
    AGAIN,
    Container,
    as_object,
    as_text,
    frame,
    open_container,
    parse_json,
    path_of,
    place_sections,
    report_write_errors,
    to_json,
    write_file,
)
from .plan import DynamicDimension, EnginePlan, IndexRange, Number, Port
from .script import (
    DEEPEST,
    Action,
    Block,
    Constant,
    Feed,
    HostAction,
    IfAction,
    LoopAction,
    RunAction,
    ScanAction,
    Script,
    validate_script,
)

MOST = 1 << 14  # engines of a script


def to_bytes(script: Script) -> bytes:
    """Returns the file as bytes. Raises EngineError for a script that is inconsistent or cannot be written as JSON."""
    return b"".join(_pieces(script))


def write(script: Script, path: str | os.PathLike[str], sign: Any = None) -> None:
    """Writes the file atomically. sign: as in `file.write`."""
    if sign is None:
        constants = script.constants
        if isinstance(constants, DeferredConstants) and not constants.is_filled and files.replaces(path):
            validate_script(script)
            with constants.lock, report_write_errors(path):
                files.make(path, lambda handle: _make(handle, script, constants), durable=True)
        else:
            write_file(_pieces(script), path)
        return
    from . import signature  # imported only for signed engines

    key = signature.private_key(sign)
    write_file(signature.signed(_pieces(script, signature.EMPTY), [key]), path)


def _make(handle: int, script: Script, constants: DeferredConstants) -> None:
    """Fills the file of a script, computing its constants in place; all other sections follow."""
    names = ["constants", *_own_sections(script), *(f"engine {i}" for i in range(len(script.engines)))]
    start = place_sections(dict.fromkeys(names, b""))["constants"][0]  # the first section: wherever the others end
    stored, _ = file.compute_in_file(handle, start, constants)
    constants.replace_bytes(stored)
    at = 0
    for data in _pieces(script):
        at += os.pwrite(handle, data, at)


def _pieces(script: Script, more: Mapping[str, bytes] = file.NOTHING) -> Iterator[Any]:
    """Yields the bytes of the file, one after another. more: sections after its own."""
    validate_script(script)
    yield from frame(
        {
            "constants": bytes_of(script.constants),
            **_own_sections(script),
            **{f"engine {i}": file.to_bytes(e, lent=True) for i, e in enumerate(script.engines)},
            **more,
        },
    )


def _own_sections(script: Script) -> dict[str, bytes]:
    """Returns the sections besides constants and engines."""
    text = {
        "name": script.name,
        "inputs": [_port_to_json(p) for p in script.inputs],
        "outputs": [_port_to_json(p) for p in script.outputs],
        "symbols": [[s.name, s.minimum, s.optimum, s.maximum] for s in script.symbols],
        "target": dict(script.target),
        "engines": len(script.engines),
        "main": _block_to_json(script.main),
        "sizes": dict(script.sizes),
        "iterations": script.iterations,
        **({"profiles": script.profiles} if script.profiles else {}),
        "arrays": {name: [c.dtype, c.shape, c.offset, c.size] for name, c in script.arrays.items()},
    }
    return {"script": to_json(text, "script"), "meta": to_json(dict(script.meta), "meta"), **chain(script)}


def _block_to_json(b: Block | None) -> Any:
    return None if b is None else [b.inputs, [_action_to_json(a) for a in b.steps], b.outputs]


def _action_to_json(a: Action) -> list[Any]:
    match a:
        case RunAction():
            return [
                "run",
                a.engine,
                [[f.name, f.source, f.at] for f in a.feeds],
                a.outputs,
                _block_to_json(a.otherwise),
            ]
        case HostAction():
            return ["host", a.name, a.call, a.text, a.inputs, a.outputs]
        case IfAction():
            return ["if", a.condition, _block_to_json(a.then), _block_to_json(a.other), a.outputs]
        case LoopAction():
            return ["loop", a.trips, a.condition, a.carried, _block_to_json(a.body), a.outputs, a.stacked]
        case ScanAction():
            return [
                "scan",
                a.carried,
                a.scanned,
                a.axes,
                a.back,
                _block_to_json(a.body),
                a.outputs,
                a.into,
                a.reversed,
                a.stacked,
            ]


def read_in(found: Container, where: str, verify: bool) -> Script:
    """Returns the script in an opened file, as `file.engine_in` does."""
    sections = found.sections(("script", "meta", "constants"))
    constants = sections["constants"]
    found.verify({n: d for n, d in sections.items() if verify or n != "constants"}, where)

    def text(name: str) -> dict[str, Any]:
        what = f"{found.damaged}its {name}"
        return as_object(parse_json(sections[name], what), what)

    h, meta = text("script"), text("meta")
    count = h.get("engines")
    if type(count) is not int or not 0 <= count <= MOST:
        raise EngineError(f"{found.damaged}it would hold {count!r} engines; {AGAIN}")
    parts = found.sections(f"engine {i}" for i in range(count))
    engines = tuple(_engine(data, f"{where} ({name})", verify, constants) for name, data in parts.items())
    try:
        script = Script(
            name=as_text(h["name"]),
            inputs=tuple(map(_port, h["inputs"])),
            outputs=tuple(map(_port, h["outputs"])),
            main=_block(h["main"]),
            engines=engines,
            arrays={name: _constant(c) for name, c in as_object(h["arrays"], "its constants").items()},
            constants=constants,
            target=as_object(h["target"], "its target"),
            meta=meta,
            symbols=tuple(map(_symbol, h["symbols"])),
            sizes=as_object(h["sizes"], "its table of sizes"),
            iterations=h["iterations"],
            profiles=_names(h.get("profiles", [])),
            file=path_of(where),
        )
    except (KeyError, TypeError, ValueError, AttributeError, EngineError) as e:
        raise EngineError(
            f"{found.damaged}a part of it is missing or of another form ({type(e).__name__}: {e}); {AGAIN}"
        ) from None
    validate_script(script)
    return script


def _engine(data: memoryview, where: str, verify: bool, constants: memoryview) -> EnginePlan:
    container = open_container(data, where)
    if "script" in container.rows:
        raise EngineError(f"{container.damaged}a script cannot be part of another one; {AGAIN}")
    return file.engine_in(container, where, verify, constants)


def _port_to_json(p: Port) -> dict[str, Any]:
    indices = {"indices": [p.indices.low, p.indices.high, p.indices.layer]} if p.indices is not None else {}
    shares = {"shares": p.shares} if p.shares is not None else {}
    return {"name": p.name, "dtype": p.dtype, "shape": p.shape, "dims": p.dims, **indices, **shares}


def _numbers(value: Any) -> tuple[Number, ...]:
    if not isinstance(value, list) or any(type(v) is not int and type(v) is not str for v in value):
        raise TypeError(f"expected whole numbers, got {value!r:.50}")
    return tuple(value)


def _symbol(s: list[Any]) -> DynamicDimension:
    name, minimum, optimum, maximum = s
    return DynamicDimension(as_text(name), minimum, optimum, maximum)


def _port(p: Mapping[str, Any]) -> Port:
    return Port(
        as_text(p["name"]),
        as_text(p["dtype"]),
        _numbers(p["shape"]),
        tuple(None if d is None else as_text(d) for d in p["dims"]),
        _indices(*p["indices"]) if "indices" in p else None,
        as_text(p["shares"]) if "shares" in p else None,
    )


def _indices(low: Any, high: Any, layer: Any) -> IndexRange:
    return IndexRange(low, high, as_text(layer))


def _constant(c: list[Any]) -> Constant:
    dtype, shape, offset, size = c
    return Constant(as_text(dtype), _numbers(shape), offset, size)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(map(as_text, _listed(value)))


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r:.50}")
    return value


def _block(b: Any, depth: int = 0) -> Block:
    if depth > DEEPEST + 1:
        raise ValueError(f"more than {DEEPEST} blocks within blocks")
    inputs, steps, outputs = _listed(b)
    return Block(_names(inputs), tuple(_action(a, depth) for a in _listed(steps)), _names(outputs))


def _action(a: Any, depth: int) -> Action:
    kind, *rest = _listed(a)
    if kind == "run":
        engine, feeds, outputs, otherwise = rest
        return RunAction(
            engine,
            tuple(Feed(as_text(n), as_text(s), at) for n, s, at in feeds),
            _names(outputs),
            None if otherwise is None else _block(otherwise, depth + 1),
        )
    if kind == "host":
        name, call, text, inputs, outputs = rest
        return HostAction(as_text(name), as_text(call), as_text(text), _names(inputs), _names(outputs))
    if kind == "if":
        condition, then, other, outputs = rest
        return IfAction(as_text(condition), _block(then, depth + 1), _block(other, depth + 1), _names(outputs))
    if kind == "loop":
        trips, condition, carried, body, outputs, stacked = rest
        return LoopAction(
            as_text(trips),
            as_text(condition),
            _names(carried),
            _block(body, depth + 1),
            _names(outputs),
            _stacked(stacked),
        )
    if kind == "scan":
        carried, scanned, axes, back, body, outputs, into, reversed, stacked = rest
        return ScanAction(
            _names(carried),
            _names(scanned),
            _numbers(axes),
            _flags(back),
            _block(body, depth + 1),
            _names(outputs),
            _numbers(into),
            _flags(reversed),
            _stacked(stacked),
        )
    raise ValueError(f"there is no step {kind!r:.50}")


def _flags(value: Any) -> tuple[bool, ...]:
    return tuple(bool(v) for v in _listed(value))


def _stacked(value: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((as_text(dtype), _numbers(shape)) for dtype, shape in _listed(value))
