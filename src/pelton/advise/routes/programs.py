"""Programs, applications, servers and file formats that a model goes into."""

from __future__ import annotations

from .sources import FORMATS
from .sources import RouteStep as Step
from .target import (
    BUILD,
    BUNDLE,
    C_LANGUAGE,
    LINK,
    NATIVE,
    SERVE,
    SERVE_LANGUAGE,
    SHAPES,
    TO_ONNX,
    TO_TFLITE,
    DeployTarget,
)

APPS = (
    DeployTarget(
        "browser",
        "browsers",
        ("docs/web.md",),
        ("wasm", "web", "javascript"),
        (
            Step(f"pelton export {{model}} -o web/ --target wasm {SHAPES}", "WebAssembly, JavaScript, a page"),
            Step("python3 -m http.server --directory web/"),
        ),
        tried="In Chromium and node.",
        limits=("The CPU alone: WebGPU and WebGL are not used. A module has at most 2 GB.",),
        instead=(Step(TO_ONNX, "ONNX Runtime Web or TensorFlow.js with WebGPU"),),
    ),
    DeployTarget(
        "node",
        "node",
        ("docs/web.md", NATIVE),
        ("nodejs",),
        (Step(f"pelton export {{model}} -o web/ --target wasm {SHAPES}"), Step("npm pack ./web", "an npm package")),
        tried="In node.",
    ),
    DeployTarget(
        "android",
        "Android, CPU",
        ("docs/arm.md", NATIVE),
        steps=(
            *BUNDLE,
            Step(
                "cmake -S net -B out -DCMAKE_TOOLCHAIN_FILE=$NDK/build/cmake/android.toolchain.cmake"
                " -DANDROID_ABI=arm64-v8a -DANDROID_PLATFORM=29"
            ),
        ),
        tried="Results were checked under QEMU; no phone ran it.",
        limits=("GPU and neural processor of a phone are not used. NNAPI is deprecated since Android 15.",),
        instead=(Step(TO_TFLITE, "LiteRT, also for GPU and neural processor"),),
    ),
    DeployTarget(
        "ios",
        "iPhone and iPad, CPU",
        ("docs/arm.md", NATIVE),
        ("iphone", "ipad"),
        (*BUNDLE, Step("cmake -S net -B out -G Xcode -DCMAKE_SYSTEM_NAME=iOS")),
        tried="Untried.",
        limits=("GPU and Neural Engine are reached through Core ML alone, which Pelton does not write.",),
        instead=(Step("", "Core ML by coremltools, from the model of PyTorch or TensorFlow"),),
    ),
    DeployTarget(
        "macos",
        "macOS, CPU",
        ("docs/arm.md", NATIVE),
        ("mac", "apple"),
        (*BUNDLE, Step("cmake -S net -B out")),
        tried="Compiles and links; untried.",
        limits=(
            "There is no Python package. GPU and Neural Engine are reached through Core ML, which Pelton does not"
            " write; Apple's matrix units through Accelerate.",
        ),
        instead=(Step("", "Core ML by coremltools, from the model of PyTorch or TensorFlow"),),
    ),
    DeployTarget(
        "coreml",
        "Core ML",
        ("docs/choosing.md",),
        ("neural-engine", "ane"),
        limits=("Pelton does not write Core ML files.",),
        instead=(Step("", "coremltools, from the model of PyTorch or TensorFlow"),),
    ),
    DeployTarget(
        "hexagon",
        "neural processors of phones (Qualcomm, MediaTek)",
        ("docs/choosing.md", FORMATS),
        ("npu", "qnn", "nnapi", "snapdragon"),
        limits=("Pelton has no back end for neural processors; their makers' compilers are needed.",),
        instead=(Step(TO_TFLITE, "LiteRT with the maker's delegate (QNN)"),),
    ),
    DeployTarget(
        "windows",
        "Windows",
        ("docs/arm.md", NATIVE),
        ("win",),
        (
            Step(BUILD + " --target cpu:x86_64_v3 --threads 1 " + SHAPES),
            Step("pelton export model.pelton -o net/ --threads 1", "C sources, for clang or MinGW"),
        ),
        tried="Under Wine.",
        limits=("There is no Python package; WSL 2 runs the one for Linux.",),
        instead=(Step(TO_ONNX, "ONNX Runtime"),),
    ),
    DeployTarget(
        "c",
        "programs in C",
        (NATIVE,),
        ("native", "embedded-linux"),
        (
            Step(BUILD + " " + SHAPES),
            Step("pelton check {model} --no-python", "whether it runs without Python"),
            Step("pelton export model.pelton -o net/", "one function as C sources; or load the file by pelton.h"),
        ),
        C_LANGUAGE,
    ),
    DeployTarget(
        "cpp",
        "programs in C++",
        (NATIVE,),
        ("c++",),
        (*LINK, Step("c++ program.cpp $(python -m pelton.config --cflags --libs) -o program", "pelton.hpp")),
        C_LANGUAGE,
    ),
    DeployTarget(
        "rust",
        "programs in Rust",
        (NATIVE,),
        steps=(*LINK, Step("rustc run.rs -L FOLDER -l pelton", "examples/native/run.rs; FOLDER: that of libpelton.so")),
    ),
    DeployTarget(
        "go",
        "programs in Go",
        (NATIVE,),
        ("golang",),
        (*LINK, Step("go run run.go model.pelton", "examples/native/run.go, by cgo: -I and -L as for C")),
    ),
    DeployTarget(
        "java",
        "programs in Java and Kotlin",
        ("docs/serve.md", "docs/serve-clients.md"),
        ("jvm", "kotlin"),
        SERVE,
        SERVE_LANGUAGE,
        limits=("There is no binding for Java. Programs send requests over HTTP or gRPC.",),
        instead=(Step(TO_ONNX, "ONNX Runtime's package for Java"),),
    ),
)

