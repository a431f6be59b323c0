"""The tests of others that `pelton serve` runs: their files, models, servers, and what is left out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import client_models

EXPLICIT = ("--model-control", "explicit")
ALL = (*EXPLICIT, "--load-model", "*")
MIXED = ("openvino", "onnx", "plan")


@dataclass(frozen=True)
class Suite:
    """A file of tests below the checkout's qa/, with its server.

    methods: those to run, None for all but `skip`, which says why each is left out. prepare: writes the models into a
    folder's "models", "models_0" and beside. options: of the server. clean: gives all shared memory back after each.
    fresh: each test has a server of its own.
    """

    file: str
    prepare: Callable[[Path], None]
    options: tuple[str, ...] = ()
    methods: tuple[str, ...] | None = None
    skip: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    clean: bool = False
    fresh: bool = False
    folders: tuple[str, ...] = ("models",)

    def tests(self, checkout: Path) -> list[str]:
        """Returns the names CLASS.METHOD of the file that are to run."""
        return [t for t in tests_in(checkout / "qa" / self.file) if self._wanted(t.partition(".")[2])]

    def _wanted(self, method: str) -> bool:
        return method not in self.skip and (self.methods is None or method in self.methods)


def tests_in(path: Path) -> list[str]:
    """Returns the names CLASS.METHOD of the tests in a file of unittest."""
    classes = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
    return [
        f"{c.name}.{f.name}"
        for c in classes
        for f in c.body
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)) and f.name.startswith("test_")
    ]


def _sums(
    models: Sequence[str] = (), second: Sequence[str] = (), beside: Sequence[str] = (), dtype: str = "f32"
) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for name, platforms in (("models", models), ("models_0", second), (".", beside)):
            (folder / name).mkdir(exist_ok=True)
            client_models.platform_sums(folder / name, dtype, tuple(platforms))

    return prepare


def suites(checkout: Path) -> list[Suite]:
    """Returns the suites. checkout: of the server's repository, with docs/examples/model_repository."""

    def examples(folder: Path) -> None:
        client_models.examples(checkout, folder / "models")

    def grpc_examples(folder: Path) -> None:
        examples(folder)
        client_models.identity(folder / "models" / "string_identity", "string")

    def identities(folder: Path) -> None:
        client_models.identities(folder / "models")

    limits, memory = "L0_http/http_input_size_limit_test.py", "L0_shared_memory/shared_memory_test.py"
    larger = ("test_large_input_raw_binary", "test_large_input_json", "test_large_input_compressed")
    python = "the model delays its answer: it is a program in Python"
    no_memory = {
        "test_client_shm_disabled_by_default": "shared memory is always allowed, below /dev/shm",
        "test_large_shm_register_offset": "runs once, with the models of five backends",
    }
    held = {t.partition(".")[2]: python for t in tests_in(checkout / "qa" / memory) if "_unregister_shm_" in t}
    lifecycle = [
        Suite(
            "L0_lifecycle/lifecycle_test.py",
            prepare,
            options,
            (method,),
            fresh=True,
            folders=("models", "models_0") if "multiple" in method else ("models",),
        )
        for method, prepare, options in (
            ("test_dynamic_model_load_unload", _sums(MIXED, beside=["libtorch"]), ()),
            (
                "test_dynamic_model_load_unload_disabled",
                _sums(MIXED, beside=["libtorch"]),
                ("--model-control", "none"),
            ),
            ("test_dynamic_version_load_unload", _sums(["libtorch"], dtype="i32"), ()),
            (
                "test_dynamic_version_load_unload_disabled",
                _sums(["libtorch"], dtype="i32"),
                ("--model-control", "none"),
            ),
            ("test_dynamic_file_delete", _sums(["onnx", "plan"]), ()),
            ("test_multiple_model_repository_polling", _two, ()),
            ("test_multiple_model_repository_control", _two, EXPLICIT),
        )
    ]
    return [
        Suite("L0_http/python_http_aio_test.py", examples),
        Suite("L0_grpc/python_grpc_aio_test.py", grpc_examples),
        Suite(
            "L0_http/http_test.py",
            identities,
            ALL,
            skip={"test_loading_large_invalid_model": "sends 2.9 GB, which takes 10 GB of memory in the client"},
        ),
        Suite(limits, identities, skip={name: "" for name in larger}),
        Suite(limits, identities, ("--http-max-input-size", "134217728"), larger),
        *(
            Suite(memory, examples, skip={**no_memory, **held}, environment={"CLIENT_TYPE": protocol}, clean=True)
            for protocol in ("http", "grpc")
        ),
        *lifecycle,
    ]


def _two(folder: Path) -> None:
    _sums(["openvino", "libtorch"], ["onnx"], ["libtorch"])(folder)
    client_models.remove_version(folder / "models" / "libtorch_float32_float32_float32", 3)


LEFT_OUT = {
    "L0_http/generate_endpoint_test.py": "its model, mock_llm, is a program in Python that sends answers one by one",
    "L0_lifecycle/lifecycle_test.py, other tests": "backends in C++ and Python, GPUs, options of Triton's program",
    "L0_http/http_basic_auth_test.py, L0_grpc/grpc_basic_auth_test.py": "they test nginx",
    "L0_http/http_restricted_api_test.py": "`pelton serve` has one token for all requests",
}
EXAMPLES = ("simple_*.py", "grpc_explicit_*.py", "reuse_infer_objects_client.py")
EXAMPLES_LEFT_OUT = {
    "cudashm": "needs CUDA",
    "custom_repeat": "needs a backend in C++",
}
