"""The backward's consumers at head_dim 256, where dk and dv of 64 keys fill the registers of two warpgroups.

One warpgroup computes S, P and dv, the other dP, dS and dk, so that each holds one accumulator and multiplies with its
own P or dS from registers; P goes to the other through shared memory, dS comes back. Each adds half of dq's columns.
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

from .barriers import meet
from .keys import LOG2E, ROWS, add_to_dq, load_terms, probabilities


@gluon.aggregate
class Wide:
    """Tiles in shared memory and their barriers: `full` when a tile has been filled, `free` when it has been read."""

    k: gl.shared_memory_descriptor  # [1, 1, 1, ROWS, BLOCK_D]
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor  # [STAGES, 1, 1, ROWS, BLOCK_D]
    dout: gl.shared_memory_descriptor
    row_terms: gl.shared_memory_descriptor  # [STAGES, 1, 1, 2, ROWS], fp32: base-2 LSE and delta of the queries
    p_ds: gl.shared_memory_descriptor  # [4, ROWS, ROWS], keys x queries: two buffers of P, then two of dS
    k_full: gl.shared_memory_descriptor  # [1, 1]
    v_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor  # [STAGES, 1]; row_terms come with q
    q_free: gl.shared_memory_descriptor
    dout_full: gl.shared_memory_descriptor
    dout_free: gl.shared_memory_descriptor
    p_full: gl.shared_memory_descriptor  # [2, 1]
    p_free: gl.shared_memory_descriptor
    ds_full: gl.shared_memory_descriptor
    ds_free: gl.shared_memory_descriptor
    BLOCK_D: gl.constexpr
    STAGES: gl.constexpr


@gluon.jit
def dq_half(shared, buffer, HALF: gl.constexpr):
    """[64 queries, 128 columns of head_dim] of dS k."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    k = shared.k.index(0).reshape([ROWS, shared.BLOCK_D]).slice(HALF * 128, 128, dim=1)
    zeros = gl.zeros((ROWS, 128), gl.float32, layout)
    return warpgroup_mma(shared.p_ds.index(2 + buffer).permute((1, 0)), k, zeros, use_acc=False, is_async=True)


@gluon.jit
def add_first_half(acc, shared, block):
    """The first half of dq's columns for a block whose dS may still be on its way."""
    buffer = block & 1
    mbarrier.wait(shared.ds_full.index(buffer), (block >> 1) & 1)
    dq = dq_half(shared, buffer, 0)
    dq = warpgroup_mma_wait(0, deps=(dq,))
    mbarrier.arrive(shared.ds_free.index(buffer), count=1)
    add_to_dq(acc, dq)


@gluon.jit
def dv_and_p(dv_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, seqlen_k, band_lo, band_hi, scale):
    """The first warpgroup. Its half of dq is a block late: by then the other one has finished dS."""
    BLOCK_D: gl.constexpr = shared.BLOCK_D
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    dtype: gl.constexpr = shared.k.dtype
    scale2 = scale * LOG2E
    k = shared.k.index(0).reshape([ROWS, BLOCK_D])
    keys = task.start_n + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
    blocks_m = (seqlen_q + ROWS - 1) // ROWS
    dv = gl.zeros((ROWS, BLOCK_D), gl.float32, acc_layout)
    mbarrier.wait(shared.k_full.index(0), 0)
    block = 0
    acc_before = dq_acc
    for g in range(group_size):
        # 64-bit: batch * heads * seqlen * head_dim may pass 2^31.
        head_index = (task.b * heads_q + task.h_k * group_size + g).to(gl.int64)
        acc = dq_acc + head_index * blocks_m * (ROWS * BLOCK_D)
        for step in range(task.first, task.end):
            i = task.query_block(step)
            stage = block % shared.STAGES
            parity = (block // shared.STAGES) & 1
            buffer = block & 1
            q = shared.q.index(stage).reshape([ROWS, BLOCK_D])
            dout = shared.dout.index(stage).reshape([ROWS, BLOCK_D])
            zeros = gl.zeros((ROWS, ROWS), gl.float32, s_layout)
            mbarrier.wait(shared.q_full.index(stage), parity)
            lse2 = load_terms(shared.row_terms.index(stage), 0, s_layout)  # before the product, as in bwd.py
            s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)  # [keys, queries]
            s = warpgroup_mma_wait(0, deps=(s,))
            p = probabilities(s, lse2, scale2, i, keys, task, seqlen_k, band_lo, band_hi).to(dtype)
            mbarrier.wait(shared.p_free.index(buffer), ((block >> 1) & 1) ^ 1)
            shared.p_ds.index(buffer).store(p)
            mbarrier.arrive(shared.p_full.index(buffer), count=1)
            mbarrier.wait(shared.dout_full.index(stage), parity)
            dv = warpgroup_mma(gl.convert_layout(p, a_layout), dout, dv, is_async=True)
            if block > 0:
                add_first_half(acc_before, shared, block - 1)
            dv = warpgroup_mma_wait(0, deps=(dv,))
            mbarrier.arrive(shared.dout_free.index(stage), count=1)
            mbarrier.arrive(shared.q_free.index(stage), count=1)
            acc_before = acc + i * (ROWS * BLOCK_D)
            block += 1
    if block > 0:
        add_first_half(acc_before, shared, block - 1)
    # k and v have been read: dk and dv leave through their memory.
    meet()
    shared.v.index(0).reshape([ROWS, BLOCK_D]).store(dv.to(dtype))
    fence_async_shared()
    tma.async_store(dv_map, [task.b, task.h_k, task.start_n, 0], shared.v.index(0))
    tma.store_wait(0)