SERVERS = (
    DeployTarget(
        "server",
        "a model server",
        ("docs/serve.md", "docs/serving.md"),
        ("serve", "http", "grpc", "kserve", "rest"),
        SERVE,
        SERVE_LANGUAGE,
    ),
    DeployTarget(
        "triton",
        "Triton Inference Server, and its clients",
        ("docs/serve.md", "docs/serve-clients.md"),
        ("tritonserver",),
        (
            *SERVE,
            Step("mkdir -p models/model/1", "for a Triton server itself:"),
            Step("pelton convert {model} -o models/model/1/model.onnx"),
        ),
        SERVE_LANGUAGE,
        limits=(
            "Triton has no back end for Pelton's engines; it runs the ONNX file. Its clients talk to pelton serve.",
        ),
    ),
    DeployTarget(
        "tensorflow-serving",
        "clients of TensorFlow Serving",
        ("docs/serve.md", "docs/serve-clients.md"),
        ("tfserving",),
        SERVE,
        limits=("TensorFlow Serving itself runs SavedModels, which Pelton does not write.",),
    ),
    DeployTarget(
        "openai",
        "clients of OpenAI's protocol",
        ("docs/serve-openai.md", "docs/language.md"),
        ("chatgpt",),
        language=SERVE_LANGUAGE,
        limits=("The protocol is for language models: --from gguf or huggingface.",),
    ),
    DeployTarget(
        "spark",
        "tables in Spark",
        ("docs/scaling.md",),
        ("pyspark", "databricks"),
        (
            Step("pip install 'pelton[spark]'", "Java 17"),
            Step(BUILD + " --target cpu:x86_64_v3 --threads 1"),
            Step("predict_batch_udf(pelton.spark.predictor('model.pelton'), …)", "in Python: docs/scaling.md"),
        ),
        limits=("Training on clusters stays with the frameworks.",),
    ),
    DeployTarget(
        "ray",
        "Ray Data and Ray Serve",
        ("docs/scaling.md",),
        (),
        (
            Step("pip install 'pelton[ray]'"),
            Step(BUILD + " --target cpu:x86_64_v3 --threads 1"),
            Step("pelton.ray.deployment('model.pelton', …)", "in Python: docs/scaling.md"),
        ),
        limits=("Training on clusters stays with the frameworks.",),
    ),
    DeployTarget(
        "onnx",
        "an ONNX file",
        (FORMATS,),
        ("onnxruntime", "tensorrt"),
        (Step("pelton convert {model} -o converted.onnx", "for ONNX Runtime, TensorRT, OpenVINO and others"),),
    ),
    DeployTarget(
        "tflite",
        "a TFLite file, for LiteRT",
        (FORMATS,),
        ("litert",),
        (
            Step("pelton convert {model} -o converted.tflite"),
            Step(f"pelton convert {{model}} -o int8.tflite {SHAPES} --calibration samples.npz --int8-ports"),
        ),
    ),
    DeployTarget(
        "stablehlo",
        "a StableHLO file",
        (FORMATS, "docs/stablehlo.md"),
        ("mlir",),
        (Step("pelton convert {model} -o converted.stablehlo " + SHAPES),),
    ),
)
