"""Progress: one bar for all of the work, which never goes back, an estimate of the rest, plain lines in logs."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import pelton
from pelton import progress
from pelton.quantize import int8
from pelton.progress import Position, course


class Terminal(io.StringIO):
    def isatty(self):
        return True


def walk(position, *events):
    """The fraction after each event."""
    return [(position.move(*e), position.fraction)[1] for e in events]


@pytest.mark.parametrize("level", [0, 3])
def test_a_course_is_walked_to_its_end(level):
    stages = [(name, done, 4) for name, _ in course(level) for done in range(5)]
    seen = walk(Position(course(level)), *stages)
    assert seen == sorted(seen) and seen[0] == 0 and seen[-1] == pytest.approx(1) and len({*seen}) > len(seen) / 2


def test_a_position_never_goes_back_and_leaps_over_what_is_left_out():
    position = Position((("a", 1.0), ("b", 2.0), ("c", 1.0)))
    assert walk(position, ("b", 1, 2), ("a", 1, 2), ("b", 0, 2), ("unknown", 7, 9)) == [0.5] * 4
    assert walk(position, ("c", 1, 2), ("c", 3, 0)) == [0.875, 0.875]


def test_programs_share_the_whole_and_without_a_course_each_stage_is_it():
    position = Position((("a", 1.0), ("b", 1.0)))
    assert walk(position, ("program", 0, 2), ("b", 1, 1), ("program", 1, 2), ("a", 1, 1), ("b", 1, 1)) == [
        0,
        0.5,
        0.5,
        0.75,
        1,
    ]
    assert walk(Position(()), ("check", 1, 4), ("check", 4, 4), ("tune", 1, 2), ("environment", 3, 0)) == [
        0.25,
        1,
        0.5,
        None,
    ]


@pytest.mark.parametrize("level, timed", [(0, False), (2, True)])
def test_a_build_goes_from_nothing_to_all(cnn, tmp_path, level, timed):
    """The stages that a build tells of are those of the course, in this order."""
    events, known = [], {name for name, _ in course(level)}
    pelton.build(cnn, level=level, cache_dir=tmp_path, progress=lambda *e: events.append(e))
    assert {stage for stage, *_ in events} - {"done"} <= known and ("compile" in {e[0] for e in events})
    assert ("tune" in {e[0] for e in events}) == timed
    seen = walk(Position(course(level)), *events)
    assert seen == sorted(seen) and seen[-1] >= 0.95
    steps = np.diff([*seen, 1.0])
    assert steps.max() < 0.5, "the bar leaps"


@pytest.mark.parametrize("level", [0, 1])
def test_a_calibrated_build_has_a_share_for_each_of_its_engines(cnn, tmp_path, monkeypatch, level):
    events, walks = [], course(level, calibrated=True)
    monkeypatch.setattr(int8, "choose_by_time", lambda choices, *engines: choices)
    monkeypatch.setattr(int8, "compare_times", lambda *a: (0.5, ""))
    (port,) = pelton.build(cnn, level=0, cache_dir=tmp_path).inputs
    data = {port.name: np.random.default_rng(0).random((40, *port.shape[1:]), np.float32)}
    more = {"calibration": data, "max_drop": 1.0, "cache_dir": tmp_path, "progress": lambda *e: events.append(e)}
    pelton.build(cnn, precision="int8", level=level, **more)
    assert {stage for stage, *_ in events} - {"done"} <= {name for name, _ in walks}
    seen = walk(Position(walks), *events)
    assert seen == sorted(seen) and seen[-1] >= 0.95 and np.diff([*seen, 1.0]).max() < 0.5
    at = {stage: [seen[i] for i, e in enumerate(events) if e[0] == stage] for stage in ("accuracy", "link", "race")}
    assert len(at["accuracy"]) == 5 and at["accuracy"][0] < 0.5 and len({*at["accuracy"]}) > 2
    assert len({*at["link"]}) == len(at["link"]) >= 3 and len(at["race"]) == 2 * bool(level)


def test_lines_in_a_log_estimate_what_is_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.show_progress(True, (("compile", 0.5), ("tune", 0.5))) as tell:
        for i in range(1, 21):
            now[0] += 1
            tell("compile", i, 20)
        now[0] += 80
        tell("tune", 1, 2)
        tell("link", 0, 1)
        tell("program", 0, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["compiling kernels, 1 of 20 …", "compiling kernels, 6 of 20, about 34 s left …"]
    assert lines[-2:] == ["timing kernels, 1 of 2, about 33 s left …", "linking, about 33 s left …"] and len(lines) == 6


def test_one_bar_on_a_terminal_is_gone_in_the_end(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress.show_progress(True, course(0)) as tell:
        tell("import", 0, 1)
        tell("compile", 8, 9)
        tell("calibrate", 1, 3)
    said = stream.getvalue()
    assert "calibrating, 1 of 3" in said and "left" in said and "%" in said and said.count("calibrating") == 1
    assert said.endswith("\x1b[2K")


def test_a_notebook_without_widgets_gets_lines(monkeypatch, capsys):
    shell = types.SimpleNamespace(get_ipython=lambda: object())
    for name, module in (("ipykernel", shell), ("IPython", shell), ("ipywidgets", None)):
        monkeypatch.setitem(sys.modules, name, module)
    assert progress.is_notebook() and progress.is_visible()
    with progress.show_progress() as tell:
        tell("import", 0, 1)
    assert capsys.readouterr().err == "reading the model …\n"


BUILD = """
import pelton
net = pelton.Network()
net.output(net.input("x", "f32[8]") + 1.0, "y")
pelton.build(net, level=0)
print("built")
"""


def built(cache, stderr, **variables):
    """What a script that builds a model prints on stdout and stderr."""
    command = [sys.executable, "-c", BUILD]
    own = {"PELTON_CACHE_DIR": str(cache), "TERM": "xterm", "COLUMNS": "120", **variables}
    env = {k: v for k, v in os.environ.items() if k != "PELTON_PROGRESS"} | own
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True, check=True)
    return done.stdout.strip(), done.stderr or ""


def on_terminal(cache, **variables):
    """The same, where stderr is a terminal."""
    reader, terminal = pty.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # how a terminal ends
            while data := os.read(reader, 1 << 16):
                shown.append(data)

    watcher = threading.Thread(target=read)
    watcher.start()
    try:
        printed, _ = built(cache, terminal, **variables)
    finally:
        os.close(terminal)
        watcher.join()
        os.close(reader)
    return printed, b"".join(shown).decode()


def test_a_build_called_from_python_shows_a_bar_on_a_terminal_alone(tmp_path):
    printed, shown = on_terminal(tmp_path)
    assert printed == "built" and "━" in shown and "%" in shown
    assert on_terminal(tmp_path, PELTON_PROGRESS="0") == ("built", "")
    assert built(tmp_path, subprocess.PIPE) == ("built", "")
    printed, lines = built(tmp_path, subprocess.PIPE, PELTON_PROGRESS="1")
    assert printed == "built" and lines.startswith("reading the model …\n")


def test_only_one_bar_is_shown_at_a_time(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.show_progress(True, course(0)) as tell:
        with progress.show_progress(True, course(0)) as other:
            other("optimize", 1, 1)
            tell("import", 0, 1)
    assert "reading" in sys.stderr.getvalue() and "optimizing" not in sys.stderr.getvalue()


def test_the_variable_that_switches_it_is_checked(monkeypatch):
    monkeypatch.setenv("PELTON_PROGRESS", "yes")
    with pytest.raises(pelton.InputError, match="PELTON_PROGRESS must be 0 or 1, got 'yes'"):
        progress.is_wanted()
