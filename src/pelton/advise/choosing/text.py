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
- **Memory** is a limit: a network either fits or does not. The guides of 2017 ask for 4 GB, and for 6 GB with a
  display on the card, so leave 2 GB for a display. The series of 2025 begins at 8 GB, in the table below.

The balance of a device is its compute divided by its bandwidth, in operations for each byte. A layer with fewer
operations for each byte than that is bound by bandwidth. No single order of the three figures is right for all
networks: some guides put compute first, others bandwidth. `pelton advise` decides it for a network, layer by layer
([advise](advise.md)). For predictions INT8 counts, for training FP16 or BF16 with sums in FP32.

Makers head their pages with figures with 2:4 structured sparsity, which are twice the dense ones. Dense weights do not
reach them. The catalog keeps both apart.

## How GPUs compute

A GPU has tens to hundreds of multiprocessors (SMs). Within an SM, groups of lanes execute one instruction on many
data; different SMs execute different instructions. More cores help only if enough work of the same kind is scheduled
and memory keeps up. The levels of memory, from large and slow to small and fast: global memory, L2 cache, shared
memory and L1 cache of an SM, texture and constant caches, registers. Frameworks reach the GPU through libraries such
as cuBLAS and cuDNN, or through compilers.

Tensor cores compute D = A × B + C on small matrices, a warp of 32 threads at a time ([NVIDIA][cores]). A and B are
FP16, BF16, TF32 or narrower, sums are FP32 (INT32 for integers); INT8 and INT4 are for predictions. On GeForce cards
FP16 with sums in FP32 runs at half the rate of sums in FP16. What they bring is less than their peak: the guides quote
1 to 15 times in training from vendors, and NVIDIA's page for mixed precision says up to 3 times for some models
([Clara][amp]). With 2:4 sparsity (two of four weights are zero; Ampere and newer) the peak doubles. NVIDIA shows
[1.5 times][sparse] for BERT-Large in INT8 end to end, and [over 30 %][trt8] more performance for a watt with TensorRT
8; the guides quote 1.8 times on one layer.

A TPU is an array of multipliers through which operands flow (systolic array), programmed through XLA, in BF16. A chip
of the [TPU v3][v3] has two TensorCores and 123 TFLOPS, a pod of 1,024 chips 126 PFLOPS. Figures of TPUs are for a chip
or for a board of four: 420 TFLOPS of the TPU v3 are those of a board, not of a chip. The [Edge TPU][edge] has 4 TOPS at
2 W, is smaller than a penny, and runs TFLite models of 8-bit integers only; Coral boards carry it. Jetson modules
(Nano, TX2, Xavier, Orin, Thor) are in the catalog.

