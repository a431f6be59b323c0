"""Runs Triton kernels under Triton's interpreter, with numpy alone, in a process of its own: it makes all of Triton
interpreted."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

import pelton
from pelton.backends.cuda.null import NullDevice
from pelton.builder.build import BuildResult
from pelton.engine import file
from pelton.codegen.triton.toolchain import read_tensor_maps, load, read_phased
from pelton.passes.precision import tf32

LIBRARY = {
    "pow": np.power,
    "tanh": np.tanh,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "rint": np.rint,
    "trunc": np.trunc,
    "fmod": np.fmod,
}
TYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8e4nv": "float8_e4m3fn",
    # what Triton calls them in signatures
    **{f"{s}{n}": f"{'u' * (s == 'u')}int{n}" for s in "iu" for n in (8, 16, 32, 64)},
}
_pool: ProcessPoolExecutor | None = None


class Kind:
    """What Triton asks of a torch dtype."""

    def __init__(self, name: str, itemsize: int):
        self.name, self.itemsize, self.is_floating_point = name, itemsize, "float" in name

    def __str__(self) -> str:
        return "torch." + self.name

    def __eq__(self, other) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self.name)


class Tensor:
    """What it asks of a torch tensor and its storage; it works on the very array."""

    def __init__(self, array: np.ndarray, name: str):
        self.array, self.name = array, name
        self.dtype, self.shape = Kind(name, array.dtype.itemsize), array.shape

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def size(self) -> tuple[int, ...]:
        return self.shape

    def storage_offset(self) -> int:
        return 0

    def untyped_storage(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def copy_(self, other) -> None:
        pass

    def new_empty(self, *_, **__) -> Tensor:
        return Tensor(self.array, self.name)

    def set_(self, *_) -> Tensor:
        return self


def run(
    source: str,
    symbol: str,
    arrays: Sequence[tuple[np.ndarray, str, int]],
    dims: Sequence[int],
    tiles: int,
    phases: int = 1,
    together: bool = True,
) -> list[np.ndarray]:
    """The arrays (flat, with the name of their element type, and the index of the first element) as a kernel leaves
    them. together: kernels whose programs may wait for each other have them all at once, so that one launch goes
    through all phases; else each phase has a launch."""
    global _pool
    if _pool is None:
        _pool = apart()
    return _pool.submit(_run, source, symbol, list(arrays), list(dims), tiles, phases, together).result()


def apart(processes: int = 1) -> ProcessPoolExecutor:
    """Processes in which all of Triton is interpreted."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=prepare)


def cut(x: np.ndarray) -> np.ndarray:
    """What a GPU makes of a factor of TF32."""
    return (x.view(np.uint32) >> tf32.CUT << tf32.CUT).view(np.float32)


