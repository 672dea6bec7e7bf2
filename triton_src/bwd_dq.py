"""Backward: dq = scale * dS k, dS = P * (dout v^T - delta)."""

import triton
import triton.language as tl

from .common import (
    block_ranges,
    edge_block,
    in_band,
    load_mask,
    load_row_terms,
    load_rows,
    load_tile,
    probabilities,
    tile_offsets,
)
from .features import capped, dropout_factor
from .packed import sequence, sequence_band


@triton.jit
def dq_blocks(
    dq_acc, q_tile, dout_tile, row_delta, row_term, row_factor, k, v, mask, rows, head_index, count, first, full_first,
    full_end, k_stride_s, v_stride_s, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo,
    band_hi, scale, features, MASK: tl.constexpr, FEATURES: tl.constexpr, EDGE: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`count` key blocks: with EDGE those that need a mask, else the full ones from `full_first` on."""
    k_offsets = tile_offsets(k_stride_s, BLOCK_N, BLOCK_D)
    v_offsets = tile_offsets(v_stride_s, BLOCK_N, BLOCK_D)
    in_dim_k = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    in_dim_v = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    # As in the forward.
    unit = 1.0 if FEATURES else scale
    for i in tl.range(0, count):
        if EDGE:
            start = edge_block(i, first, full_first, full_end) * BLOCK_N
        else:
            start = (full_first + i) * BLOCK_N
        columns = start + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k, start, k_stride_s, k_offsets, in_dim_k, seqlen_k, BLOCK_N, EDGE)  # [BLOCK_N, BLOCK_D]
        v_tile = load_tile(v, start, v_stride_s, v_offsets, in_dim_v, seqlen_k, BLOCK_N, EDGE)  # [BLOCK_N, BLOCK_D]
        mask_tile = 0
        keep = 0
        if MASK != 0:
            # Before the product, as in the forward.
            mask_tile = load_mask(mask, rows, columns, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k)
        s = tl.dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
        if EDGE:
            keep = in_band(rows[:, None], columns[None, :], seqlen_k, band_lo, band_hi)
        if FEATURES:
            s, slope = capped(s, scale, features)
        p = probabilities(s, unit, mask_tile, keep, row_term[:, None], row_factor[:, None], MASK, EDGE)
        dp = tl.dot(dout_tile, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N]
        if FEATURES:
            dp *= dropout_factor(head_index, rows, start, features, p.shape[0], BLOCK_N)
        ds = p * (dp - row_delta[:, None])
        if FEATURES:
            ds *= slope
        dq_acc = tl.dot(ds.to(k_tile.dtype), k_tile, dq_acc)  # [BLOCK_M, BLOCK_D]
    return dq_acc


@triton.jit
def bwd_dq(
    q, k, v, mask, rng_state, cu_seqlens_q, cu_seqlens_k, dout, lse, row_stats, delta, dq,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    dout_stride_b, dout_stride_h, dout_stride_s, dq_stride_b, dq_stride_h, dq_stride_s,
    mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_rows, lse_stride_b, lse_stride_h, heads_q, group_size, seqlen_q, seqlen_k, max_seqlen_q, is_packed,
    head_dim, head_dim_v, band_lo, band_hi, band_follows, scale, softcap, dropout_threshold, dropout_scale,
    MASK: tl.constexpr, FEATURES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. Grid: cdiv(max_seqlen_q, BLOCK_M) * batch * heads_q."""
    num_blocks = tl.cdiv(max_seqlen_q, BLOCK_M)
    # Longest first under causality, as in the forward.
    start_m = (num_blocks - 1 - tl.program_id(0) % num_blocks) * BLOCK_M
    head_index = tl.program_id(0) // num_blocks
    b = head_index // heads_q
    h = head_index % heads_q
    h_k = h // group_size
    first_q, seqlen_q, first_k, seqlen_k = sequence(cu_seqlens_q, cu_seqlens_k, b, seqlen_q, seqlen_k, is_packed, MASK)
    if start_m >= seqlen_q:
        return
    q += b * q_stride_b + h * q_stride_h + first_q * q_stride_s
    k += b * k_stride_b + h_k * k_stride_h + first_k * k_stride_s
    v += b * v_stride_b + h_k * v_stride_h + first_k * v_stride_s
    dout += b * dout_stride_b + h * dout_stride_h + first_q * dout_stride_s
    dq += b * dq_stride_b + h * dq_stride_h + first_q * dq_stride_s
    band_lo, band_hi = sequence_band(band_lo, band_hi, band_follows, seqlen_q, seqlen_k, MASK)
    mask += b * mask_stride_b + h * mask_stride_h

    rows = start_m + tl.arange(0, BLOCK_M)
    in_rows = rows < seqlen_q
    in_dim_k = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    in_dim_v = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    q_offsets = tile_offsets(q_stride_s, BLOCK_M, BLOCK_D)
    dout_offsets = tile_offsets(dout_stride_s, BLOCK_M, BLOCK_D)
    q_tile = load_tile(q, start_m, q_stride_s, q_offsets, in_dim_k, seqlen_q, BLOCK_M, True)
    dout_tile = load_tile(dout, start_m, dout_stride_s, dout_offsets, in_dim_v, seqlen_q, BLOCK_M, True)
    row_base = b * lse_stride_b + h * lse_stride_h + first_q
    row_delta = load_rows(delta + row_base, rows, seqlen_q, 0.0, True)
    row_term, row_factor = load_row_terms(lse, row_stats, num_rows, row_base, rows, seqlen_q, MASK, True)
    dq_acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    first, full_first, full_end, end = block_ranges(start_m, seqlen_q, seqlen_k, band_lo, band_hi, BLOCK_M, BLOCK_N)
    if FEATURES:
        full_end = full_first  # one loop for all blocks: with two, these kernels would be twice as large
    full = full_end - full_first
    features = (rng_state, softcap, dropout_threshold, dropout_scale)
    if not FEATURES:
        dq_acc = dq_blocks(
            dq_acc, q_tile, dout_tile, row_delta, row_term, row_factor, k, v, mask, rows, head_index, full, first,
            full_first, full_end, k_stride_s, v_stride_s, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k, head_dim,
            head_dim_v, band_lo, band_hi, scale, features, MASK, FEATURES, False, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    dq_acc = dq_blocks(
        dq_acc, q_tile, dout_tile, row_delta, row_term, row_factor, k, v, mask, rows, head_index, end - first - full,
        first, full_first, full_end, k_stride_s, v_stride_s, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k, head_dim,
        head_dim_v, band_lo, band_hi, scale, features, MASK, FEATURES, True, BLOCK_N, BLOCK_D,
    )  # fmt: skip

    dq_tile = dq + start_m * dq_stride_s + tile_offsets(dq_stride_s, BLOCK_M, BLOCK_D)
    tl.store(dq_tile, (dq_acc * scale).to(dq.dtype.element_ty), mask=in_rows[:, None] & in_dim_k)