GPU or TPU: Google [recommends][when] TPUs for large models with large batches that are dominated by products of
matrices and train for weeks, GPUs for models with operations of their own, and CPUs for small models and prototypes.
TPUs are not for frequent branches, many element-wise operations or high precision. Models leave Pelton for TPUs as
StableHLO ([formats](formats.md#stablehlo)). Quantum computers play no part in inference of neural networks today.

A machine is heterogeneous if processors of different cores, memories, instruction sets and software work together: CPU
and GPU, TPU, ASIC or FPGA. A CPU spends most of its die on caches, memory and control, a GPU on arithmetic.

[cores]: https://developer.nvidia.com/blog/using-tensor-cores-in-cuda-fortran/
[amp]: https://docs.nvidia.com/clara/clara-train-archive/3.1/nvmidl/additional_features/automatic_mixed_precision.html
[sparse]: https://pitchsend.com/slides/hckD5VbSMGMxyeKu
[trt8]: https://developer.nvidia.com/blog/accelerating-inference-with-sparsity-using-ampere-and-tensorrt
[v3]: https://docs.cloud.google.com/tpu/docs/v3.md.txt
[edge]: https://coral.ai/docs/edgetpu/faq
[when]: https://docs.cloud.google.com/compute/docs/tpus/overview.md.txt
"""

PROCESSORS = """
## Processors of 2010 to 2014

The processors that the guides compare, by the catalog. MHz are those of the base clock; GFLOPS of the GTX cards are at
their boost clock.
"""

SLIPS = """
Where the guides differ: the Core i7-5960X (8 cores, 16 threads) is a Haswell-E, no Broadwell. The Tesla M2070 has 14
SMs of 32 cores, 448 in all, and 1,030 GFLOPS, not 16 and 1,288; so 4.6 GFLOPS for a watt, not 5.7. The Tesla K20 has
13 SMs of 192 cores, and 48 KB of shared memory or L1 in each. A GTX 970 has 13 SMs of 128 cores and 3,494 GFLOPS at its
base clock of 1,050 MHz; a GTX 980 has 16. For the Xeon X5650 the guides have 2,670 MHz and 124.8 GFLOPS (1.31 for a
watt), 32 KB of L1, 256 KB of L2, and over $1,000; for the M2070 over $3,000, and for the K20 over $5,000, where the
source of the catalog has the price above.
"""

SERIES = """
## Price and performance within a series

Within a series, price follows performance; a later series gives more for the price. Prices are those of the launch.
FP32 and FP16 are TFLOPS at the boost clock, FP16 with sums in FP32. RTX cards have tensor cores, GTX cards none. The
GTX 980 Ti and 1080 Ti were the fastest of their series. Medians of a series, in GFLOPS of FP32 for $1:
{medians}.
The guides of 2017 say that the GTX 1000 series gives twice what the GTX 900 series gives for the price.
"""

USERS = """
## Advice of 2017 to 2021, with figures

These cards were the advice for ten kinds of user, a cluster being the tenth. The last column is the profile of
`pelton advise --profile` with today's cards.
"""

ADVICE = """
A cluster needs more than a choice of cards: network, cooling and a scheduler. A researcher in vision who wants more
cards later takes blowers or water.

Cards for workstations and for data centers compute alike. Those for data centers have passive coolers, memory with
error correction and terms of use for servers, and cost several times as much (ten times, say the guides): compare
GeForce RTX 3090 and A40 in the catalog, which have the same chip. The guides advise cards for data centers (Tesla)
above 100 machines; from 10 to 100 complete systems (DGX) if there is money, else servers of good value (Supermicro)
with consumer cards. Today [NVIDIA's licence of the GeForce driver][geforce] stands against consumer cards in data
centers: *No Datacenter Deployment. The SOFTWARE is not licensed for datacenter deployment, except that blockchain
processing in a datacenter is permitted.* The clause came [in November 2017][clause], and defines no data center.

NVIDIA and AMD make most GPUs, Intel some; more software runs on NVIDIA's. New architectures come every one to three
years (the guides: one or two).

A CPU is enough where its latency suffices: `pelton bench` measures it. Of equal compute, a GPU costs much less:
{ratio}.
Servers take 8 or 16 cards.

[geforce]: https://www.nvidia.com/en-us/drivers/geforce-license/
[clause]: https://deeptalk.lambdalabs.com/t/nvidia-geforce-datacenter-ban-january-eula-change/138
"""

MACHINE = """
## The whole machine

`pelton advise model.onnx --devices "RTX 4090" --count 4` checks these parts for a network ([advise](advise.md)).

| part | what to check |
| --- | --- |
| CPU | training and predictions on a GPU need no fast one; decoding of pictures does |
| case | length and slots of the cards (`length_mm`, `slots` in the catalog), air between; [ATX][atx]: seven slots |
| power supply | sum of `power_w` of all parts, and a quarter more; `psu_w` is what is recommended for one card |
| spikes | a card may take [three times][spikes] its power for 100 µs; an [ATX 3.0][atx3] supply bears twice its own |
| mainboard | PCIe lanes: with four cards ×16 may become ×8 or ×4; a card with ×8 uses no more |
| copies | inputs go over PCIe: [15.7 GB/s][pcie] with 3.0 ×16, twice with each generation, a quarter with ×4 |
| memory | [as much][ram] as the cards have; more keeps a data set |
| disk | an epoch reads the data set once: [0.6 GB/s by SATA, 7.9 GB/s by NVMe][disks] |
| cooling | cards side by side need blowers or water; passive cards need a server's air flow |

The guides have cards of 50 to 300 W; the catalog has cards up to {most_w} W
({most}). Power, heat and volume decide together.

[atx]: https://tickerdossier.com/wiki/microatx
[spikes]: https://www.tweaktown.com/news/85717/pcie-5-0-gpus-can-have-power-excursions-use-up-to-1800w-of/index.html
[atx3]: https://hothardware.com/news/psu-manufs-can-skirt-atx-30-tolerance-testing
[pcie]: https://hpc-notes.pages.dev/reference/pcie
[ram]: https://benjaminspivey.net/index.php/2018/11/14/building-a-deep-learning-machine-part-1-components/
[disks]: https://geratools.com/storage-interface-reference

## Environment

Frameworks and drivers serve Linux best. Windows is for beginners who know no Linux, with WSL 2 for the frameworks.
Driver, CUDA and cuDNN come from the distribution or from NVIDIA's repositories; frameworks of today bring CUDA and
cuDNN as Python packages, so that the driver is all that the system needs. The guides' way was the run file of CUDA 8.0
or 9.0: download, execute permission, run, accept the licence, no driver if there is one, the toolkit, samples if
wanted. It still works for CUDA 13, without samples ([NVIDIA's
driver](install-gpu.md#a-cuda-toolkit-for-other-programs)). A container brings the libraries and leaves the driver to
the host: [native or container](install-gpu.md#native-or-container). [Installing](install.md) and [GPUs](gpu.md) have
the commands for Pelton.
"""

FRAMEWORKS = """
## Frameworks and compilers

To start, take the framework whose models you want to use: the guides say PyTorch for beginners (a plain interface) and
TensorFlow for deployment in industry (a large community). To deploy, what leaves it: ONNX, torch.export, SavedModel,
TFLite. [Formats](formats.md) lists what Pelton reads and writes.

Distributed training stays with the frameworks: PyTorch's DistributedDataParallel and FSDP, TensorFlow's
`tf.distribute`, JAX's sharding; Horovod, Ray Train or Spark's TorchDistributor start them on clusters. Predictions over
tables of Ray and Spark: [scaling](scaling.md).

**PyTorch**: fusion by torch.compile (its JIT and TorchScript before), checkpoints of activations, mixed precision,
layout with channels last, the autotuner of cuDNN, data parallelism; quantization after training; an interpreter for
phones, which ExecuTorch replaced. **TensorFlow**: TFLite (a converter; an interpreter with kernels; now LiteRT),
TensorFlow Lite for Microcontrollers, TensorFlow.js (WebGL, now also WebGPU and WebAssembly), the Model Optimization
Toolkit (quantization, sparsity, clustering), and XLA: TensorFlow [reports][xla] about 7 times the performance and 5
times the batch for BERT on 8 V100, in a submission to MLPerf. [Calibration](calibration.md) and
[compression](compress.md) are Pelton's ways to narrow networks afterwards.

[xla]: https://www.tensorflow.org/xla?hl=JA
"""

ROUTES = """
## Routes

Servers: the framework's own server, TensorRT, TVM, ONNX Runtime, or `pelton serve` ([serving](serve.md)). Programs
in C: [native](native.md). Browsers: [web](web.md), on WebAssembly. Microcontrollers: TensorFlow Lite for
Microcontrollers, or C sources of an engine. Clusters of Ray and Spark: [serving](serving.md). On Apple's devices
Core ML uses CPU, GPU and Neural Engine; Accelerate serves the CPU. `pelton advise --from keras --to cortex-m7` prints
the commands for a format and a place.
"""

CREDITS = """
## Credits

The rows of the catalog name their sources. Among them are Epoch AI, *Data on Machine Learning Hardware* (CC BY);
Wikipedia's lists of graphics processing units (CC BY-SA); Stas Bekman, *Machine Learning Engineering* (CC BY-SA); the
tables of processors of Intel and AMD; the documentation of Google Cloud, AMD ROCm and AWS Graviton.
"""
