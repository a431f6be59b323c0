"""Machines and devices that a model runs on."""

from __future__ import annotations

from .sources import FORMATS
from .sources import RouteStep as Step
from .target import BUILD, SHAPES, TO_ONNX, DeployTarget, micro_controller

MACHINES = (
    DeployTarget(
        "this",
        "this machine's CPU",
        ("docs/tutorial.md", "docs/tuning.md"),
        ("here", "cpu", "python", "linux"),
        (
            Step("pelton check {model}", "problems, and how each operator would run"),
            Step(BUILD),
            Step("pelton bench model.pelton"),
        ),
        (Step('pelton generate {model} "The capital of France is"'), Step("pelton chat {model}")),
        limits=("Python packages exist for Linux alone.",),
    ),
    DeployTarget(
        "linux-x64",
        "other x86-64 Linux machines",
        ("docs/deploying.md", "docs/tuning.md"),
        ("linux-x86", "x86", "server-cpu"),
        (
            Step(BUILD + " --target cpu:x86_64_v3 --threads 2", "any CPU with AVX2"),
            Step("pelton tune model.pelton", "there"),
        ),
        (Step('pelton generate {model} "Hello"', "there; the first start builds the engine"),),
    ),
    DeployTarget(
        "container",
        "a container, Kubernetes",
        ("docs/deploying.md",),
        ("docker", "kubernetes", "k8s"),
        (Step(BUILD + " --target cpu:x86_64_v3 --threads 1"), Step("pelton serve model.pelton --host 0.0.0.0")),
        (Step("pelton serve {model} --host 0.0.0.0"),),
        tried="buildah and podman built and ran the page's image; no cluster ran its manifest.",
    ),
    DeployTarget(
        "linux-arm64",
        "Linux on AArch64 (Graviton, Ampere, Grace)",
        ("docs/arm.md", "docs/install.md"),
        ("arm64", "aarch64", "graviton"),
        (Step(BUILD + " --target cpu:aarch64_dotprod"), Step("pelton tune model.pelton", "on the machine")),
        (Step('pelton generate {model} "Hello"', "on the machine"),),
        tried="Results were checked under QEMU; nothing was timed on hardware.",
    ),
    DeployTarget(
        "raspberry-pi",
        "Raspberry Pi 3 to 5, 64-bit system",
        ("docs/arm.md", "docs/install.md"),
        ("rpi", "raspberrypi"),
        (
            Step(BUILD + " --target cpu:aarch64_dotprod", "Raspberry Pi 5; on a 3 or 4 cpu:aarch64"),
            Step("pelton tune model.pelton", "on the board"),
        ),
        (Step('pelton generate {model} "Hello"', "on the board"),),
        tried="Results were checked under QEMU; nothing was timed on hardware.",
        limits=("32-bit systems are not supported.",),
    ),
    DeployTarget(
        "riscv",
        "Linux on RISC-V with vectors",
        ("docs/arm.md",),
        ("riscv64",),
        (
            Step(BUILD + " --target cpu:riscv64_v --threads 1 " + SHAPES),
            Step("pelton export model.pelton -o net/", "C sources with weights; a CMakeLists.txt"),
        ),
        tried="Results were checked under QEMU; nothing was timed on hardware.",
    ),
    DeployTarget(
        "jetson",
        "NVIDIA Jetson",
        ("docs/arm.md", "docs/gpu.md"),
        steps=(
            Step(BUILD + " --target cpu:aarch64_dotprod", "its CPU; on a Jetson Nano cpu:aarch64"),
            Step("pip install 'pelton[build,cuda]'", "for engines of GPUs"),
            Step("pelton build {model} -o gpu.pelton --target cuda:sm_87 --precision fp16", "the GPU of Orin"),
            Step("pelton tune gpu.pelton", "on the board"),
        ),
        tried="CPU: under QEMU. GPU of Orin: untried.",
        limits=("GPUs before Orin (Nano, TX2, Xavier) are older than sm_80, which engines need.",),
        instead=(Step(TO_ONNX, "TensorRT of JetPack"),),
    ),
    DeployTarget(
        "nvidia",
        "NVIDIA GPUs from Ampere on",
        ("docs/gpu.md", "docs/install-gpu.md"),
        ("gpu", "cuda"),
        (
            Step("pip install 'pelton[build,cuda]'", "the build; it needs no GPU"),
            Step(BUILD + " --target cuda:sm_80,sm_90 --precision fp16"),
            Step("pelton tune model.pelton", "on the machine with the GPU"),
            Step("pelton doctor", "driver and packages there"),
        ),
        tried="Correct on one H200; other GPUs are untested.",
        limits=("Volta, Turing and older GPUs are older than sm_80, which engines need.",),
        instead=(Step(TO_ONNX, "TensorRT, or ONNX Runtime with CUDA"),),
    ),
    DeployTarget(
        "amd",
        "AMD GPUs",
        (FORMATS,),
        ("rocm", "radeon", "instinct"),
        limits=("Pelton has no back end for AMD GPUs.",),
        instead=(Step(TO_ONNX, "MIGraphX or ONNX Runtime"),),
    ),
    DeployTarget(
        "intel-gpu",
        "Intel GPUs and NPUs",
        (FORMATS,),
        ("arc", "openvino", "gaudi"),
        limits=("Pelton has no back end for Intel's GPUs and NPUs.",),
        instead=(Step(TO_ONNX, "OpenVINO"),),
    ),
    DeployTarget(
        "tpu",
        "Google Cloud TPU, and other devices of XLA",
        (FORMATS, "docs/stablehlo.md"),
        ("xla", "iree"),
        (Step("pelton convert {model} -o model.stablehlo " + SHAPES, "StableHLO, for XLA and IREE"),),
        tried="XLA's CPU compiler ran every operator; no TPU did.",
        limits=("Pelton's engines do not run on TPUs; XLA compiles and runs the file.",),
    ),
    DeployTarget(
        "edgetpu",
        "Edge TPU (Coral)",
        (FORMATS,),
        ("coral",),
        (
            Step(
                f"pelton convert {{model}} -o model.tflite {SHAPES} --calibration samples.npz --int8-ports",
                "8-bit integers only",
            ),
            Step("edgetpu_compiler model.tflite", "Google's compiler"),
        ),
        tried="LiteRT runs the files; no Edge TPU did.",
        limits=("Pelton's engines do not run there. The device runs 8-bit integers only.",),
    ),
    micro_controller("cortex-m3", "thumb-generic", "Arm Cortex-M3 and other Armv7-M cores", "thumb-generic"),
    micro_controller("cortex-m4", "cortex-m4", "Arm Cortex-M4F", "stm32f4"),
    micro_controller("cortex-m7", "cortex-m7", "Arm Cortex-M7", "stm32h7"),
    micro_controller("cortex-m33", "cortex-m33", "Arm Cortex-M33"),
    micro_controller("cortex-m55", "cortex-m55", "Arm Cortex-M55, without its vectors"),
)
