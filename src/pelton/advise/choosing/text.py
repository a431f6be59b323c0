"""The prose of docs/choosing.md, between its tables."""

HEAD = """# Choosing a machine

Which machine fits a network depends on the network. This page gives the general rules, and tables with dates and
sources. `make choosing` generates it from the catalog of {devices} devices in `src/pelton/advise/catalog` and the
tables in `src/pelton/advise/choosing`; do not edit it.

## Three figures

A GPU has three figures that count: compute at the precision in use, memory, and bandwidth of the memory.

- **Bandwidth** bounds layers that do few operations for each byte: element-wise layers, depthwise convolutions,
  products of a matrix and a vector, and so language models that decode at batch 1.
- **Compute** bounds layers that do many operations for each byte: convolutions and products of large matrices.
- **Memory** is a limit: a network either fits or does not. Leave 2 GB for a display that hangs on the card.

The balance of a device is its compute divided by its bandwidth, in operations for each byte. A layer with fewer
operations for each byte than that is bound by bandwidth. No single order of the three figures is right for all
networks. For predictions INT8 counts, for training FP16 or BF16 with sums in FP32.

Makers head their pages with figures with 2:4 structured sparsity, which are twice the dense ones. Dense weights do not
reach them. The catalog keeps both apart.

## How GPUs compute

A GPU has tens to hundreds of multiprocessors (SMs). Within an SM, groups of lanes execute one instruction on many
data; different SMs execute different instructions. More cores help only if enough work of the same kind is scheduled
and memory keeps up. The levels of memory, from large and slow to small and fast: global memory, L2 cache, shared
memory and L1 cache of an SM, texture and constant caches, registers. Frameworks reach the GPU through libraries such
as cuBLAS and cuDNN, or through compilers.

Tensor cores compute D = A × B + C on small matrices. A and B are FP16, BF16, TF32 or narrower, sums are FP32 (INT32
for integers). On GeForce cards FP16 with sums in FP32 runs at half the rate of sums in FP16.

A TPU is an array of multipliers through which operands flow (systolic array), programmed through XLA. Figures of
TPUs are for a chip or for a board of four: 420 TFLOPS of the TPU v3 are those of a board. The Edge TPU runs TFLite
models of 8-bit integers only. A machine with CPUs, GPUs and other processors that work together is called
heterogeneous. Quantum computers play no part in inference of neural networks today.
"""

SERIES = """
## Price and performance within a series

Within a series, price follows performance; a later series gives more for the price. Prices are those of the launch.
FP32 and FP16 are TFLOPS at the boost clock, FP16 with sums in FP32.
"""

USERS = """
## Advice of 2017 to 2021, with figures

These cards were the advice for ten kinds of user. For today's cards compare memory, FP16 and bandwidth with them.
"""

ADVICE = """
A cluster needs more than a choice of cards: network, cooling and a scheduler.

Cards for workstations and for data centers compute alike. Those for data centers have passive coolers, memory with
error correction and terms of use for servers, and cost several times as much: compare GeForce RTX 3090 and A40 in
the catalog, which have the same chip. NVIDIA and AMD make most GPUs, Intel some; more software runs on NVIDIA's. New
architectures come every one to three years.

A CPU is enough where its latency suffices: `pelton bench` measures it. Of equal compute, a GPU costs much less.
"""

MACHINE = """
## The whole machine

| part | what to check |
| --- | --- |
| CPU | training and predictions on a GPU need no fast one; decoding of pictures does |
| case | length and slots of the cards (`length_mm`, `slots` in the catalog), air between them |
| power supply | sum of `power_w` of all parts, and headroom; `psu_w` is what is recommended for one card |
| mainboard | PCIe lanes: with four cards ×16 may become ×8 or ×4; a card with ×8 uses no more |
| cooling | cards side by side need blowers or water; passive cards need a server's air flow |

Power, heat and volume decide together.

## Environment

Frameworks and drivers serve Linux best. Driver, CUDA and cuDNN come from the distribution or from NVIDIA's
repositories; frameworks of today bring CUDA and cuDNN as Python packages, so that the driver is all that the system
needs. A container brings the libraries and leaves the driver to the host. [Installing](install.md) and
[GPUs](gpu.md) have the commands for Pelton.
"""

FRAMEWORKS = """
## Frameworks and compilers

To start, take the framework whose models you want to use; to deploy, what leaves it: ONNX, torch.export, SavedModel,
TFLite. [Formats](formats.md) lists what Pelton reads and writes. Distributed training stays with the frameworks:
PyTorch's DistributedDataParallel and FSDP, TensorFlow's `tf.distribute`, JAX's sharding; Horovod, Ray Train or
Spark's TorchDistributor start them on clusters.

The means of training and tuning in PyTorch are fusion by torch.compile, checkpoints of activations, mixed precision,
layout with channels last, and data parallelism; in TensorFlow, XLA and the Model Optimization Toolkit (quantization,
sparsity, clustering). [Calibration](calibration.md) and [compression](compress.md) are Pelton's ways to narrow
networks afterwards.
"""

ROUTES = """
## Routes

Servers: the framework's own server, TensorRT, TVM, ONNX Runtime, or `pelton serve` ([serving](serve.md)). Programs
in C: [native](native.md). Browsers: [web](web.md), on WebAssembly. Microcontrollers: TensorFlow Lite for
Microcontrollers, or C sources of an engine. Clusters of Ray and Spark: [serving](serving.md). On Apple's devices
Core ML uses CPU, GPU and Neural Engine; Accelerate serves the CPU.
"""

CREDITS = """
## Credits

The rows of the catalog name their sources. Among them are Epoch AI, *Data on Machine Learning Hardware* (CC BY);
Wikipedia's lists of graphics processing units (CC BY-SA); Stas Bekman, *Machine Learning Engineering* (CC BY-SA); the
tables of processors of Intel and AMD; the documentation of Google Cloud, AMD ROCm and AWS Graviton.
"""
