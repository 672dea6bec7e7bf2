"""Forward: out = softmax(scale * q k^T + mask) v over the band, by online softmax (FlashAttention-2, algorithm 1).

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

from .barriers import barriers, give_turn, wait_for_turn
from .masks import BOOLEAN, KEYS, KeyMask, MatrixMask, NoMask
from .producer import ROWS, Shared, producer
from .schedule import Schedule
from .softmax import in_natural_units, mask_scores, online_softmax

LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def attend(
    acc, p, row_max, row_sum, block, first, last, blocks, q, seen, scale, shared, mask,
    MASKED: gl.constexpr, MASK: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Key blocks `first` to last - 1 of those visited: scores of each, while P of the one before is multiplied with V.

    acc [ROWS, BLOCK_D] does not yet hold p [ROWS, BLOCK_N] times its V. Waits keep the order: an accumulator in flight
    across the loop's end would serialise every wgmma.
    """
    for j in range(first, last):
        k_stage, k_parity = shared.stage(block + 1)
        v_stage, v_parity = shared.stage(block)
        if MASKED:
            start_n = blocks.block(j) * shared.BLOCK_N
        mbarrier.wait(shared.k_full.index(k_stage), k_parity)
        wait_for_turn(TURN)
        zeros = gl.zeros((ROWS, shared.BLOCK_N), gl.float32, row_max.type.layout.parent)
        s = warpgroup_mma(q, shared.keys_transposed(k_stage), zeros, use_acc=False, is_async=True)  # [ROWS, BLOCK_N]
        mbarrier.wait(shared.v_full.index(v_stage), v_parity)
        acc = warpgroup_mma(p, shared.values(v_stage), acc, is_async=True)  # [ROWS, BLOCK_D]
        give_turn((TURN + 1) % shared.CONSUMERS)
        s = warpgroup_mma_wait(1, deps=(s,))
        s = mask.apply(s, scale, block + 1, k_stage, MASKED, TURN)
        mbarrier.arrive(shared.k_free.index(k_stage), count=1)
        if MASKED:
            s = mask_scores(s, start_n, seen, shared.BLOCK_N)
        row_max, alpha, p_new = online_softmax(s, row_max, scale, MASKED, MASK)
        row_sum = row_sum * alpha + gl.sum(p_new, 1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(shared.v_free.index(v_stage), count=1)
        # After the wait, which the product with V read the old P's registers up to: packed before, it cost 32 moves.
        p = gl.convert_layout(p_new.to(q.dtype), p.type.layout)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]
        block += 1
    return acc, p, row_max, row_sum, block