def prepare() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    import triton.runtime.interpreter as interpreter
    from triton.language.extra.cuda import libdevice

    plain = interpreter._patch_lang_tensor

    def patched(tensor, scope) -> None:  # numpy from 2.4 on does not take arrays of one element for numbers
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))
        scope.set_attr(
            tensor,
            "__bool__",
            lambda self: bool(self.handle.data.reshape(-1)[0]) if self.handle.data.size == 1 else True,
        )

    interpreter._patch_lang_tensor = patched

    # whether sums of integers overflow it computes at four times their cost, and looks at only in a mode for debugging
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)

    # Triton 3.6 fills arrays without a sign with -1, which numpy from 2 on refuses
    def ones(self, kind):
        return interpreter.TensorHandle(np.invert(np.zeros(1, interpreter._get_np_dtype(kind))), kind.scalar)

    interpreter.InterpreterBuilder.get_all_ones_value = ones

    cast = interpreter.InterpreterBuilder.cast_impl

    # to and from others than f32, the interpreter takes the bits of bf16 for a number
    def by_f32(self, x, kind):
        ends = (x.dtype.scalar, kind.scalar)
        if tl.bfloat16 in ends and tl.float32 not in ends and ends[0] != ends[1]:
            x = cast(self, x, tl.float32)
        # it cuts bits off, where GPUs round to nearest
        if kind.scalar == tl.bfloat16 and ends[0] != kind.scalar:
            return interpreter.TensorHandle(x.data.astype(bfloat16).view(np.uint16), kind.scalar)
        return cast(self, x, kind)

    interpreter.InterpreterBuilder.cast_impl = by_f32

    dot = interpreter.InterpreterBuilder.create_dot

    def of_tf32(self, a, b, d, precision, *rest):  # the interpreter takes those of f32 instead
        def held(x):
            return interpreter.TensorHandle(x, a.dtype)

        if "TF32" not in str(precision):
            return dot(self, a, b, d, precision, *rest)
        if "x3" not in str(precision):
            return dot(self, held(cut(a.data)), held(cut(b.data)), d, precision, *rest)
        (a_high, a_low), (b_high, b_low) = ((x, cut(y.data - x)) for y in (a, b) for x in [tf32.nearest(y.data)])
        low = a_low @ b_high + a_high @ b_low
        return dot(self, held(a_high), held(b_high), held(np.where(np.isnan(low), 0, low) + d.data), precision, *rest)

    interpreter.InterpreterBuilder.create_dot = of_tf32

    one_by_one = interpreter.ReduceOps.generic_reduce

    # whole halves are joined: the interpreter's own way takes seconds for thousands of elements
    def halved(self, input):
        if len(input) != 1 or self.axis is None:
            return one_by_one(self, input)
        data, kind = input[0].handle.data, input[0].dtype
        while data.shape[self.axis] > 1:
            data = self.combine_fn.fn(
                *(self.to_tensor(half, kind) for half in np.split(data, 2, self.axis))
            ).handle.data
        return [self.to_tensor(data if self.keep_dims else data.squeeze(self.axis), kind)]

    interpreter.ReduceOps.generic_reduce = halved

    # indices of loops are Python's own numbers there
    tl.constexpr.__rmod__ = lambda self, other: other % self.value
    tl.constexpr.__rfloordiv__ = lambda self, other: other // self.value

    def interpreted(fn):
        def call(*args):
            data = fn(*(a.handle.data for a in args))
            kind = args[0].type if np.shape(args[0].handle.data) == data.shape else args[1].type
            return tl.core.tensor(
                interpreter.TensorHandle(data.astype(args[0].handle.data.dtype), args[0].handle.dtype), kind
            )

        return call

    for name, fn in LIBRARY.items():
        setattr(libdevice, name, interpreted(fn))

    # Programs that wait for each other are threads, of which one runs at a time, until it looks for what another sends:
    # at volatile loads.
    mine, load_masked = threading.local(), interpreter.InterpreterBuilder.create_masked_load
    interpreter.InterpreterBuilder.grid_idx = property(
        lambda self: getattr(mine, "at", None), lambda self, at: setattr(mine, "at", at)
    )

    def looking(self, ptrs, mask, other, *rest, **named):  # of which the last says whether it is volatile
        if [*rest, *named.values()][-1] is True and _at_once.wanted:
            _at_once.turn.release()
            time.sleep(0)  # so that another one takes it
            _at_once.turn.acquire()
            if _at_once.broken:
                raise RuntimeError("another program failed")
        return load_masked(self, ptrs, mask, other, *rest, **named)

    interpreter.InterpreterBuilder.create_masked_load = looking
    begun = interpreter.GridExecutor.__init__

    def threaded(self, fn, *args, **kwargs):
        patched_parts.clear()
        begun(self, _at_once.of(fn) if _at_once.wanted else fn, *args, **kwargs)

    interpreter.GridExecutor.__init__ = threaded
    language = interpreter._patch_lang
    interpreter._patch_lang = lambda fn: language(getattr(fn, "__wrapped__", fn))

    # It patches the language for every call of a function, which takes a third of the time; once in a launch is enough
    # for functions that see the same parts of it.
    patched_parts: set[tuple[bool, ...]] = set()

    @cache
    def parts(fn) -> tuple[bool, ...]:
        return tuple(any(value is part for value in fn.__globals__.values()) for part in (tl, tl.core))

    def called(self, *args, **kwargs):
        if parts(self.fn) not in patched_parts:
            interpreter._patch_lang(self.fn)
            patched_parts.add(parts(self.fn))
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = called


class _AtOnce:
    """Runs all programs of a launch side by side, when the last of them is called."""

    wanted = broken = False
    programs = 0
    turn = threading.Lock()

    def of(self, fn):
        from functools import wraps

        from triton.runtime.interpreter import interpreter_builder

        calls, failed = [], list[BaseException]()

        def one(at, a):
            interpreter_builder.grid_idx = at
            try:
                with self.turn, np.errstate(all="ignore"):
                    fn(a)
            except BaseException as e:  # noqa: B036
                failed.append(e)
                self.broken = True

        @wraps(fn)
        def call(a):
            calls.append(threading.Thread(target=one, args=(interpreter_builder.grid_idx, a)))
            if len(calls) == self.programs:
                for thread in calls:
                    thread.start()
                for thread in calls:
                    thread.join()
                self.broken = False
                if failed:
                    raise failed[0]

        return call


