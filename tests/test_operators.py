"""docs/operators.md equals the registries, and has all operators that ONNX Runtime runs on CPUs."""

from pathlib import Path

import onnx
import onnxruntime_kernels
import pytest
from onnx_models import one_node

from pelton.diagnose import operators
from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.importers.onnx.microsoft.refused import REFUSED

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"


def test_the_page_is_current():
    assert PAGE.read_text() == operators.page(), "run `make operators`"


def test_what_it_says():
    rows = {r.operator: r for r in operators.table("")}
    assert (
        rows["Conv"].how == rows["Add"].how == rows["LSTM"].how == "native"
        and "f32" in rows["Conv"].dtypes
        and "i64" in rows["Add"].dtypes
    )
    assert (
        rows["Gemm"].how == "decomposed"
        and rows["HannWindow"].how.startswith("decomposed")
        and rows["Conv"].opsets[0] == 1
    )
    assert {r.operator: r.how for r in operators.table("com.microsoft")}["MatMulNBits"] == "decomposed"


def check_kernels(kernels: dict[str, list[str]]) -> None:
    """Every operator is on the page: with kernels, decomposed, on the host, or refused with a reason."""
    refused = set()
    for domain, ops in kernels.items():
        rows = {r.operator: r for r in operators.table(domain)}
        absent = set(ops) - rows.keys()
        assert not absent, f"{domain or 'ai.onnx'}: nothing reads {sorted(absent)}"
        for op in ops:
            how = rows[op].how if op in rows else "decomposed"
            assert how.startswith(operators.HOW), f"{op}: {how}"
            if how.startswith("refused"):
                assert len(how) > len("refused: ") + 20, f"{op} is refused without a reason"
                refused.add(op)
    assert refused == REFUSED.keys()


def test_all_that_onnx_runtime_runs_is_there():
    version, kernels = onnxruntime_kernels.committed()
    assert version.startswith(f"{operators.RUNTIME}.")
    check_kernels(kernels)


def test_all_that_the_installed_onnx_runtime_runs_is_there():
    onnxruntime = pytest.importorskip("onnxruntime")
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    if not hasattr(state, "get_all_opkernel_def"):
        pytest.skip("this build of onnxruntime does not say what kernels it has")
    version, kernels = onnxruntime_kernels.committed()
    if onnxruntime.__version__ == version:
        assert onnxruntime_kernels.installed() == kernels, "run `python tests/onnxruntime_kernels.py`"
    check_kernels(onnxruntime_kernels.installed())


def test_refused_operators_say_why():
    decoder = onnx.helper.make_graph([], "decoder", [], [])
    required = dict(decoder=decoder, eos_token_id=2, pad_token_id=0)
    operands = "i64[1, 3]", *["i64[1]"] * 4
    model = one_node("BeamSearch", *operands, domain="com.microsoft", **required)
    with pytest.raises(ModelError, match="loop over a whole decoder"):
        load(model)