@gluon.jit
def consumer(
    out_map, lse, row_stats, num_rows, shared, schedule, mask, heads_q, scale,
    MASK: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """A warpgroup: rows [TURN * ROWS, (TURN + 1) * ROWS) of every query tile."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, shared.BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, shared.BLOCK_D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    q = shared.q.index(TURN).reshape([ROWS, shared.BLOCK_D])
    out = shared.out.index(TURN)
    if TURN == shared.CONSUMERS - 1:
        give_turn(0)
    block = 0
    for i in range(schedule.own_tiles()):
        start_m, head_index = schedule.tile(i)
        blocks = mask.blocks(schedule, start_m, head_index // heads_q, head_index % heads_q)
        rows = start_m + TURN * ROWS + gl.arange(0, ROWS, row_layout)
        seen = gl.minimum(rows + schedule.band_hi + 1, schedule.seqlen_k)

        # The first block visited is always masked.
        mbarrier.wait(shared.q_full.index(TURN), i & 1)
        stage, parity = shared.stage(block)
        mbarrier.wait(shared.k_full.index(stage), parity)
        zeros = gl.zeros((ROWS, shared.BLOCK_N), gl.float32, s_layout)
        s = warpgroup_mma(q, shared.keys_transposed(stage), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        s = mask.apply(s, scale, block, stage, True, TURN)
        mbarrier.arrive(shared.k_free.index(stage), count=1)
        s = mask_scores(s, blocks.block(0) * shared.BLOCK_N, seen, shared.BLOCK_N)
        no_key = gl.full((ROWS,), float("-inf"), gl.float32, row_layout)
        row_max, _, p = online_softmax(s, no_key, scale, True, MASK)
        row_sum = gl.sum(p, 1)
        p = gl.convert_layout(p.to(q.dtype), p_layout)
        acc = gl.zeros((ROWS, shared.BLOCK_D), gl.float32, acc_layout)

        acc, p, row_max, row_sum, block = attend(
            acc, p, row_max, row_sum, block, 1, blocks.masked, blocks, q, seen, scale, shared, mask, True, MASK, TURN
        )
        acc, p, row_max, row_sum, block = attend(
            acc, p, row_max, row_sum, block, blocks.masked, blocks.count, blocks, q, seen, scale, shared, mask,
            False, MASK, TURN,
        )  # fmt: skip
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
        if not in_natural_units(MASK):
            row_max *= scale
        # 64-bit: batch * heads * seqlen may pass 2^31.
        place = head_index.to(gl.int64) * schedule.seqlen_q + rows
        in_rows = rows < schedule.seqlen_q
        gl.store(lse + place, row_max + gl.log2(row_sum) * LN2, mask=in_rows)
        if MASK != 0:
            gl.store(row_stats + place, row_max, mask=in_rows)
            gl.store(row_stats + num_rows + place, row_sum, mask=in_rows)
    tma.store_wait(0)


@gluon.jit
def run(
    q_map, k_map, v_map, out_map, lse, row_stats, num_rows, mask,
    batch, heads_q, group_size, heads_at_once, tiles_per_turn, seqlen_q, seqlen_k, band_hi, scale,
    MASK: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr,
    STAGES: gl.constexpr, OUT_APART: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """What fwd_hopper and fwd_hopper_mask share: all but the mask."""
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
    produce = (q_map, k_map, v_map, shared, schedule, mask, heads_q, group_size)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (out_map, lse, row_stats, num_rows, shared, schedule, mask, heads_q, scale, MASK, 0)),
            (consumer, (out_map, lse, row_stats, num_rows, shared, schedule, mask, heads_q, scale, MASK, 1)),
            (producer, produce),
        ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.static_assert(CONSUMERS == 3, "two or three consumer warpgroups")
        gl.warp_specialize([
            (consumer, (out_map, lse, row_stats, num_rows, shared, schedule, mask, heads_q, scale, MASK, 0)),
            (consumer, (out_map, lse, row_stats, num_rows, shared, schedule, mask, heads_q, scale, MASK, 1)),
            (consumer, (out_map, lse, row_stats, num_rows, shared, schedule, mask, heads_q, scale, MASK, 2)),
            (producer, produce),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


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
    run(
        q_map, k_map, v_map, out_map, lse, lse, 0, NoMask(),
        batch, heads_q, group_size, heads_at_once, tiles_per_turn, seqlen_q, seqlen_k, band_hi, scale,
        0, CONSUMERS, BLOCK_N, BLOCK_D, STAGES, OUT_APART, CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip


@gluon.jit
def fwd_hopper_mask(
    q_map, k_map, v_map, mask_map, out_map, lse, row_stats, mask_table, num_rows, mask_batch, mask_heads,
    batch, heads_q, group_size, heads_at_once, tiles_per_turn, seqlen_q, seqlen_k, band_hi, scale,
    MASK: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr,
    MASK_STAGES: gl.constexpr, OUT_APART: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As fwd_hopper, with a mask, and row_stats written; a row without a visible key has (-inf, 0) there.

    mask_map describes the mask itself or, where MASK is KEYS, the bias of mask_keys, whose table is read only then.
    """
    if MASK == KEYS:
        tiles = gl.allocate_shared_memory(mask_map.dtype, [STAGES, 1, 1, 1, BLOCK_N], mask_map.layout)
        mask = KeyMask(mask_map, mask_table, tiles, mask_batch, mask_heads, BLOCK_N)
    else:
        places: gl.constexpr = MASK_STAGES * CONSUMERS
        mask = MatrixMask(
            mask_map,
            gl.allocate_shared_memory(mask_map.dtype, [places, 1, 1, ROWS, BLOCK_N], mask_map.layout),
            barriers(1, places),
            barriers(1, places),
            mask_batch, mask_heads, MASK == BOOLEAN, MASK_STAGES, CONSUMERS, ROWS, BLOCK_N,
        )  # fmt: skip
    run(
        q_map, k_map, v_map, out_map, lse, row_stats, num_rows, mask,
        batch, heads_q, group_size, heads_at_once, tiles_per_turn, seqlen_q, seqlen_k, band_hi, scale,
        MASK, CONSUMERS, BLOCK_N, BLOCK_D, STAGES, OUT_APART, CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
