"""Faulty plugins: refusals, early detection, and error messages."""

from pathlib import Path

import numpy as np
import pytest
from plugin_examples import ROW_SUMS, normal, row_sums, single

import pelton
from pelton.plugins import CKernel, plugin_named
from pelton.plugins import scalar as sc
from pelton.plugins.plugin import weight_shapes
from pelton.tuning import canaries

pytestmark = pytest.mark.usefixtures("own_plugins")


FAULTS = [
    ("o.y0[-1] = 0;", "writes 4 bytes before its operand y0"),
    ("o.y0[Y0_SIZE] = 0;", "writes 4 bytes behind its operand y0"),
    ("((float *)o.x)[0] = 7;", r"writes \d bytes over its operand x"),
    ("*(volatile int *)8 = 1;", "crashes on f32.* with SIGSEGV"),
    ("if (end == 1) o.y0[Y0_SIZE - 1] = 5;", "tiles run in another order"),
    ("((char *)scratch)[64] = 1;", "writes 1 bytes behind its scratch memory of 64 bytes"),
    ("o.y0[X_0 + 5000] = 0;", "writes 4 bytes behind its operand y0"),
    ("begin += begin == 0;", "leaves elements of these unwritten"),
    ("if (!begin) { begin = 1; o.y0[0] = o.y0[1] = o.y0[2] = o.x[X_SIZE]; }", "reads outside of its operands"),
    ("volatile int on = 1; while (on) {}", "does not end within 1 s"),
]


def faulty(line, **how):
    row_sums(
        ROW_SUMS.replace("    for (idx t = begin", f"    {line}\n    for (idx t = begin"),
        **dict(scratch=lambda inputs, outputs, ROWS: 64) | how,
    )
    return single("row_sums", "f32[7, 5]")


@pytest.mark.parametrize("line, reason", FAULTS)
@pytest.mark.parametrize("how", [dict(level=0), dict(level=1)], ids=["guessed", "timed"])
def test_faults_of_kernels_are_found(line, reason, how, monkeypatch, tmp_path):
    """Before a kernel is timed, and where none is."""
    monkeypatch.setattr(canaries, "LIMIT_S", 1)
    with pytest.raises(pelton.BuildError, match=rf"kernel of plugin row_sums .*{reason}.*layer 'row_sums'"):
        pelton.build(faulty(line), cache_dir=tmp_path, **how)


@pytest.mark.parametrize(
    "line, reason",
    [
        ("for (idx r = begin * ROWS; r < X_0; r++) o.y0[r] = 1e6f; begin = end;", "differs from its reference"),
        ("no C;", r"(?s)row_sums.*error: use of undeclared identifier 'no'"),
        ("\n#error needs a matrix\n", r"(?s)row_sums.*error: needs a matrix"),
        ("extern void log_it(void); log_it();", "undefined symbol: log_it"),
    ],
)
def test_kernels_that_are_wrong_or_do_not_compile(line, reason):
    with pytest.raises(pelton.BuildError, match=reason):
        pelton.build(faulty(line), level=0, check=True)


@pytest.mark.parametrize(
    "how, reason",
    [
        (dict(tiles=lambda inputs, outputs, ROWS: 2.5), "`tiles` must return an integer from 0 .*got 2.5"),
        (dict(tiles=lambda inputs, outputs, ROWS: -1), "`tiles` must return an integer from 0 .*got -1"),
        (dict(tiles=lambda inputs, outputs: 3), "`tiles` raised TypeError: .*'ROWS'"),
        (dict(scratch=lambda inputs, outputs, ROWS: "64"), "`scratch` must return an integer"),
        (dict(scratch=lambda inputs, outputs, ROWS: 1 << 50), "GB of threads' scratch memory"),
        (dict(tactics=lambda inputs, outputs: {}["ROWS"]), "`tactics` raised KeyError: 'ROWS'"),
        (dict(tactics=lambda inputs, outputs: None), "`tactics` must be or return a list"),
        (dict(tactics=({"ROWS": 1.5},)), "a tactic maps names to whole numbers"),
        (dict(tactics=({"ROWS": 1 << 70},)), "a tactic maps names to whole numbers"),
        (dict(takes=lambda inputs, outputs: True), "`takes` must return a reason .*got True"),
        (dict(takes=lambda inputs, outputs: 1 / 0), "`takes` raised ZeroDivisionError"),
    ],
)
def test_functions_of_kernels_that_are_wrong_are_named(how, reason):
    with pytest.raises(pelton.BuildError, match=reason):
        pelton.build(faulty("", **how), level=0)


def test_a_kernel_without_a_tactic_does_not_take_the_types(caplog):
    engine = pelton.build(faulty("", tactics=lambda inputs, outputs: ()), level=0)
    assert engine.plain.steps[0].host and "row_sums runs in numpy" in caplog.text


def test_numbers_that_c_has_no_digits_for_are_attributes_too():
    row_sums()
    for scale in (float("nan"), float("inf"), -float("inf")):
        engine = pelton.build(single("row_sums", "f32[2, 3]", scale=scale), level=0)
        with np.errstate(all="ignore"):
            want = np.float32([-6, 6]) * scale + scale
        np.testing.assert_array_equal(engine.run({"x0": np.float32([[-1, -2, -3], [1, 2, 3]])})["y0"], want)


