"""Engines for CPUs that are not here carry several kernels for a step, of which `pelton.tune` selects the fastest."""

import machines
import numpy as np
import pytest
from models import small_cnn

import pelton
from pelton.backends.arrays import random_inputs
from pelton.backends.cpu import backend, machine
from pelton.cli import main
from pelton.errors import Cancelled, InputError
from pelton.targets import best

LEVEL = machines.TAKEN_FOR or best(machines.real())


@pytest.fixture
def carrying(monkeypatch, kernel_cache):
    """An engine for this CPU, built as if it were another one."""

    def build(**options):
        with monkeypatch.context() as patch:
            patch.setattr(machine, "identity", machines.without(LEVEL))
            return pelton.build(small_cnn(size=12), target=f"cpu:{LEVEL}", cache_dir=kernel_cache, **options)

    return build


def kernels(engine):
    return [{s.symbol for s in step.kernels} for step in engine.plain.steps]


def test_the_fastest_kernel_of_each_step_is_selected(carrying, monkeypatch):
    engine = carrying(level=4)
    choices = [len(step.alternatives) for step in engine.plain.steps]
    assert max(choices) >= 2 and {len(s.alternatives) for s in carrying(level=0).plain.steps} == {0}
    asked = list[str]()
    plain = backend.CpuWorkspace.prepare

    class Slow:
        """Each step's last kernel takes the least time."""

        def __init__(self, ready):
            self.steps, self.threads = ready.plain.steps, 2

        def profile(self, inputs):
            for step, first in zip(self.steps, engine.plain.steps):
                number = [s.symbol for s in first.kernels].index(step.symbol)
                asked.append(step.symbol)
                yield step, 1000 - 100 * number

    monkeypatch.setattr(backend.CpuWorkspace, "prepare", lambda *args: Slow(plain(*args)))
    tuned = pelton.tune(engine)
    monkeypatch.undo()
    assert [s.symbol for s in tuned.plain.steps] == [s.kernels[-1].symbol for s in engine.plain.steps]
    assert set(asked) == set().union(*kernels(engine)) and kernels(tuned) == kernels(engine)
    for step, before in zip(tuned.plain.steps, engine.plain.steps):
        assert step.info.get("tactic") == before.kernels[-1].info.get("tactic") and step.outputs == before.outputs
        assert len(step.info.get("times_ns", ())) == (len(step.kernels) if step.alternatives else 0)
    assert tuned.plain.target["cpu"] == machine.describe()["model"]
    x = random_inputs(engine.inputs)
    for name, y in engine.run(x).items():
        np.testing.assert_allclose(tuned.run(x)[name], y, atol=1e-5 * np.abs(y).max())
    again = pelton.load(tuned.tobytes())
    assert again.tobytes() == tuned.tobytes() and np.array_equal(again.run(x)["y"], tuned.run(x)["y"])


def test_without_time_kernels_stay(carrying):
    engine = carrying()
    assert [s.symbol for s in pelton.tune(engine, budget=0).plain.steps] == [s.symbol for s in engine.plain.steps]
    with pytest.raises(Cancelled, match="at run 3 of"):
        pelton.tune(engine, progress=lambda stage, done, total: done < 3)


def test_engines_with_one_kernel_for_a_step_are_refused(kernel_cache):
    engine = pelton.build(small_cnn(size=12), level=1, cache_dir=kernel_cache)
    with pytest.raises(InputError, match="were timed while it was built"):
        pelton.tune(engine)


def test_the_command(carrying, tmp_path, capsys):
    carrying().save(tmp_path / "e.pelton")
    assert main(["tune", str(tmp_path / "e.pelton"), "-o", str(tmp_path / "t.pelton")]) == 0
    assert pelton.load(tmp_path / "t.pelton").plain.steps[0].info["times_ns"]