@gluon.jit
def dk_and_dp(dk_map, dq_acc, shared, task, heads_q, group_size, seqlen_q, scale):
    """The second warpgroup."""
    BLOCK_D: gl.constexpr = shared.BLOCK_D
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    dtype: gl.constexpr = shared.k.dtype
    v = shared.v.index(0).reshape([ROWS, BLOCK_D])
    blocks_m = (seqlen_q + ROWS - 1) // ROWS
    dk = gl.zeros((ROWS, BLOCK_D), gl.float32, acc_layout)
    mbarrier.wait(shared.k_full.index(0), 0)
    mbarrier.wait(shared.v_full.index(0), 0)
    block = 0
    for g in range(group_size):
        head_index = (task.b * heads_q + task.h_k * group_size + g).to(gl.int64)
        acc = dq_acc + head_index * blocks_m * (ROWS * BLOCK_D) + ROWS * BLOCK_D // 2
        for step in range(task.first, task.end):
            i = task.query_block(step)
            stage = block % shared.STAGES
            parity = (block // shared.STAGES) & 1
            buffer = block & 1
            turn = (block >> 1) & 1
            q = shared.q.index(stage).reshape([ROWS, BLOCK_D])
            dout = shared.dout.index(stage).reshape([ROWS, BLOCK_D])
            zeros = gl.zeros((ROWS, ROWS), gl.float32, s_layout)
            mbarrier.wait(shared.dout_full.index(stage), parity)
            dp = warpgroup_mma(v, dout.permute((1, 0)), zeros, use_acc=False, is_async=True)  # [keys, queries]
            mbarrier.wait(shared.q_full.index(stage), parity)
            delta = load_terms(shared.row_terms.index(stage), 1, s_layout)
            mbarrier.wait(shared.p_full.index(buffer), turn)
            p = shared.p_ds.index(buffer).load(s_layout)
            dp = warpgroup_mma_wait(0, deps=(dp,))
            mbarrier.arrive(shared.dout_free.index(stage), count=1)
            mbarrier.arrive(shared.p_free.index(buffer), count=1)
            ds = (p.to(gl.float32) * (dp - delta)).to(dtype)
            mbarrier.wait(shared.ds_free.index(buffer), turn ^ 1)
            shared.p_ds.index(2 + buffer).store(ds)
            fence_async_shared()
            mbarrier.arrive(shared.ds_full.index(buffer), count=1)
            dq = dq_half(shared, buffer, 1)
            dk = warpgroup_mma(gl.convert_layout(ds, a_layout), q, dk, is_async=True)
            dq = warpgroup_mma_wait(1, deps=(dq,))
            add_to_dq(acc + i * (ROWS * BLOCK_D), dq)
            dk = warpgroup_mma_wait(0, deps=(dk,))
            mbarrier.arrive(shared.q_free.index(stage), count=1)
            block += 1
    meet()
    shared.k.index(0).reshape([ROWS, BLOCK_D]).store((dk * scale).to(dtype))
    fence_async_shared()
    tma.async_store(dk_map, [task.b, task.h_k, task.start_n, 0], shared.k.index(0))
    tma.store_wait(0)
