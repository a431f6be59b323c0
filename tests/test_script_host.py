"""Steps between the engines of a script that run on the host: what loading says of them, and what they need."""

from __future__ import annotations

import pytest
from script_harness import builder
from script_models import MODELS
from test_package import alone

import pelton


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Gives the path of the engine of one of MODELS, by its name."""
    folder = tmp_path_factory.mktemp("script")

    def save(name: str) -> str:
        path = folder / f"{name}.pelton"
        builder(folder)(MODELS[name]()[0]).save(path)
        return str(path)

    return save


def test_loading_names_host_steps(saved, caplog):
    path = saved("parts_of_a_sequence")
    caplog.clear()
    pelton.load(path)
    assert f"engine '{path}' runs 4 of its 4 steps on the host, by their reference: SplitToSequence → parts, " in (
        caplog.text
    )


def test_loading_is_silent_without_host_steps(saved, caplog):
    path = saved("detector")  # its suppression is native
    caplog.clear()
    pelton.load(path)
    assert not caplog.text


def test_steps_that_need_the_onnx_package_are_refused_at_load(saved):
    said = alone(
        f"import pelton\nwhole = pelton.load({saved('parts_of_a_sequence')!r}, device=None)\n"
        "print(len(whole.steps))\n"
        f"try:\n    pelton.load({saved('parts_of_a_sequence')!r})\nexcept pelton.EngineError as e:\n    print(e)\n"
    )
    assert said == (
        "4\na step of this model runs on the onnx package, which is not installed here; do: pip install onnx, or"
        " rebuild without that operator (step 'SplitToSequence → parts')\n"
    )


def test_steps_for_other_sizes_alone_do_not_keep_an_engine_from_loading(saved):
    path = saved("counted_best")
    spare = [a.otherwise for a in pelton.load(path).script.main.steps if getattr(a, "otherwise", None)]
    assert any(step.call == "onnx" for block in spare for step in block.steps)
    assert alone(f"import pelton\nprint(pelton.load({path!r}).name)\n") == "g\n"
