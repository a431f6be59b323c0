"""The package in Python's own tools: names, help and errors, also with only numpy installed."""

import errno
import os
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from models import small_cnn

import pelton
from pelton import preprocessing
from pelton.errors import Error

HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
# A process in which none of the packages can be imported that the extras install.
NUMPY_ALONE = """
import sys
from pathlib import Path
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'onnx', 'ml_dtypes', 'ziglang', 'rich', 'PIL', 'triton', 'cuda', 'google'}:
            raise ModuleNotFoundError(f'no {name}', name=name)
sys.meta_path.insert(0, Without())
"""


def alone(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", NUMPY_ALONE + program], capture_output=True, text=True, env=HERE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_environments_are_listed_without_the_compiler():
    assert "tensorflow" in alone("from pelton.cli import main\nassert main(['import-env']) == 0")


def test_formats_are_listed_without_the_compiler():
    listed = alone("from pelton.cli import main\nassert main(['formats']) == 0")
    assert listed.startswith("ONNX\n") and "pycaffe" in listed and "UFF (not read)" in listed


@pytest.mark.parametrize("model, text", [("m.onnx", "not a model"), ("n.prototxt", 'input: "x"\nlayer { name: "r" }')])
def test_reading_a_model_says_what_it_needs(tmp_path, model, text):
    (tmp_path / model).write_text(text)
    program = f"from pelton import errors, importers\ntry:\n    importers.load({str(tmp_path / model)!r})\n"
    said = alone(program + "except errors.BuildError as e:\n    print(e)\n")
    assert re.match(r'reading .* needs the package \w+: pip install "pelton\[build\]"', said)


def test_all_names_are_there_without_the_compiler():
    assert (
        alone(
            "import pelton\nassert all(hasattr(pelton, name) for name in dir(pelton))\n"
            "from pelton import *\nprint(build.__doc__.splitlines()[0])\n"
            "try:\n    build('m.onnx')\nexcept pelton.BuildError as e:\n    print(e)\n"
        )
        == "Builds an engine from a model.\nbuilding engines needs the package ml_dtypes: pip"
        ' install "pelton[build]"\n'
    )


def test_help_works_without_the_compiler():
    said = alone("import pelton\nhelp(pelton)\n")
    said = re.sub(r"(?<=\()\s+", "", said)  # Python 3.13 gives each parameter a line
    assert re.search(r"\bbuild\(model: 'Any',\s+shapes:", said) and "class InferenceSession(" in said
    assert "load(source" in said


def test_no_module_replaces_a_public_name():
    """Importing `pelton.x` sets the package's attribute x."""
    modules = {name for _, name, _ in pkgutil.iter_modules(pelton.__path__)}
    assert not modules & {*pelton.__all__, *pelton._HOMES}


def test_a_mistyped_name_is_suggested():
    with pytest.raises(AttributeError, match="no attribute 'buidl'") as e:
        pelton.buidl  # noqa: B018
    assert e.value.name == "buidl" and e.value.obj is pelton  # what the traceback suggests names by


@pytest.mark.parametrize(
    "open_it, kind",
    [
        (pelton.build, pelton.ModelError),
        (pelton.load, pelton.EngineError),
        (pelton.InferenceSession, pelton.ModelError),
        (preprocessing.read_labels, pelton.InputError),
        (lambda path: preprocessing.parse("8x8 rgb").array(path, (1, 3, 8, 8), "f4"), pelton.InputError),
    ],
    ids=["build", "load", "session", "labels", "picture"],
)
def test_a_missing_file_is_a_file_not_found_error(tmp_path, open_it, kind):
    path = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as e:
        open_it(path)
    found = e.value
    assert (
        isinstance(found, kind)
        and isinstance(found, Error)
        and found.errno == errno.ENOENT
        and os.fspath(found.filename) == str(path)
    )
    assert str(path) in str(found) and "Errno" not in str(found)
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), str(again), again.filename) == (type(found), str(found), found.filename)


@pytest.mark.parametrize("given", [(1, 3, 12, 12), "1x3x12x12", [("x", (1, 3, 12, 12))]])
def test_shapes_that_are_no_mapping(given):
    for options in ({"shapes": given}, {"optimum": given}, {"values": given}):
        (name,) = options
        with pytest.raises(pelton.InputError, match=f"{name} is a mapping from names, such as "):
            pelton.build(small_cnn(size=12), **options)


def test_the_former_spelling_of_optimum_works_and_warns():
    sizes = {"x": (1, 3, 8, 8)}
    with pytest.warns(DeprecationWarning, match="write optimum= instead"):
        assert pelton.Options(usual=sizes) == pelton.Options(optimum=sizes)
    with pytest.warns(DeprecationWarning, match="write optimum= instead"):
        assert pelton.Options(optimum={}).but(usual=sizes).optimum == sizes
    with pytest.raises(pelton.InputError, match="use optimum= only"):
        pelton.Options(optimum=sizes, usual=sizes)


def test_the_package_is_pickled_by_its_name():
    """cloudpickle (Ray, Spark, joblib) pickles the modules that a function uses."""
    cloudpickle = pytest.importorskip("cloudpickle")
    run = eval("lambda: pelton.Options(level=0).level", {"pelton": pelton, "__name__": "__main__"})
    assert pickle.loads(cloudpickle.dumps(run))() == 0


def test_what_users_print_says_what_it_is(tmp_path):
    net = pelton.Network()
    net.output(net.input("x", "f32[batch, 8]") + 1.0, "y")
    engine = pelton.build(net, level=0, threads=1)
    assert repr(engine.context()) == f"<pelton.Context of {engine!r}, 1 thread>"
    assert repr(engine.inputs[0]).startswith("Port(name='x', dtype='f32', shape=('batch', 8)")
    engine.save(tmp_path / "net.pelton")
    session = pelton.InferenceSession(tmp_path / "net.pelton")
    assert repr(session) == f"<pelton.InferenceSession of {tmp_path / 'net.pelton'}>"
    with pelton.AsyncQueue(engine, 2) as queue:
        assert repr(queue) == f"<pelton.AsyncQueue of {engine!r}, 2 jobs>"


def test_dir_has_no_names_of_the_implementation():
    names = dir(pelton)
    assert {*pelton.__all__, "plugins", "errors", "__version__"} <= set(names) and names == sorted(names)
    assert not {"Any", "Callable", "Mapping", "Needs", "Sequence", "TYPE_CHECKING", "annotations", "sys"} & set(names)
    assert not [name for name in names if name.startswith("_") and not name.startswith("__")]


def test_nothing_compiled_is_committed():
    command = ["git", "ls-files", "*.so", "*.a", "*.o", "*.pyc", "*.pelton"]
    listed = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if listed.returncode:
        pytest.skip("these sources are not a git checkout")
    assert listed.stdout == ""