UNFIT = (
    dict(count=float("inf")),
    dict(count=1 << 70),
    dict(needed=object()),
    dict(needed=((1,), 2)),
    dict(sizes=np.ones((2, 2))),
    dict(mode=b"add"),
    dict(mode="a" * 70000),
)


def test_attributes_have_the_types_of_their_defaults():
    @pelton.register
    class Typed(pelton.Plugin):
        flag: bool = True
        count: int = 3
        mode: str = "add"
        sizes: tuple = (1, 2)
        needed: float

        def __post_init__(self):
            if self.mode not in ("add", "mul"):
                raise ValueError(f"mode must be add or mul, got {self.mode!r}")

        def scalar(self, x):
            assert isinstance(self.flag, bool) and isinstance(self.count, int) and isinstance(self.sizes, tuple)
            return x + self.count if self.flag else x * self.needed

    net = pelton.Network()
    x = net.input("x", (2,))
    made = net.typed(x, flag=0, count=4.0, sizes=np.array([3, 4]), needed=1)
    assert net.graph({"y": made}).nodes[0].attrs == dict(flag=False, count=4, mode="add", sizes=(3, 4), needed=1)
    for wrong in (
        dict(count=1.5),
        dict(flag=2),
        dict(mode=3),
        dict(mode="div"),
        dict(sizes=3),
        dict(sizes=("a", "b")),
        dict(count="3"),
        {},
        *UNFIT,
    ):
        with pytest.raises(pelton.InputError, match=next(iter(wrong), "needed")):
            net.typed(x, **{"needed": 1.0, **wrong} if wrong else {})


@pytest.mark.parametrize(
    "body, reason",
    [
        (dict(), "needs scalar, layers, or infer with reference; it has none"),
        (dict(infer=lambda self, x: x), "needs scalar, layers, or infer with reference; it has infer"),
        (dict(name="add", scalar=lambda self, x: x), "'add' is built in"),
        (dict(name="a b", scalar=lambda self, x: x), "must be an identifier"),
        (dict(name="_a", scalar=lambda self, x: x), "must be an identifier"),
        (dict(name="linear", scalar=lambda self, x: x), "'linear' is a method of networks"),
        (dict(onnx="Foo", scalar=lambda self, x: x), "`onnx` must be a pair of texts"),
        (dict(onnx=["a", "Foo"], scalar=lambda self, x: x), "`onnx` must be a pair of texts"),
        (dict(caffe=3, scalar=lambda self, x: x), "`caffe` must be a text, got 3"),
        (dict(layers=2, __annotations__={"layers": int}), "it has none of these"),
        (dict(flops=2, __annotations__={"flops": int}, scalar=lambda self, x: x), "'flops' is no attribute"),
        (dict(mode=[], __annotations__={"mode": list}, scalar=lambda self, x: x), "an attribute is a bool, a number"),
        (dict(mode=1j, __annotations__={"mode": int}, scalar=lambda self, x: x), "an attribute is a bool, a number"),
        (dict(layers=lambda self, net, x: x, kernels=CKernel(ROW_SUMS, len)), "`kernels` must be a tuple"),
        (dict(layers=lambda self, net, x: x, kernels=(CKernel(Path("none.c"), len),)), "none.c, cannot be read"),
        (dict(layers=lambda self, net, x: x, kernels=(CKernel(None, len),)), "must be a text or a Path, got None"),
        (
            dict(layers=lambda self, net, x: x, kernels=(CKernel(ROW_SUMS.replace("KERNEL", "f"), len),)),
            "needs a function KERNEL",
        ),
        (
            dict(infer=lambda self, x: x, reference=lambda self, x: x, kernels=(CKernel("void", lambda i, o: 1),)),
            "needs one line with <region>",
        ),
    ],
)
def test_incomplete_classes_are_refused(body, reason):
    with pytest.raises(pelton.InputError, match=reason):
        pelton.register(type("Incomplete", (pelton.Plugin,), body))


def raising(error):
    raise error


def wrong(types="f32[3]", **functions):
    """A network of a plugin that copies its operand, but for these functions."""
    copies = dict(infer=lambda self, x: x, reference=lambda self, x: x) if "layers" not in functions else {}
    pelton.register(type("Wrong", (pelton.Plugin,), copies | functions))
    return single("wrong", types)


