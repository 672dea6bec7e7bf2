"""Forward without a mask: out = softmax(scale * q k^T) v over the band, by online softmax (FlashAttention-2, alg. 1).

A producer warp loads, consumer warpgroups of 64 query rows each compute (FlashAttention-3, algorithm 2): while the
tensor cores multiply P of one key block with V, the other units compute the softmax of the next block, and the
warpgroups take turns, so that one computes its softmax while another multiplies.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .schedule import Schedule
from .turns import give_turn, wait_for_turn

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
# Query rows of a consumer warpgroup: the M of a wgmma.
ROWS = gl.constexpr(64)


@gluon.aggregate
class Shared:
    """Tiles in shared memory and their barriers: `full` when TMA has filled a tile, `free` when it has been read."""

    q: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, BLOCK_D]
    out: gl.shared_memory_descriptor  # as q, and the same memory unless OUT_APART
    k: gl.shared_memory_descriptor  # [STAGES, 1, 1, BLOCK_N, BLOCK_D]
    v: gl.shared_memory_descriptor  # [STAGES, 1, 1, BLOCK_N, BLOCK_D]
    q_full: gl.shared_memory_descriptor  # [CONSUMERS, 1]
    q_free: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor  # [STAGES, 1]
    k_free: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_free: gl.shared_memory_descriptor
    BLOCK_N: gl.constexpr
    BLOCK_D: gl.constexpr
    STAGES: gl.constexpr
    CONSUMERS: gl.constexpr
    OUT_APART: gl.constexpr

    @gluon.jit
    def stage(self, block):
        """(stage, parity of its barriers) of the block-th key block that the program meets."""
        return block % self.STAGES, (block // self.STAGES) & 1

    @gluon.jit
    def keys_transposed(self, stage):
        return self.k.index(stage).reshape([self.BLOCK_N, self.BLOCK_D]).permute((1, 0))

    @gluon.jit
    def values(self, stage):
        return self.v.index(stage).reshape([self.BLOCK_N, self.BLOCK_D])


@gluon.jit
def load(map, coordinates, full, tile):
    mbarrier.expect(full, tile.nbytes_per_cta)
    tma.async_load(map, coordinates, full, tile)


@gluon.jit
def producer(q_map, k_map, v_map, shared, schedule, heads_q, group_size):
    """One warp: the q tiles of every query tile, and its key blocks from the last to the first."""
    block = 0
    for i in range(schedule.own_tiles()):
        start_m, head_index = schedule.tile(i)
        blocks, _ = schedule.key_blocks(start_m)
        b = head_index // heads_q
        h = head_index % heads_q
        h_k = h // group_size
        for w in gl.static_range(shared.CONSUMERS):
            mbarrier.wait(shared.q_free.index(w), (i & 1) ^ 1)
            load(q_map, [b, h, start_m + w * ROWS, 0], shared.q_full.index(w), shared.q.index(w))
        for j in range(blocks):
            start_n = (blocks - 1 - j) * shared.BLOCK_N
            stage, parity = shared.stage(block)
            mbarrier.wait(shared.k_free.index(stage), parity ^ 1)
            load(k_map, [b, h_k, start_n, 0], shared.k_full.index(stage), shared.k.index(stage))
            mbarrier.wait(shared.v_free.index(stage), parity ^ 1)
            load(v_map, [b, h_k, start_n, 0], shared.v_full.index(stage), shared.v.index(stage))
            block += 1


@gluon.jit
def mask_scores(s, start_n, seen, BLOCK_N: gl.constexpr):
    """-inf where a row does not see the key; row r sees keys below seen[r]. This also masks keys past the end."""
    columns = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s.type.layout))
    return gl.where(columns[None, :] < seen[:, None], s, float("-inf"))


@gluon.jit
def finite(row_max):
    """What to subtract: 0 for a row that has seen no key, as -inf - (-inf) is NaN and exp2(-inf) the 0 wanted."""
    return gl.where(row_max == float("-inf"), 0.0, row_max)


@gluon.jit
def attend(
    acc, p, row_max, row_sum, block, last, first, q, seen, scale2, shared,
    MASKED: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Key blocks last - 1 down to `first`: scores of each, while P of the block before it is multiplied with V.

    acc [ROWS, BLOCK_D] does not yet hold p [ROWS, BLOCK_N] times its V. row_max is in units of q k^T, scale2 is
    scale * log2(e). Waits keep the order: an accumulator in flight across the loop's end would serialise every wgmma.
    """
    for j in range(last, first, -1):
        k_stage, k_parity = shared.stage(block + 1)
        v_stage, v_parity = shared.stage(block)
        mbarrier.wait(shared.k_full.index(k_stage), k_parity)
        wait_for_turn(TURN)
        zeros = gl.zeros((ROWS, shared.BLOCK_N), gl.float32, row_max.type.layout.parent)
        s = warpgroup_mma(q, shared.keys_transposed(k_stage), zeros, use_acc=False, is_async=True)  # [ROWS, BLOCK_N]
        mbarrier.wait(shared.v_full.index(v_stage), v_parity)
        acc = warpgroup_mma(p, shared.values(v_stage), acc, is_async=True)  # [ROWS, BLOCK_D]
        give_turn((TURN + 1) % shared.CONSUMERS)
        s = warpgroup_mma_wait(1, deps=(s,))
        mbarrier.arrive(shared.k_free.index(k_stage), count=1)
        if MASKED:
            s = mask_scores(s, (j - 1) * shared.BLOCK_N, seen, shared.BLOCK_N)
        new_max = gl.maximum(row_max, gl.max(s, 1))
        if MASKED:
            shift = finite(new_max) * scale2
        else:
            shift = new_max * scale2
        alpha = gl.exp2(row_max * scale2 - shift)
        p_new = gl.exp2(s * scale2 - shift[:, None])
        row_sum = row_sum * alpha + gl.sum(p_new, 1)
        row_max = new_max
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(shared.v_free.index(v_stage), count=1)
        # After the wait, which the product with V read the old P's registers up to: packed before, it cost 32 moves.
        p = gl.convert_layout(p_new.to(q.dtype), p.type.layout)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]
        block += 1
    return acc, p, row_max, row_sum, block


