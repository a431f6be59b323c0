"""Comparison of alternative kernels on a fake device: exclusion of wrong ones, without side effects."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from handmade import chain, expected
from test_cuda_runtime import F32, KERNELS, N, scale
from test_cuda_tuning import device, spare

import pelton
from pelton import cli
from pelton.backends.cuda import pack
from pelton.backends.cuda.clock import Clock, TimedCandidate
from pelton.backends.cuda.device import Launch, KernelHangs
from pelton.backends.cuda.null import NullDevice, seen
from pelton.engine.cubin import Cubin
from pelton.engine.plan import EnginePlan, Slice, Tensor
from pelton.backends.cuda.agree import agree, groups
from pelton.backends.cuda.kernel_choice import drop_wrong_kernels
from pelton.targets import gpus

OTHERS = ("scale_b", "scale_c", "scale_d")


def carrying(others=OTHERS, in_place: bool = False) -> EnginePlan:
    """x + 2 x, times three; the steps that scale carry others for that. `in_place`: the first of them writes where it
    reads."""
    plain = chain(N)
    steps = []
    for s in plain.steps:
        args = (Slice(3, 0), Slice(3, 0)) if in_place and s.name == "double" else s.args
        given = replace(
            s, args=args, info={"tactic": s.symbol, "writes": [s.name]}, outputs=(Tensor(args[-1], "f32", (N,), (1,)),)
        )
        steps.append(
            replace(
                given,
                alternatives=(
                    tuple(replace(spare(given, other), outputs=()) for other in others) if s.symbol == "scale" else ()
                ),
            )
        )
    if in_place:
        first = replace(steps[0], name="first", args=(Slice(0, 0), Slice(3, 0)), alternatives=(), wave=0)
        steps = [
            first,
            *(
                replace(s, wave=s.wave + 1, alternatives=tuple(replace(k, wave=s.wave + 1) for k in s.alternatives))
                for s in steps
            ),
        ]
    cubins = [Cubin(s, 90, b"\x7fELF " + s.encode(), 0, 4) for s in ("scale", "add", *others)]
    return replace(plain, steps=tuple(steps), code=pack(cubins), target=gpus([90]))


def off(programs: int, words: np.ndarray) -> None:
    scale(programs, words)
    seen(int(words[1]), F32, programs)[N // 2] += 1000


def unfinished(programs: int, words: np.ndarray) -> None:
    scale(programs - 1, words)


def rounded(programs: int, words: np.ndarray) -> None:
    scale(programs, words)
    seen(int(words[1]), F32, programs)[:] *= F32(1 + 1e-5)


def on(**wrong: Callable[[int, np.ndarray], None]) -> NullDevice:
    return device(kernels={**KERNELS, **dict.fromkeys(OTHERS, scale), **wrong})


def symbols(engine: EnginePlan) -> list[list[str]]:
    return [[s.symbol, *(k.symbol for k in s.alternatives)] for s in engine.steps]


@pytest.mark.parametrize("wrong", [off, unfinished])
def test_what_gives_something_else_is_left_out(wrong, caplog):
    plain = carrying()
    with caplog.at_level(logging.WARNING, "pelton.build"):
        found = drop_wrong_kernels(plain, on(scale_c=wrong))
    kept = ["scale", "scale_b", "scale_d"]
    assert symbols(found) == [kept, ["add"], kept] and [s.info for s in found.steps] == [s.info for s in plain.steps]
    assert len(caplog.records) == 2
    assert caplog.messages[0].startswith(
        "step 'double': scale_c is not used, as its results differ on no GPU from those of scale and scale_b and"
    )


def test_the_one_in_place_may_be_the_one():
    found = drop_wrong_kernels(carrying(), on(scale=off))
    assert symbols(found) == [[*OTHERS], ["add"], [*OTHERS]] and found.steps[0].info == {
        "tactic": "scale_b",
        "writes": ["double"],
    }
    x = np.random.default_rng(0).standard_normal(N).astype(F32)
    got, wanted = pelton.Engine(found).start(on(scale=off)).run({"x": x}), expected(x)
    assert all(np.allclose(got[k], wanted[k]) for k in wanted)


def test_of_two_that_differ_the_one_in_place_stays():
    assert (
        symbols(drop_wrong_kernels(carrying(OTHERS[:1]), on(scale_b=off)))
        == symbols(drop_wrong_kernels(carrying(OTHERS[:1]), on(scale=off)))
        == [["scale"], ["add"], ["scale"]]
    )


def test_rounding_is_no_reason(caplog):
    plain = carrying()
    assert drop_wrong_kernels(plain, on(scale_b=rounded)) == plain and not caplog.records


def test_what_is_wrong_does_not_win(caplog):
    took = {"scale": 3000.0, "scale_b": 2000.0, "scale_c": 1000.0, "scale_d": 2990.0, "add": 10.0}
    null = device(
        lambda launch: took[launch.function.cubin.symbol],
        kernels={**KERNELS, **dict.fromkeys(OTHERS, scale), "scale_c": off},
    )
    tuned = pelton.tune(pelton.Engine(carrying()), null)
    assert symbols(tuned.plain) == [["scale_b", "scale", "scale_d"], ["add"], ["scale_b", "scale", "scale_d"]]
    assert (
        tuned.steps[0].info["times_ns"] == {"scale": 3000, "scale_b": 2000, "scale_d": 2990}
        and "scale_c is not used" in caplog.text
    )


@pytest.mark.parametrize(
    "look",
    [lambda plain, null: drop_wrong_kernels(plain, null), lambda plain, null: pelton.tune(pelton.Engine(plain), null)],
)
def test_one_that_does_not_end_is_named_and_not_waited_for(look):
    null = device(kernels={**KERNELS, **dict.fromkeys(OTHERS, scale)}, endless=["scale_c"])
    with pytest.raises(
        KernelHangs, match="scale_c of step 'double': a kernel does not end on no GPU. This is a fault of Pelton"
    ):
        look(carrying(), null)


def test_the_clock_names_it():
    null = device(kernels=KERNELS, endless=["scale"])
    with null:
        x = null.allocate(8, "a test")
        launch = Launch(
            null.load(Cubin("scale", 90, b"\x7fELF", 0, 4), 5), 1, np.array([x.address, x.address, 2, 0, 0], np.int64)
        )
    with pytest.raises(KernelHangs, match="^the way: a kernel does not end"):
        Clock(null).race([TimedCandidate("the way", lambda turn: [launch])], 3)


def test_the_command_line_says_so(tmp_path, monkeypatch, capsys):
    path = tmp_path / "e.pelton"
    pelton.Engine(carrying()).save(path)
    monkeypatch.setattr("pelton.backends.cuda.backend.gpu", lambda ordinal: on(scale_c=off))
    assert cli.main(["tune", str(path)]) == 0
    said = capsys.readouterr().err
    assert "scale_c is not used, as its results differ on no GPU" in said
    assert "scale_c" not in {k.symbol for s in pelton.load(path, device=None).steps for k in (s, *s.alternatives)}


@pytest.mark.parametrize("tuned", [False, True])
def test_what_steps_read_is_as_it_was(tuned):
    """Also where a kernel writes where it reads, which twenty launches would scale twenty times."""
    given, read = list[np.ndarray](), list[np.ndarray]()

    def scaling(programs: int, words: np.ndarray) -> None:
        given.append(seen(int(words[0]), F32, N).copy())
        with np.errstate(over="ignore"):
            scale(programs, words)

    null = on(
        scale=scaling,
        **dict.fromkeys(OTHERS, scaling),
        add=lambda programs, words: read.append(seen(int(words[0]), F32, N).copy()),
    )
    plain = carrying(in_place=True)
    if tuned:
        pelton.tune(pelton.Engine(plain), null)
    else:
        assert drop_wrong_kernels(plain, null) == plain
    assert len(read) == 1 and len(given) > 10 and np.array_equal(read[0], 4 * given[0])


def test_what_agrees():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(1000)
    assert agree(a, a * (1 + 1e-6), "f32") and agree(a, a + 5e-4, "f32") and not agree(a, a + 1e-2, "f32")
    assert agree(a, a * (1 + 2.0**-8), "bf16") and not agree(a, a + 0.3, "bf16")
    nan = np.where(np.arange(1000) == 3, np.nan, a)
    assert (
        agree(nan, nan, "f32")
        and not agree(a, nan, "f32")
        and not agree(np.where(np.isnan(nan), np.inf, a), np.where(np.isnan(nan), -np.inf, a), "f32")
    )
    # what is left of sums that cancel out
    assert agree(1e-7 * a, -1e-7 * a, "f16") and not agree(1e-3 * a, -1e-3 * a, "f32")
    whole = rng.integers(0, 100, 2000)
    assert (
        agree(whole, whole, "i64")
        and agree(whole, whole + (np.arange(2000) == 5), "i64")
        and not agree(whole, whole + 1, "i64")
    )
    assert not agree(np.ones(3, bool), np.array([1, 0, 1], bool), "bool") and agree(np.empty(0), np.empty(0), "f32")
    long = np.zeros(10 << 20, np.float16)
    assert agree(long, long, "f16") and not agree(
        long, np.where(np.arange(len(long)) == len(long) - 1, np.float16(1), long), "f16"
    )
    one, two = [np.ones(3)], [np.full(3, 2.0)]
    assert (
        groups([one, two, two, one, two], ["f32"]) == [[1, 2, 4], [0, 3]]
        and groups([one, two], ["f32"]) == [[0], [1]]
        and groups([], []) == []
    )
