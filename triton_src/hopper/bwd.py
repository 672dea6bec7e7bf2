"""Backward without a mask: dk and dv of one block of keys, and its share of dq, in one pass over the queries.

A producer warp loads, two consumer warpgroups compute (FlashAttention-3, algorithm 3). Scores and their gradients are
transposed, keys along the rows of a wgmma, so that P^T and dS^T become left operands of the products for dv and dk
without leaving registers. Up to head_dim 128 (here) a warpgroup takes 64 keys of its own; at 256, see bwd_wide.py.
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

from .barriers import barriers, meet
from .bwd_wide import Wide, dk_and_dp, dv_and_p
from .keys import LOG2E, ROWS, add_to_dq, in_order_of_sums, load_terms, probabilities, task_of


@gluon.aggregate
class Narrow:
    """Tiles in shared memory and their barriers: `full` when TMA has filled a tile, `free` when it has been read."""

    k: gl.shared_memory_descriptor  # [2, 1, 1, ROWS, BLOCK_D], one for each warpgroup
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor  # [STAGES, 1, 1, ROWS, BLOCK_D]
    dout: gl.shared_memory_descriptor
    row_terms: gl.shared_memory_descriptor  # [STAGES, 1, 1, 2, ROWS], fp32: base-2 LSE and delta of the queries
    ds: gl.shared_memory_descriptor  # [4, ROWS, ROWS]: two buffers of both warpgroups' halves, keys x queries
    k_full: gl.shared_memory_descriptor  # [1, 1]
    v_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor  # [STAGES, 1]; row_terms come with q
    q_free: gl.shared_memory_descriptor
    dout_full: gl.shared_memory_descriptor
    dout_free: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor  # [2, 1, 1, 128, 32], fp32, one for each warpgroup; at BLOCK_D 128 only
    dq_full: gl.shared_memory_descriptor  # [2, 1]
    dq_free: gl.shared_memory_descriptor
    BLOCK_D: gl.constexpr
    STAGES: gl.constexpr


@gluon.jit
def load_keys(map, full, tiles, task, TILES: gl.constexpr):
    mbarrier.expect(full, TILES * tiles.index(0).nbytes_per_cta)
    for w in gl.static_range(TILES):
        tma.async_load(map, [task.b, task.h_k, task.start_n + w * ROWS, 0], full, tiles.index(w))


@gluon.jit
def producer(q_map, k_map, v_map, dout_map, row_terms_map, shared, task, group_size, TILES: gl.constexpr):
    """One warp: keys and values once, then every query block of every query head of the group."""
    load_keys(k_map, shared.k_full.index(0), shared.k, task, TILES)
    load_keys(v_map, shared.v_full.index(0), shared.v, task, TILES)
    block = 0
    for g in range(group_size):
        h = task.h_k * group_size + g
        for step in range(task.first, task.end):
            i = task.query_block(step)
            stage = block % shared.STAGES
            parity = (block // shared.STAGES) & 1
            mbarrier.wait(shared.q_free.index(stage), parity ^ 1)
            full = shared.q_full.index(stage)
            mbarrier.expect(full, shared.q.index(0).nbytes_per_cta + shared.row_terms.index(0).nbytes_per_cta)
            tma.async_load(q_map, [task.b, h, i * ROWS, 0], full, shared.q.index(stage))
            tma.async_load(row_terms_map, [task.b, h, i * 2, 0], full, shared.row_terms.index(stage))
            mbarrier.wait(shared.dout_free.index(stage), parity ^ 1)
            full = shared.dout_full.index(stage)
            mbarrier.expect(full, shared.dout.index(0).nbytes_per_cta)
            tma.async_load(dout_map, [task.b, h, i * ROWS, 0], full, shared.dout.index(stage))
            block += 1


@gluon.jit
def writer(dq_acc_map, shared, task, group_size, WG: gl.constexpr):
    """One warp: has the copy engine add a warpgroup's share of dq, [64 queries, 64 columns], block by block."""
    block = 0
    for g in range(group_size):
        for step in range(task.first, task.end):
            i = task.query_block(step)
            mbarrier.wait(shared.dq_full.index(WG), block & 1)
            place = [task.b, task.h_k * group_size + g, (2 * i + WG) * 128, 0]
            tma.async_atomic_add(dq_acc_map, place, shared.dq.index(WG))
            tma.store_wait(0)
            mbarrier.arrive(shared.dq_free.index(WG), count=1)
            block += 1


@gluon.jit
def hand_over_dq(shared, dq, block, WG: gl.constexpr):
    mbarrier.wait(shared.dq_free.index(WG), (block & 1) ^ 1)
    shared.dq.index(WG).reshape([128, 32]).store(in_order_of_sums(dq).reshape([128, 32]))
    fence_async_shared()
    mbarrier.arrive(shared.dq_full.index(WG), count=1)


