"""Convolutions as matrix products whose rows, the pixels that a tap meets, the GPU's copy units gather by themselves,
zeros outside of the images included (TMA in im2col mode). In Gluon, since Triton lacks that mode."""

import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.experimental import gluon as triton
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import libdevice

# <tactic>
BM = tl.constexpr(128)
BN = tl.constexpr(128)
BK = tl.constexpr(64)
TALL = tl.constexpr(8)
RING = tl.constexpr(3)
HIGH = tl.constexpr(8)
STREAM = tl.constexpr(0)
# </tactic>
INDEX = tl.constexpr(tl.int32)
HELD = tl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[HIGH.value, 1], instr_shape=[16, BN.value, 16])
)
# adjacent threads of a warp, each with 16 bytes to store
WIDE = tl.constexpr(min(BN.value // 8, 16))
ENDS = tl.constexpr(gl.BlockedLayout([1, 8], [32 // WIDE.value, WIDE.value], [HIGH.value, 1], [1, 0]))


from scalars import *

# <region>
BATCH, GROUPS, C, OUT, DEEP = (tl.constexpr(x) for x in (1, 1, 64, 64, 64))
SUMS, ARRIVED = tl.constexpr(3), tl.constexpr(4)
OH, OW, KH, KW, SH, SW, DH, DW, PT, PL = (tl.constexpr(x) for x in (14, 14, 3, 3, 1, 1, 1, 1, 1, 1))


@triton.jit
def finish(x0, b, r, c, rows, cols, a):
    tl.store(a[2] + r * OUT + c, x0, mask=rows & cols)


# </region>
STEPS = tl.constexpr(KH.value * KW.value * DEEP.value // BK.value)


@triton.jit
def tile_of(tile):
    """Returns a tile's first row, its group, and its first column within that."""
    down, across = tl.cdiv(BATCH * OH * OW, BM), tl.cdiv(OUT, BN)
    i, j = grouped(tile % (down * across), down, across, TALL)
    return i * BM, tile // (down * across), j * BN


@triton.jit
def block_of(begin, left, how: tl.constexpr):
    """Returns the rows and columns of a tile in a layout."""
    return (
        begin + gl.arange(0, BM, gl.SliceLayout(1, how))[:, None],
        left + gl.arange(0, BN, gl.SliceLayout(0, how))[None, :],
    )


@triton.jit
def fetch(step, turn, begin, group, left, pixels, taps, barriers, a):
    """Requests a step's operands: BM pixels as a tap meets them, and the weights of BN outputs. turn: the number of
    steps that the program has requested before."""
    tap, c, place = step * BK // DEEP, step * BK % DEEP, turn % RING
    n, top, side = begin // (OH * OW), begin // OW % OH * SH - PT, begin % OW * SW - PL
    offsets = [tl.cast(tap // KW * DH, tl.int16), tl.cast(tap % KW * DW, tl.int16)]
    barrier = barriers.index(place)
    mbarrier.expect(barrier, (BM + BN) * BK * 2)
    corner = [tl.cast(n, tl.int32), tl.cast(top, tl.int32), tl.cast(side, tl.int32), tl.cast(group * C + c, tl.int32)]
    tma.async_load_im2col(a[0], corner, offsets, barrier, pixels.index(place))
    tma.async_load(a[1], [tl.cast(group * OUT + left, tl.int32), step * BK], barrier, taps.index(place))


@triton.jit
def summed(first, until, turn, begin, group, left, pixels, taps, barriers, a):
    """Returns a tile's sums from one step to another."""
    for k in range(RING - 1):
        if first + k < until:
            fetch(first + k, turn + k, begin, group, left, pixels, taps, barriers, a)
    acc = gl.zeros((BM, BN), tl.float32, HELD)
    for step in range(first, until):
        at = turn + step - first
        mbarrier.wait(barriers.index(at % RING), at // RING & 1)
        acc = warpgroup_mma(pixels.index(at % RING), taps.index(at % RING).permute((1, 0)), acc, is_async=True)
        # the product of the step before has read what the next fetch overwrites
        acc = warpgroup_mma_wait(1, deps=[acc])
        gl.barrier()  # by all warps
        if step + RING - 1 < until:
            fetch(step + RING - 1, at + RING - 1, begin, group, left, pixels, taps, barriers, a)
    acc = warpgroup_mma_wait(0, deps=[acc])
    gl.barrier()  # the next tile's fetches overwrite what all warps have read
    return acc


@triton.jit
def KERNEL(a):
    program = tl.program_id(0).to(INDEX)
    pixels = gl.allocate_shared_memory(a[0].dtype, [RING, BM, BK], a[0].layout)
    taps = gl.allocate_shared_memory(a[1].dtype, [RING, BN, BK], a[1].layout)
    barriers = gl.allocate_shared_memory(tl.int64, [RING, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(RING):
        mbarrier.init(barriers.index(k), count=1)
    fence_async_shared()
    if STREAM:
        total = GROUPS * tl.cdiv(BATCH * OH * OW, BM) * tl.cdiv(OUT, BN) * STEPS
        start, end = share(program, total)
        for tile in range(start // STEPS, tl.cdiv(end, STEPS)):
            begin, group, left = tile_of(tl.cast(tile, INDEX))
            one, last = sharers(tile, STEPS, total)
            first, until = (
                tl.maximum(start - tile * STEPS, 0).to(tl.int32),
                tl.minimum(end - tile * STEPS, STEPS).to(tl.int32),
            )
            acc = summed(
                first, until, (first - start + tile * STEPS).to(tl.int32), begin, group, left, pixels, taps, barriers, a
            )
            u, v = block_of(0, 0, HELD)
            if parted(acc, u * BN + v, BM * BN, program, one, last, a[SUMS], a[ARRIVED]):
                r, c = block_of(0, 0, ENDS)
                sums = joined(one, last, r * BN + c, BM * BN, a[SUMS])
                finish(sums, 0, begin + r, group * OUT + left + c, begin + r < BATCH * OH * OW, left + c < OUT, a)
    else:
        begin, group, left = tile_of(program)
        acc = summed(0, STEPS, 0, begin, group, left, pixels, taps, barriers, a)
        r, c = block_of(begin, left, ENDS)
        finish(gl.convert_layout(acc, ENDS), 0, r, group * OUT + c, r < BATCH * OH * OW, c < OUT, a)