@gluon.jit
def consumer(out_map, lse, shared, schedule, heads_q, scale, TURN: gl.constexpr):
    """A warpgroup: rows [TURN * ROWS, (TURN + 1) * ROWS) of every query tile."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, shared.BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, shared.BLOCK_D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    scale2 = scale * LOG2E
    q = shared.q.index(TURN).reshape([ROWS, shared.BLOCK_D])
    out = shared.out.index(TURN)
    if TURN == shared.CONSUMERS - 1:
        give_turn(0)
    block = 0
    for i in range(schedule.own_tiles()):
        start_m, head_index = schedule.tile(i)
        blocks, full_blocks = schedule.key_blocks(start_m)
        rows = start_m + TURN * ROWS + gl.arange(0, ROWS, row_layout)
        seen = gl.minimum(rows + schedule.band_hi + 1, schedule.seqlen_k)

        # The last block, the only one whose keys may end inside it, is always masked.
        mbarrier.wait(shared.q_full.index(TURN), i & 1)
        stage, parity = shared.stage(block)
        mbarrier.wait(shared.k_full.index(stage), parity)
        zeros = gl.zeros((ROWS, shared.BLOCK_N), gl.float32, s_layout)
        s = warpgroup_mma(q, shared.keys_transposed(stage), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        mbarrier.arrive(shared.k_free.index(stage), count=1)
        s = mask_scores(s, (blocks - 1) * shared.BLOCK_N, seen, shared.BLOCK_N)
        row_max = gl.max(s, 1)
        p = gl.exp2(s * scale2 - (finite(row_max) * scale2)[:, None])
        row_sum = gl.sum(p, 1)
        p = gl.convert_layout(p.to(q.dtype), p_layout)
        acc = gl.zeros((ROWS, shared.BLOCK_D), gl.float32, acc_layout)

        full = gl.minimum(blocks - 1, full_blocks)
        acc, p, row_max, row_sum, block = attend(
            acc, p, row_max, row_sum, block, blocks - 1, full, q, seen, scale2, shared, True, TURN
        )
        acc, p, row_max, row_sum, block = attend(
            acc, p, row_max, row_sum, block, full, 0, q, seen, scale2, shared, False, TURN
        )
        if shared.OUT_APART:
            mbarrier.arrive(shared.q_free.index(TURN), count=1)
        stage, parity = shared.stage(block)
        mbarrier.wait(shared.v_full.index(stage), parity)
        acc = warpgroup_mma(p, shared.values(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(shared.v_free.index(stage), count=1)
        block += 1

        # A row that saw no key has sum 0 and acc 0: out 0, and log2(0) makes its lse -inf.
        inverse = 1.0 / gl.where(row_sum > 0.0, row_sum, 1.0)
        acc = acc * gl.convert_layout(inverse, gl.SliceLayout(1, acc_layout))[:, None]
        if shared.OUT_APART:
            tma.store_wait(0)  # of the tile before
        out.reshape([ROWS, shared.BLOCK_D]).store(acc.to(q.dtype))
        fence_async_shared()
        tma.async_store(out_map, [head_index // heads_q, head_index % heads_q, start_m + TURN * ROWS, 0], out)
        if not shared.OUT_APART:
            tma.store_wait(0)
            mbarrier.arrive(shared.q_free.index(TURN), count=1)
        row_lse = (row_max * scale2 + gl.log2(row_sum)) * LN2
        # 64-bit: batch * heads * seqlen may pass 2^31.
        gl.store(lse + head_index.to(gl.int64) * schedule.seqlen_q + rows, row_lse, mask=rows < schedule.seqlen_q)
    tma.store_wait(0)


@gluon.jit
def barriers(readers: gl.constexpr, COUNT: gl.constexpr):
    """COUNT barriers, [COUNT, 1]; each one's phase ends when `readers` have arrived."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=readers)
    return made