@gluon.jit
def dq_tile(shared, buffer, WG: gl.constexpr, layout: gl.constexpr):
    """[64 queries, 64 columns of head_dim] of dS k, over both warpgroups' keys."""
    k0 = shared.k.index(0).reshape([ROWS, shared.BLOCK_D])
    k1 = shared.k.index(1).reshape([ROWS, shared.BLOCK_D])
    if shared.BLOCK_D == 128:
        k0 = k0.slice(WG * ROWS, ROWS, dim=1)
        k1 = k1.slice(WG * ROWS, ROWS, dim=1)
    zeros = gl.zeros((ROWS, ROWS), gl.float32, layout)
    dq = warpgroup_mma(shared.ds.index(buffer).permute((1, 0)), k0, zeros, use_acc=False, is_async=True)
    return warpgroup_mma(shared.ds.index(buffer + 1).permute((1, 0)), k1, dq, is_async=True)


@gluon.jit
def consumer(
    dk_map, dv_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, seqlen_k, band_lo, band_hi, scale,
    WG: gl.constexpr,
):  # fmt: skip
    """A warpgroup: keys [start_n + WG * ROWS, start_n + (WG + 1) * ROWS)."""
    BLOCK_D: gl.constexpr = shared.BLOCK_D
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    dtype: gl.constexpr = shared.k.dtype
    scale2 = scale * LOG2E
    k = shared.k.index(WG).reshape([ROWS, BLOCK_D])
    v = shared.v.index(WG).reshape([ROWS, BLOCK_D])
    keys = task.start_n + WG * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
    blocks_m = (seqlen_q + ROWS - 1) // ROWS
    dk = gl.zeros((ROWS, BLOCK_D), gl.float32, acc_layout)
    dv = gl.zeros((ROWS, BLOCK_D), gl.float32, acc_layout)
    mbarrier.wait(shared.k_full.index(0), 0)
    mbarrier.wait(shared.v_full.index(0), 0)
    if BLOCK_D == 64:
        # From registers, which are free here: reading them from shared memory anew for each block would fill it.
        k_left = k.load(gl.DotOperandLayout(0, s_layout, 2))
        v_left = v.load(gl.DotOperandLayout(0, s_layout, 2))
    else:
        k_left = k
        v_left = v
    block = 0
    for g in range(group_size):
        # 64-bit: batch * heads * seqlen * head_dim may pass 2^31.
        head_index = (task.b * heads_q + task.h_k * group_size + g).to(gl.int64)
        acc = dq_acc + head_index * blocks_m * (ROWS * BLOCK_D)
        for step in range(task.first, task.end):
            i = task.query_block(step)
            stage = block % shared.STAGES
            parity = (block // shared.STAGES) & 1
            # Two buffers: a warpgroup that is past the meeting of this block has read those of the block before.
            buffer = (block & 1) * 2
            q = shared.q.index(stage).reshape([ROWS, BLOCK_D])
            dout = shared.dout.index(stage).reshape([ROWS, BLOCK_D])
            zeros = gl.zeros((ROWS, ROWS), gl.float32, s_layout)
            mbarrier.wait(shared.q_full.index(stage), parity)
            # Before the products: a load from shared memory queues behind those that have been issued.
            lse2 = load_terms(shared.row_terms.index(stage), 0, s_layout)
            s = warpgroup_mma(k_left, q.permute((1, 0)), zeros, use_acc=False, is_async=True)  # [keys, queries]
            mbarrier.wait(shared.dout_full.index(stage), parity)
            dp = warpgroup_mma(v_left, dout.permute((1, 0)), zeros, use_acc=False, is_async=True)  # [keys, queries]
            s = warpgroup_mma_wait(1, deps=(s,))
            p = probabilities(s, lse2, scale2, i, keys, task, seqlen_k, band_lo, band_hi)
            p_left = gl.convert_layout(p.to(dtype), a_layout)
            delta = load_terms(shared.row_terms.index(stage), 1, s_layout)
            dp = warpgroup_mma_wait(0, deps=(dp,))
            ds = (p * (dp - delta)).to(dtype)
            shared.ds.index(buffer + WG).store(ds)
            dv = warpgroup_mma(p_left, dout, dv, is_async=True)
            fence_async_shared()
            if BLOCK_D == 128:
                meet()
                dq = dq_tile(shared, buffer, WG, s_layout)
                dk = warpgroup_mma(gl.convert_layout(ds, a_layout), q, dk, is_async=True)
                dq, dv = warpgroup_mma_wait(1, deps=(dq, dv))
                mbarrier.arrive(shared.dout_free.index(stage), count=1)
                # From registers, as below, the sums would hold them too long: the next S needs the same ones.
                hand_over_dq(shared, dq, block, WG)
            else:
                dk = warpgroup_mma(gl.convert_layout(ds, a_layout), q, dk, is_async=True)
                meet()
                # One tile of dq for both: they take turns.
                if (block & 1) == WG:
                    dq = dq_tile(shared, buffer, WG, s_layout)
                    dq = warpgroup_mma_wait(0, deps=(dq,))
                    add_to_dq(acc + i * (BLOCK_D * ROWS), dq)
                dv = warpgroup_mma_wait(1, deps=(dv,))
                mbarrier.arrive(shared.dout_free.index(stage), count=1)
            dk = warpgroup_mma_wait(0, deps=(dk,))
            mbarrier.arrive(shared.q_free.index(stage), count=1)
            block += 1

    # k and v have been read: dk and dv leave through their memory. The other warpgroup read this one's k for dq.
    start = task.start_n + WG * ROWS
    v.store(dv.to(dtype))
    meet()
    k.store((dk * scale).to(dtype))
    fence_async_shared()
    tma.async_store(dv_map, [task.b, task.h_k, start, 0], shared.v.index(WG))
    tma.async_store(dk_map, [task.b, task.h_k, start, 0], shared.k.index(WG))
    tma.store_wait(0)


@gluon.jit
def bwd_hopper(
    q_map, k_map, v_map, dout_map, row_terms_map, dk_map, dv_map, dq_acc_map, dq_acc,
    batch, heads_q, group_size, heads_at_once, seqlen_q, seqlen_k, band_lo, band_hi, scale,
    BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Grid: cdiv(seqlen_k, BLOCK_N) * batch * heads_k.

    The maps are TMA descriptors of the tensors [B, H, S, D]. Row i sees keys j with i + band_lo <= j <= i + band_hi.
    Writes dk and dv, summed over the query heads that share a key head, and adds dS k to dq_acc. scale > 0.
    """
    TILES: gl.constexpr = BLOCK_N // ROWS
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], q_map.dtype)
    k = gl.allocate_shared_memory(k_map.dtype, [TILES, 1, 1, ROWS, BLOCK_D], k_map.layout)
    v = gl.allocate_shared_memory(v_map.dtype, [TILES, 1, 1, ROWS, BLOCK_D], v_map.layout)
    q = gl.allocate_shared_memory(q_map.dtype, [STAGES, 1, 1, ROWS, BLOCK_D], q_map.layout)
    dout = gl.allocate_shared_memory(q_map.dtype, [STAGES, 1, 1, ROWS, BLOCK_D], dout_map.layout)
    row_terms = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 1, 2, ROWS], row_terms_map.layout)
    ds = gl.allocate_shared_memory(q_map.dtype, [4, ROWS, ROWS], ds_layout)
    k_full = barriers(1, 1)
    v_full = barriers(1, 1)
    q_full = barriers(1, STAGES)
    q_free = barriers(2, STAGES)
    dout_full = barriers(1, STAGES)
    dout_free = barriers(2, STAGES)
    # At head_dim 256 the sums for dq keep L2 busiest: there it is worth 4%, elsewhere it costs 2% (on an H200).
    SHIFTED: gl.constexpr = BLOCK_D == 256
    task = task_of(
        batch, heads_q // group_size, heads_at_once, seqlen_q, seqlen_k, band_lo, band_hi, BLOCK_N, SHIFTED
    )  # fmt: skip
    if BLOCK_D == 256:
        shared = Wide(
            k, v, q, dout, row_terms, ds, k_full, v_full, q_full, q_free, dout_full, dout_free,
            barriers(1, 2), barriers(1, 2), barriers(1, 2), barriers(1, 2), BLOCK_D, STAGES,
        )  # fmt: skip
        fence_async_shared()
        gl.warp_specialize([
            (dv_and_p, (
                dv_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, seqlen_k, band_lo, band_hi, scale,
            )),
            (dk_and_dp, (dk_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, scale)),
            (producer, (q_map, k_map, v_map, dout_map, row_terms_map, shared, task, group_size, TILES)),
        ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        shared = Narrow(
            k, v, q, dout, row_terms, ds, k_full, v_full, q_full, q_free, dout_full, dout_free,
            gl.allocate_shared_memory(gl.float32, [BLOCK_D // 64, 1, 1, 128, 32], dq_acc_map.layout),
            barriers(1, 2), barriers(1, 2), BLOCK_D, STAGES,
        )  # fmt: skip
        fence_async_shared()
        if BLOCK_D == 128:
            gl.warp_specialize([
                (consumer, (
                    dk_map, dv_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, seqlen_k, band_lo, band_hi,
                    scale, 0,
                )),
                (consumer, (
                    dk_map, dv_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, seqlen_k, band_lo, band_hi,
                    scale, 1,
                )),
                (producer, (q_map, k_map, v_map, dout_map, row_terms_map, shared, task, group_size, TILES)),
                (writer, (dq_acc_map, shared, task, group_size, 0)),
                (writer, (dq_acc_map, shared, task, group_size, 1)),
            ], [4, 1, 1, 1], [
                CONSUMER_REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS,
            ])  # fmt: skip
        else:
            gl.warp_specialize([
                (consumer, (
                    dk_map, dv_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, seqlen_k, band_lo, band_hi,
                    scale, 0,
                )),
                (consumer, (
                    dk_map, dv_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, seqlen_k, band_lo, band_hi,
                    scale, 1,
                )),
                (producer, (q_map, k_map, v_map, dout_map, row_terms_map, shared, task, group_size, TILES)),
            ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
