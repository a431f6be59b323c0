"""Readers of control flow with known conditions, and of sequences and optionals, which exist only during import."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import onnx

from pelton.ir.dims import equal, is_known
from pelton.ir.graph import Value
from pelton.ir.types import BOOL, I64

from pelton.importers.imported import MAX_UNROLLED, MAX_UNROLLED_NODES
from pelton.importers.onnx.node import DataDependentControl, ValueSequence, Reading, Binding, reads, schema_of

MAX_PARTS = 5_000  # parts of a tensor split to a sequence


@reads("If")
def if_(n: Reading) -> tuple[Binding, ...]:
    """Inlines the branch that a constant condition selects."""
    condition = n.known(n.input(0))
    if condition is None:
        n.program.raise_size_question(n.input(0), n.where)
        n.note_deciding_inputs(0)
        raise n.data_dependent_control()
    return n.branch(n.attr("then_branch" if condition.all() else "else_branch"), {})


@reads("Loop")
def loop(n: Reading) -> tuple[Binding, ...]:
    """Unrolls iterations where their number is known: a constant count, and a condition that stays constant."""
    body, count, proceed = n.attr("body"), n.known(n.optional(0)), n.optional(1)
    carried: tuple[Binding, ...] = n.bindings[2:]
    names = [i.name for i in body.input]
    if len(names) != 2 + len(carried) or len(body.output) < 1 + len(carried):
        raise n.refuse(
            f"Loop with {len(carried)} carried values needs a body of {2 + len(carried)} inputs, got {len(names)}"
        )
    if (
        (n.optional(0) is not None and count is None)
        or (proceed is not None and n.known(proceed) is None)
        or (count is not None and count.item() > MAX_UNROLLED)
    ):
        raise _data_dependent_count(n)
    condition, scanned = proceed if proceed is not None else n.constant(True, BOOL), []
    mark, budget = n.program.mark(), n.program.node_budget
    for i in range(MAX_UNROLLED + 1):
        known = n.known(condition)
        if known is None or i == MAX_UNROLLED and count is None or budget - n.program.node_budget > MAX_UNROLLED_NODES:
            n.program.rewind(mark)
            raise _data_dependent_count(n)
        if not known.all() or count is not None and i >= count.item():
            break
        results = n.branch(body, dict(zip(names, (n.constant(i, I64), condition, *carried))))
        condition, carried = n.value(results[0]), results[1 : 1 + len(carried)]
        scanned.append([n.value(v) for v in results[1 + len(carried) :]])
    if not scanned and len(body.output) > 1 + len(carried):
        raise _data_dependent_count(n)
    return *carried, *(_stack(n, values, 0) for values in zip(*scanned))


def _data_dependent_count(n: Reading) -> DataDependentControl:
    """Builds the error to raise for an unknown number of iterations."""
    for i in (0, 1):
        if n.optional(i) is not None:
            n.note_deciding_inputs(i)
    return n.data_dependent_control()


def _stack(n: Reading, values: tuple[Value, ...], axis: int) -> Value:
    """Stacks values of one shape along a new axis."""
    shape = values[0].type.shape
    parts = [n.reshape(v, (*shape[:axis], 1, *shape[axis:])) for v in values]
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=axis)


@reads("Scan")
def scan(n: Reading) -> tuple[Binding, ...]:
    """Unrolls iterations, as many as the size of an axis."""
    body, scans = n.attr("body"), n.attr("num_scan_inputs")
    if not 0 < scans <= len(n.bindings):
        raise n.refuse(
            f"Scan needs num_scan_inputs between 1 and {len(n.bindings)}, the number of its inputs, got {scans}"
        )
    if n.opset < 9:
        return _scan_each_sequence(n)
    states, inputs = n.bindings[: len(n.bindings) - scans], [n.value(v) for v in n.bindings[len(n.bindings) - scans :]]
    outputs = len(body.output) - len(states)
    axes = [n.axis(a, x.type.rank) for a, x in zip(n.attr("scan_input_axes") or (0,) * scans, inputs)]
    into = n.attr("scan_output_axes") or (0,) * outputs
    back_in, back_out = (
        n.attr("scan_input_directions") or (0,) * scans,
        n.attr("scan_output_directions") or (0,) * outputs,
    )
    if outputs < 0 or not len(axes) == len(back_in) == scans or not len(into) == len(back_out) == outputs:
        raise n.refuse("Scan needs an axis and a direction for each scanned input and output")
    lengths = {x.type.shape[a] for a, x in zip(axes, inputs)}
    if len(lengths) > 1:
        raise n.refuse(f"Scan needs inputs of one length, got {' and '.join(map(str, lengths))}")
    (length,) = lengths
    if not is_known(length) or not 0 < length <= MAX_UNROLLED:
        raise n.data_dependent_control()
    names, scanned = [i.name for i in body.input], []
    for i in range(length):
        pieces = []
        for x, axis, back in zip(inputs, axes, back_in):
            at = length - 1 - i if back else i
            shape = x.type.shape[:axis] + x.type.shape[axis + 1 :]
            pieces.append(n.reshape(n.slice(x, axis, at, at + 1), shape))
        results = n.branch(body, dict(zip(names, (*states, *pieces))))
        states = results[: len(states)]
        scanned.append([n.value(v) for v in results[len(states) :]])
    stacked = [
        _stack(n, values[::-1] if back else values, n.axis(axis, values[0].type.rank + 1))
        for values, axis, back in zip(zip(*scanned), into, back_out)
    ]
    return *states, *stacked


def _scan_each_sequence(n: Reading) -> tuple[Binding, ...]:
    """Scans each sequence by itself: in opset 8 the first axis of all inputs and outputs is the batch."""
    lengths, *bindings = n.bindings
    whole = [n.value(t) for t in bindings]
    batch, time = (whole[-1].type.shape + (0, 0))[:2] if whole else (0, 0)
    if (
        not is_known(batch, time)
        or not 0 < batch * time <= MAX_UNROLLED
        or any(v.type.shape[:1] != (batch,) for v in whole)
    ):
        raise n.refuse(
            f"Scan of opset 8 needs inputs with one number of sequences, and at most {MAX_UNROLLED} steps in all, got "
            f"{', '.join(str(v.type) for v in whole)}; export the model with opset 9 or later"
        )
    if lengths is not None and any(length != time for length in n.integers(0, "lengths")):
        raise n.refuse(
            f"Scan of opset 8 needs sequences as long as their axis, {time}; export the model with opset 9 or later"
        )
    node = onnx.NodeProto()
    node.CopyFrom(n.node)
    del node.input[0]
    for a in node.attribute:
        a.name = "scan_input_directions" if a.name == "directions" else a.name
    one = replace(n, node=node, opset=9, schema=schema_of("Scan", 9, n.domain))
    rows = [
        scan(replace(one, bindings=tuple(n.reshape(n.slice(v, 0, i, i + 1), v.type.shape[1:]) for v in whole)))
        for i in range(batch)
    ]
    return tuple(_stack(n, tuple(map(n.value, column)), 0) for column in zip(*rows))


# --- sequences


@reads("SequenceEmpty")
def sequence_empty(n: Reading) -> Binding:
    return ValueSequence(())


@reads("SequenceConstruct")
def sequence_construct(n: Reading) -> Binding:
    return ValueSequence(n.inputs)


def _position(n: Reading, i: int, count: int, default: int) -> int:
    position = n.some_integers(i, "position")
    at = default if position is None else position[0]
    if not -count <= at < count:
        raise n.refuse(f"{n.op} needs a position between {-count} and {count - 1}, got {at}")
    return at % count


@reads("SequenceAt")
def sequence_at(n: Reading) -> Binding:
    items = n.items(0)
    return items[_position(n, 1, len(items), 0)]


@reads("SequenceInsert")
def sequence_insert(n: Reading) -> Binding:
    items = n.items(0)
    position = n.some_integers(2, "position")
    at = len(items) if position is None else position[0]
    if not -len(items) <= at <= len(items):
        raise n.refuse(f"SequenceInsert needs a position between {-len(items)} and {len(items)}, got {at}")
    at = at + len(items) if at < 0 else at  # counted from the last element, like Python's insert
    return ValueSequence((*items[:at], n.input(1), *items[at:]))


@reads("SequenceErase")
def sequence_erase(n: Reading) -> Binding:
    items = n.items(0)
    at = _position(n, 1, len(items), -1)
    return ValueSequence((*items[:at], *items[at + 1 :]))


@reads("SequenceLength")
def sequence_length(n: Reading) -> Binding:
    return n.constant(n.length(0), I64)


@reads("SplitToSequence")
def split_to_sequence(n: Reading) -> Binding:
    """Splits by one size (the last part may be shorter), by a list of sizes, or into parts of size 1."""
    x = n.input(0)
    axis = n.axis(n.attr("axis"), x.type.rank)
    sizes = n.optional(1)
    if sizes is not None and sizes.type.rank == 1 and n.known(sizes) is None:
        n.note_deciding_inputs(1)
        return ValueSequence((None,) * sizes.type.size)
    whole, split = x.type.shape[axis], None if n.optional(1) is None else n.numbers(1, "sizes")
    if split is not None and split.ndim:
        ends = list(accumulate(n.integers(1, "sizes")))
    else:
        size = 1 if split is None else split.item()
        if size < 1:
            raise n.refuse(f"SplitToSequence needs parts of at least 1, got {size}")
        if is_known(whole) and whole > MAX_PARTS * size:
            raise n.refuse(
                f"SplitToSequence of {x.type} makes {-(-whole // size)} parts; at most {MAX_PARTS} are supported, set"
                " a larger size with split"
            )
        ends = [min(start + size, whole) for start in range(0, whole, size)]
    starts = [0, *ends][: len(ends)]
    if not ends or not equal(ends[-1], whole) or any(a > b for a, b in zip(starts, ends)):
        raise n.refuse(f"SplitToSequence needs sizes that sum up to {whole}, got parts ending at {ends}")
    parts = [n.slice(x, axis, start, end) for start, end in zip(starts, ends)]
    if split is None and not n.flag("keepdims"):
        parts = [n.reshape(p, p.type.shape[:axis] + p.type.shape[axis + 1 :]) for p in parts]
    return ValueSequence(tuple(parts))


@reads("ConcatFromSequence")
def concat_from_sequence(n: Reading) -> Binding:
    items = n.items(0)
    if not items:
        raise n.refuse("ConcatFromSequence needs a sequence that is not empty")
    new = n.flag("new_axis")
    axis = n.axis(n.attr("axis"), items[0].type.rank + new)
    if new:
        return _stack(n, items, axis)
    return items[0] if len(items) == 1 else n.emit("concat", *items, axis=axis)


@reads("SequenceMap")
def sequence_map(n: Reading) -> tuple[Binding, ...]:
    """Emits the body once per element; further tensors go to all, further sequences element by element."""
    body, items = n.attr("body"), n.items(0)
    rows = []
    for i in range(len(items)):
        arguments = [t.values[i] if isinstance(t, ValueSequence) and i < len(t.values) else t for t in n.bindings]
        rows.append([n.value(v) for v in n.branch(body, dict(zip([v.name for v in body.input], arguments)))])
    return tuple(ValueSequence(column) for column in zip(*rows)) if rows else (ValueSequence(()),) * len(body.output)


# --- optionals


@reads("Optional", "OptionalGetElement")
def optional_element(n: Reading) -> Binding:
    if not n.bindings or n.bindings[0] is None:
        if n.op == "Optional":
            return None
        raise n.refuse("OptionalGetElement reads an optional that is empty")
    return n.bindings[0]


@reads("OptionalHasElement")
def optional_has_element(n: Reading) -> Binding:
    return n.constant(bool(n.bindings) and n.bindings[0] is not None, BOOL)
