"""Backward on Hopper, first pass: what every P and dS is computed from, and an accumulator of dq that holds zeros."""

import triton
import triton.language as tl

from .common import LOG2E, load_tile, tile_offsets


@triton.jit
def bwd_terms(
    out, dout, lse, dlse, row_terms, dq_acc,
    out_stride_b, out_stride_h, out_stride_s, dout_stride_b, dout_stride_h, dout_stride_s,
    heads_q, seqlen_q, head_dim_v, has_dlse,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One block of rows of one head. Grid: cdiv(seqlen_q, BLOCK_M) * batch * heads_q.

    row_terms holds, for each block, BLOCK_M base-2 LSE and BLOCK_M delta = sum(out * dout) - dlse (see bwd_delta), each
    in the order of `position`. A row that sees no key, and one past the end, gets the LSE inf, so that P = 0.
    """
    num_blocks = tl.cdiv(seqlen_q, BLOCK_M)
    start_m = tl.program_id(0) % num_blocks * BLOCK_M
    head_index = tl.program_id(0) // num_blocks
    b = head_index // heads_q
    h = head_index % heads_q
    out += b * out_stride_b + h * out_stride_h
    dout += b * dout_stride_b + h * dout_stride_h

    in_dim = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    out_offsets = tile_offsets(out_stride_s, BLOCK_M, BLOCK_D)
    dout_offsets = tile_offsets(dout_stride_s, BLOCK_M, BLOCK_D)
    out_tile = load_tile(out, start_m, out_stride_s, out_offsets, in_dim, seqlen_q, BLOCK_M, True)
    dout_tile = load_tile(dout, start_m, dout_stride_s, dout_offsets, in_dim, seqlen_q, BLOCK_M, True)
    delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)

    rows = start_m + tl.arange(0, BLOCK_M)
    # 64-bit: batch * heads * seqlen * head_dim may pass 2^31.
    row_base = head_index.to(tl.int64) * seqlen_q
    # A null dlse is never read: with no row to load the predicate is false everywhere.
    rows_dlse = tl.where(has_dlse != 0, seqlen_q, 0)
    delta -= tl.load(dlse + row_base + rows, mask=rows < rows_dlse, other=0.0)
    lse2 = tl.load(lse + row_base + rows, mask=rows < seqlen_q, other=float("-inf")) * LOG2E
    lse2 = tl.where(lse2 == float("-inf"), float("inf"), lse2)

    block = tl.program_id(0).to(tl.int64)
    # A thread of the Hopper kernel has columns 2 t and 2 t + 1 of every eight: t-th in each eight, they lie together.
    row = tl.arange(0, BLOCK_M)
    position = row // 64 * 64 + row // 2 % 4 * 16 + row // 8 % 8 * 2 + row % 2
    row_terms += block * (2 * BLOCK_M)
    tl.store(row_terms + position, lse2)
    tl.store(row_terms + BLOCK_M + position, delta)
    tl.store(dq_acc + block * (BLOCK_M * BLOCK_D) + tl.arange(0, BLOCK_M * BLOCK_D), 0.0)