@gluon.jit
def fwd_hopper(
    q_map, k_map, v_map, out_map, lse,
    batch, heads_q, group_size, heads_at_once, tiles_per_turn, seqlen_q, seqlen_k, band_hi, scale,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr,
    OUT_APART: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Any one-dimensional grid: a program computes every tile of CONSUMERS * 64 query rows that falls to it.

    The maps are TMA descriptors of the tensors [B, H, S, D]. Row i sees keys up to i + band_hi. Writes out and lse; a
    row without a visible key: out 0, lse -inf. scale > 0.
    """
    q_tiles = gl.allocate_shared_memory(q_map.dtype, [CONSUMERS, 1, 1, ROWS, BLOCK_D], q_map.layout)
    if OUT_APART:
        out_tiles = gl.allocate_shared_memory(q_map.dtype, [CONSUMERS, 1, 1, ROWS, BLOCK_D], out_map.layout)
    else:
        out_tiles = q_tiles
    shared = Shared(
        q_tiles,
        out_tiles,
        gl.allocate_shared_memory(k_map.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], k_map.layout),
        gl.allocate_shared_memory(v_map.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], v_map.layout),
        barriers(1, CONSUMERS),
        barriers(1, CONSUMERS),
        barriers(1, STAGES),
        barriers(CONSUMERS, STAGES),
        barriers(1, STAGES),
        barriers(CONSUMERS, STAGES),
        BLOCK_N, BLOCK_D, STAGES, CONSUMERS, OUT_APART,
    )  # fmt: skip
    fence_async_shared()

    block_m: gl.constexpr = CONSUMERS * ROWS
    blocks_m = (seqlen_q + block_m - 1) // block_m
    schedule = Schedule(
        batch * heads_q * blocks_m,
        blocks_m,
        heads_at_once,
        tiles_per_turn,
        seqlen_q,
        seqlen_k,
        band_hi,
        block_m,
        BLOCK_N,
    )
    produce = (q_map, k_map, v_map, shared, schedule, heads_q, group_size)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (out_map, lse, shared, schedule, heads_q, scale, 0)),
            (consumer, (out_map, lse, shared, schedule, heads_q, scale, 1)),
            (producer, produce),
        ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.static_assert(CONSUMERS == 3, "two or three consumer warpgroups")
        gl.warp_specialize([
            (consumer, (out_map, lse, shared, schedule, heads_q, scale, 0)),
            (consumer, (out_map, lse, shared, schedule, heads_q, scale, 1)),
            (consumer, (out_map, lse, shared, schedule, heads_q, scale, 2)),
            (producer, produce),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
