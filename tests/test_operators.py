"""docs/operators.md is what the registries say."""

from pathlib import Path

from pelton.diagnose import operators

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
