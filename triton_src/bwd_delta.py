"""Backward, first pass: delta = sum(out * dout, -1) - dlse, the term that every dS subtracts."""

import triton
import triton.language as tl

from .common import load_tile, tile_offsets


@triton.jit
def bwd_delta(
    out, dout, dlse, delta,
    out_stride_b, out_stride_h, out_stride_s, dout_stride_b, dout_stride_h, dout_stride_s,
    heads_q, seqlen_q, head_dim_v, has_dlse,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One block of rows of one head. Grid: cdiv(seqlen_q, BLOCK_M) * batch * heads_q.

    d lse / d s = P, so a gradient through the LSE joins the softmax's own term: dS = P * (dP - (delta - dlse)).
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
    row_delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)

    rows = start_m + tl.arange(0, BLOCK_M)
    in_rows = rows < seqlen_q
    row_base = head_index.to(tl.int64) * seqlen_q
    # A null dlse is never read: with no row to load the predicate is false everywhere.
    rows_dlse = tl.where(has_dlse != 0, seqlen_q, 0)
    row_delta -= tl.load(dlse + row_base + rows, mask=rows < rows_dlse, other=0.0)
    tl.store(delta + row_base + rows, row_delta, mask=in_rows)
