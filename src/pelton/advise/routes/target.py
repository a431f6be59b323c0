"""A place where a model runs, and the steps that several of them share."""

from __future__ import annotations

from dataclasses import dataclass

from .sources import RouteStep as Step

SHAPES = "--shapes x=1x3x224x224"
INT8 = "--precision int8 --calibration samples.npz"
TO_ONNX, TO_TFLITE = "pelton convert {model} -o model.onnx", "pelton convert {model} -o model.tflite"
BUILD = "pelton build {model} -o model.pelton"


@dataclass(frozen=True)
class DeployTarget:
    """A place where a model runs.

    steps: for models; {model} is the source's file with its flags. No steps: Pelton does not lead there, and `limits`
    say why. language: steps for language models; () if there are none. tried: how it was tested, a sentence. instead:
    what other projects offer, with the command that writes their file. pages: of the documentation.
    """

    name: str
    title: str
    pages: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    language: tuple[Step, ...] = ()
    tried: str = ""
    limits: tuple[str, ...] = ()
    instead: tuple[Step, ...] = ()


NATIVE = "docs/native.md"
SERVE = (
    Step(BUILD),
    Step("pelton serve model.pelton", "HTTP on port 8000, gRPC on 8001"),
)
SERVE_LANGUAGE = (Step("pelton serve {model}", "OpenAI's protocol: http://127.0.0.1:8000/v1"),)
BUNDLE = (
    Step(BUILD + " --target cpu:aarch64_dotprod --threads 1 " + SHAPES),
    Step("pelton export model.pelton -o net/", "C sources with weights; a CMakeLists.txt"),
)
LINK = (Step(BUILD + " " + SHAPES), Step("pelton tune model.pelton", "on the machine that runs it"))
C_LANGUAGE = (
    Step('pelton generate {model} "Hello" --save-engine model.pelton', "tokens in, tokens out"),
    Step("cc generate.c -O2 $(python -m pelton.config --cflags --libs) -o generate", "examples/native/generate.c"),
)


def micro_controller(name: str, target: str, title: str, *aliases: str) -> DeployTarget:
    """Returns the target of a Cortex-M core. target: of `pelton export`."""
    return DeployTarget(
        name,
        title,
        ("docs/micro-controllers.md", "docs/calibration.md"),
        aliases,
        (
            Step(f"pelton check {{model}} --target {target} --ram 320K --flash 1M {SHAPES}", "fits, layer by layer"),
            Step(f"pelton export {{model}} -o net/ --target {target} {SHAPES} {INT8}", "static memory, C sources"),
            Step("make -C net/qemu run", "on an emulated board"),
        ),
        tried="Kernels and four networks run under QEMU; nothing has run on a board.",
        limits=("Sizes are fixed. Control flow that depends on data, and operators in Python, are rejected.",),
        instead=(Step(TO_TFLITE, "TensorFlow Lite for Microcontrollers, ExecuTorch"),),
    )