@pytest.mark.parametrize(
    "functions, reason",
    [
        (dict(infer=lambda self, x: (3, 4)), "infer must return a TensorType"),
        (dict(infer=lambda self, x: None), "infer must return a TensorType"),
        (dict(infer=lambda self, x: ()), "infer must return a TensorType"),
        (dict(infer=lambda self, x: x.with_shape((-3,))), "infer returned negative sizes"),
        (dict(infer=lambda self, x: x.with_shape((4.5,))), "a size must be an integer, got 4.5"),
        (dict(infer=lambda self, x: raising(ValueError("needs something else"))), "wrong: needs something else"),
        (dict(infer=lambda self, x: raising(KeyError("k"))), "`infer` raised KeyError: 'k'"),
        (dict(infer=lambda self, x: self.infer(x)), "`infer` raised RecursionError"),
        (dict(infer=lambda self: None), r"needs the operands \(none\), got 1"),
        (dict(layers=lambda self, net, x: None), "layers must return a tensor"),
        (dict(layers=lambda self, net, x: ()), "layers must return a tensor"),
        (dict(layers=lambda self, net, x: pelton.Network("b").input("q", "f32[3]")), "belongs to another network, 'b'"),
        (dict(layers=lambda self, net, x: x + net.input("q", "f32[3]")), "layers adds the input q"),
        (dict(layers=lambda self, net, x: net.no_operator(x)), "`layers` raised AttributeError: .*'no_operator'"),
        (dict(layers=lambda self, net, x: {}["k"]), "`layers` raised KeyError: 'k'"),
        (
            dict(configure=lambda self, x: np.array([None])),
            "configure must return arrays of numbers, got one of object",
        ),
        (dict(configure=lambda self, x: "text"), "configure must return arrays of numbers"),
        (dict(configure=lambda self, x: raising(MemoryError("of 1 TB"))), "`configure` raised MemoryError: of 1 TB"),
        (dict(scalar=lambda self, x: {}["k"]), "`scalar` raised KeyError: 'k'"),
        (dict(scalar=lambda self, x: x if x > 0 else -x), r"use select\(condition, x, y\)"),
        (dict(scalar=lambda self, x: None), "returned no expression"),
        (
            dict(scalar=lambda self, x: sc.maximum(x, 1, 2)),
            "`scalar` raised TypeError: maximum needs 2 operands, got 3",
        ),
        (dict(scalar=lambda self, x: sc.select(x > 0, x)), "`scalar` raised TypeError: select needs 3 operands, got 2"),
        (dict(scalar=lambda self, x: x * np.ones(2)), r"needs expressions and numbers, got array\(\[1"),
        (dict(__post_init__=lambda self: {}["k"]), "`__post_init__` raised KeyError: 'k'"),
    ],
)
def test_functions_that_are_wrong_are_named(functions, reason):
    with pytest.raises(pelton.InputError, match=rf"{reason}.*layer 'wrong'"):
        wrong(**functions)


@pytest.mark.parametrize(
    "types, reference, reason",
    [
        ("f32[3]", lambda self, x: x[:1], r"returned shape \[1\], but its type is f32\[3\]"),
        ("f32[3]", lambda self, x: np.nan, r"returned shape \[\], but its type is f32\[3\]"),
        ("f32[3]", lambda self, x: (x, x), "must return 1 outputs, but returned 2"),
        ("f32[3]", lambda self, x: None, "returned an array of object"),
        ("f32[]", lambda self, x: None, "returned an array of object"),
        ("f32[3]", lambda self, x: np.array(["1", "2", "3"]), "returned an array of <U1"),
        ("f32[3]", lambda self, x: x * 1j, "returned an array of complex128"),
        ("i64[3]", lambda self, x: x * np.nan, r"returned an array of float64, but its type is i64\[3\]"),
        ("f32[3]", lambda self, x: raising(RuntimeError("out of luck")), "RuntimeError: out of luck"),
        ("f64[3]", lambda self, x: np.add(x, 1, out=x), "read-only"),
    ],
)
def test_references_that_are_wrong_are_named(types, reference, reason):
    engine = pelton.build(wrong(types, reference=reference), level=0)
    type = pelton.plugins.TensorType.parse(types)
    with pytest.raises(pelton.EngineError, match=rf"step wrong.*{reason}"):
        engine.run({"x0": normal(*type.shape).astype(type.dtype.numpy)})


def test_weights_that_are_no_shapes_are_named():
    for shapes, reason in (
        (["a"], "positive integers"),
        (3, "`weights` raised TypeError"),
        ([(0,)], "positive integers"),
    ):
        wrong(weights=lambda self, x, shapes=shapes: shapes)
        with pytest.raises(pelton.InputError, match=f"plugin wrong: .*{reason}"):
            weight_shapes(plugin_named("wrong"), [pelton.plugins.TensorType.parse("f32[3]")], {})


@pytest.mark.parametrize(
    "reference, reason",
    [
        (lambda self, x: raising(ZeroDivisionError("of rows")), "ZeroDivisionError: of rows"),
        (lambda self, x: x[:1], r"ValueError: .*returned shape \[1\], but its type is f32\[3\]"),
        (lambda self, x: None, "ValueError: .*returned an array of object"),
    ],
)
def test_references_of_kernels_that_are_wrong_are_errors_of_a_checked_build(reference, reason):
    copy = ROW_SUMS[: ROW_SUMS.index("    for (")] + "    for (idx i = begin; i < end; i++) o.y0[i] = o.x[i];\n}\n"
    net = wrong(reference=reference, kernels=(CKernel(copy, lambda inputs, outputs: 3),))
    with pytest.raises(pelton.BuildError, match=f"the reference of wrong failed, a plugin's: {reason}"):
        pelton.build(net, level=0, check=True)