_at_once = _AtOnce()


def launch(source: str, symbol: str, words: Sequence[int], tiles: int) -> None:
    """Runs a kernel on memory that its parameters (addresses first, then sizes) lead to; in a process that is
    prepared."""
    signature = load(source, symbol)["SIGNATURE"]
    _call(
        source,
        symbol,
        [
            Tensor(_at(w, TYPES[t[1:]]), TYPES[t[1:]]) if t[0] == "*" else w
            for w, t in zip(words, signature, strict=True)
        ],
        tiles,
        read_phased(source) == 2 and words[-1] - words[-2] > 1,
    )


def sources(made: BuildResult) -> dict[str, str]:
    """Symbol → source, of an engine's kernels."""
    return {c.kernel.symbol: c.kernel.source for c in made.scheduled if c.kernel is not None}


def device(sources: Mapping[str, str], **more: Any) -> NullDevice:
    """A device that interprets these kernels (symbol → source), and is otherwise as told; in such a process, too."""

    def kernel(symbol: str) -> Any:
        return lambda programs, words: launch(sources[symbol], symbol, words.tolist(), programs)

    return NullDevice(kernels={s: kernel(s) for s in sources}, **more)


def ran(
    data: bytes, sources: Mapping[str, str], feeds: Mapping[str, np.ndarray], **more: Any
) -> tuple[dict[str, np.ndarray], list[str]]:
    """What an engine gives on such a device, and the symbols of the kernels that it launched."""
    on = device(sources, **more)
    results = pelton.Engine(file.read(data)).start(on).run(feeds)
    return results, [h.facts["symbol"] for h in on.happened("launch")]


def _at(address: int, name: str) -> np.ndarray:
    """The element at an address."""
    dtype = np.dtype({"bfloat16": "uint16", "float8_e4m3fn": "uint8"}.get(name, name))
    return np.ndarray((1,), dtype, (ctypes.c_uint8 * dtype.itemsize).from_address(address))


def _run(
    source: str,
    symbol: str,
    arrays: list[tuple[np.ndarray, str, int]],
    dims: list[int],
    tiles: int,
    phases: int,
    together: bool,
) -> list[np.ndarray]:
    kinds = [TYPES[t[1:]] for t in load(source, symbol)["SIGNATURE"][: len(arrays)]]
    given = [
        *(Tensor(a[first:], k if k == "float8_e4m3fn" else name) for (a, name, first), k in zip(arrays, kinds)),
        *dims,
    ]
    if not read_phased(source):
        _call(source, symbol, given, tiles)
    else:
        for begin, end in (
            [(0, phases)] if together and read_phased(source) == 2 else [(p, p + 1) for p in range(phases)]
        ):
            _call(source, symbol, [*given, begin, end], tiles, end - begin > 1)
    return [a for a, _, _ in arrays]


def _call(source: str, symbol: str, arguments: Sequence[Any], tiles: int, at_once: bool = False) -> None:
    # products of bf16 are of their bits there
    text = source
    if "INTEGERS = tl.constexpr(True)" not in text and "FLOAT8 = tl.constexpr(True)" not in text:
        text = re.sub(r"\btl\.dot\((\w+), (\w+)", r"tl.dot(\1.to(tl.float32), \2.to(tl.float32)", text)
    if maps := read_tensor_maps(source):
        import gluon_emulation

        text = re.sub(r"^import triton\.experimental\S* as", "import gluon_emulation as", text, flags=re.M)
        text = re.sub(r"^from triton\.experimental\.\S* import", "from gluon_emulation import", text, flags=re.M)
        text = text.replace("from triton.experimental import gluon as triton", "import triton")
        arguments = [*arguments]
        for m in maps:
            of = arguments[m.operand]
            arguments[m.operand] = gluon_emulation.Fetched(of.data_ptr(), of.name, m)
    kernel = load(text, symbol)[symbol]
    _at_once.wanted, _at_once.programs = at_once, tiles
    with np.errstate(all="ignore"):
        kernel[(tiles,)](tuple(arguments))
