"""The real cuDNN, if installed: it plans without a GPU, and its plans show its reading of descriptors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from test_triton_cudnn import SYMBOL, descriptor  # noqa: E402
from test_cuda_tuning import built_on, device  # noqa: E402, F401  (fixtures)
from test_triton_cublaslt import idle  # noqa: E402, F401  (a fixture)

from pelton.backends.cuda import cudnn  # noqa: E402
from pelton.backends.cuda.cudnn import CudnnLibrary  # noqa: E402
from pelton.engine import library  # noqa: E402
from pelton.engine.work import ALIGNED, CHOICES  # noqa: E402
from pelton.errors import EngineError  # noqa: E402


# ---- the library itself, where it is installed: it plans without a GPU, and its plans say what it makes of what it is
# told ----

H100 = dict(
    deviceId=0,
    deviceVer=900,
    driverVer=12080,
    cudaDeviceId=0,
    totalGlobalMem=85045739520,
    maxGridSize=[2147483647, 65535, 65535],
    maxBlockSize=[1024, 1024, 64],
    regsPerBlock=65536,
    multiProcessorCount=132,
    smCountOrigin=0,
    warpSize=32,
    maxSharedMemoryPerBlock=49152,
    maxSharedMemoryPerBlockOptin=232448,
    oversizedSharedMemoryPerBlock=232448,
    reservedSharedMemoryPerBlock=1024,
    maxRegistersPerSM=65536,
    maxCtasPerSM=32,
    maxThreadsPerBlock=1024,
    maxThreadsPerSM=2048,
    pciDeviceId=0,
    isTccDriver=0,
    supportCoopLaunch=1,
    smClockRateKHz=1980000,
    memClockRateKHz=2619000,
    memoryBusWidth=5120,
    l2CacheSize=52428800,
    deviceName="NVIDIA H100 80GB HBM3",
)


@pytest.fixture(scope="module")
def real() -> CudnnLibrary:
    try:
        return CudnnLibrary(cudnn.loaded(), json.dumps(H100))
    except EngineError as e:
        pytest.skip(f"no cuDNN: {e}")


@pytest.mark.parametrize(
    "sizes",
    [
        dict(n=8, c=64, h=56, w=56, out=64),
        dict(
            n=1,
            c=256,
            h=14,
            w=14,
            out=512,
            kernel_h=1,
            kernel_w=1,
            stride_h=2,
            stride_w=2,
            top=0,
            left=0,
            bottom=0,
            right=0,
        ),
        dict(
            n=128,
            c=8,
            h=224,
            w=224,
            out=64,
            kernel_h=7,
            kernel_w=7,
            stride_h=2,
            stride_w=2,
            top=3,
            left=3,
            bottom=3,
            right=3,
        ),
        dict(n=1, c=128, h=28, w=28, out=128, group=32),
        dict(n=2, c=64, h=28, w=28, out=64, dilation_h=2, dilation_w=2, top=2, left=2, bottom=2, right=2),
        dict(n=1, c=40, h=13, w=13, out=24),
    ],
    ids=lambda sizes: "x".join(map(str, sizes.values())),
)
@pytest.mark.parametrize(
    "kind, ends", [(1, dict(added=1)), (1, dict(added=0)), (1, dict(added=0, bias=0, end=0)), (2, dict(added=1, end=0))]
)
def test_the_library_has_kernels_for_what_it_is_told(sizes, kind, ends, real):
    found = descriptor(**sizes, **ends, kind=kind, version=real.version)
    (rows, columns), each = found.space, found.kernel_h * found.kernel_w * found.c // found.group
    places = {
        f"{of}_{axis}": step
        for of in "yz"
        for axis, step in (("n", rows * columns * found.out), ("h", columns * found.out), ("w", found.out))
    }
    found = replace(found, w_step=each, x_n=found.h * found.w * found.c, x_h=found.w * found.c, x_w=found.c, **places)
    assert library.work(SYMBOL, found.dims()) == found
    plans = [real.plan(replace(found, choice=choice), [ALIGNED] * len(found.operands())) for choice in range(CHOICES)]
    assert len({id(p) for p in plans}) == CHOICES and all(0 <= p.workspace <= cudnn.WORKSPACE for p in plans)
