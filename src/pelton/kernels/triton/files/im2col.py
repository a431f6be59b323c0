"""Convolutions as matrix products whose rows, the pixels that a tap meets, the GPU's units for copies gather by themselves, zeros outside of the pictures
included (TMA in im2col mode). Written in Gluon, where Triton does not have them."""
import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.experimental import gluon as triton
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(128)
BN = tl.constexpr(128)
BK = tl.constexpr(64)
TALL = tl.constexpr(8)
RING = tl.constexpr(3)
HIGH = tl.constexpr(8)
# </tactic>
INDEX = tl.constexpr(tl.int32)
SUMS = tl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[HIGH.value, 1], instr_shape=[16, BN.value, 16]))
WIDE = tl.constexpr(min(BN.value // 8, 16))                # threads of a warp side by side, each with 16 bytes of what is stored
ENDS = tl.constexpr(gl.BlockedLayout([1, 8], [32 // WIDE.value, WIDE.value], [HIGH.value, 1], [1, 0]))


from scalars import *
# <region>
BATCH, GROUPS, C, OUT, DEEP = (tl.constexpr(x) for x in (1, 1, 64, 64, 64))
OH, OW, KH, KW, SH, SW, DH, DW, PT, PL = (tl.constexpr(x) for x in (14, 14, 3, 3, 1, 1, 1, 1, 1, 1))


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[2] + r * OUT + c, x0, mask=rows & cols)
# </region>
STEPS = tl.constexpr(KH.value * KW.value * DEEP.value // BK.value)


@triton.jit
def fetch(step, pixels, taps, barriers, n, top, left, first, o, a):
    """Asks for what a step needs: BM pixels as a tap meets them, and the BN outputs' weights of it."""
    place, tap = step % RING, step * BK // DEEP
    c = step * BK % DEEP
    barrier = barriers.index(place)
    mbarrier.expect(barrier, (BM + BN) * BK * 2)
    offsets = [tl.cast(tap // KW * DH, tl.int16), tl.cast(tap % KW * DW, tl.int16)]
    tma.async_load_im2col(a[0], [n, top, left, first + c], offsets, barrier, pixels.index(place))
    tma.async_load(a[1], [o, step * BK], barrier, taps.index(place))


@triton.jit
def KERNEL(a):
    program = tl.program_id(0).to(INDEX)
    down, across = tl.cdiv(BATCH * OH * OW, BM), tl.cdiv(OUT, BN)
    group, tile = program // (down * across), program % (down * across)
    i, j = grouped(tile, down, across, TALL)
    begin = i * BM
    n, top, left = (begin // (OH * OW)).to(tl.int32), (begin // OW % OH * SH - PT).to(tl.int32), (begin % OW * SW - PL).to(tl.int32)
    first, o = (group * C).to(tl.int32), (group * OUT + j * BN).to(tl.int32)
    pixels = gl.allocate_shared_memory(a[0].dtype, [RING, BM, BK], a[0].layout)
    taps = gl.allocate_shared_memory(a[1].dtype, [RING, BN, BK], a[1].layout)
    barriers = gl.allocate_shared_memory(tl.int64, [RING, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(RING):
        mbarrier.init(barriers.index(k), count=1)
    fence_async_shared()
    for k in range(RING - 1):
        if k < STEPS:
            fetch(k, pixels, taps, barriers, n, top, left, first, o, a)
    acc = gl.zeros((BM, BN), tl.float32, SUMS)
    for k in range(STEPS):
        mbarrier.wait(barriers.index(k % RING), k // RING & 1)
        acc = warpgroup_mma(pixels.index(k % RING), taps.index(k % RING).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])             # the product of the step before has read what the next fetch overwrites
        gl.barrier()                                        # by all warps
        if k + RING - 1 < STEPS:
            fetch(k + RING - 1, pixels, taps, barriers, n, top, left, first, o, a)
    acc = gl.convert_layout(warpgroup_mma_wait(0, deps=[acc]), ENDS)
    r = begin + gl.arange(0, BM, gl.SliceLayout(1, ENDS))[:, None]
    c = j * BN + gl.arange(0, BN, gl.SliceLayout(0, ENDS))[None, :]
    finish(acc, 0, r, group * OUT + c, r < BATCH * OH * OW, c < OUT, a)
