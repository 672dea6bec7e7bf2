"""Backward: dv = P^T dout and dk = scale * dS^T q, summed over the query heads that share a key head."""

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
def dkdv_head(
    dk_acc, dv_acc, k_tile, v_tile, q, dout, mask, lse, row_stats, delta, b, h, columns,
    count, first, full_first, full_end, q_stride_b, q_stride_h, q_stride_s,
    dout_stride_b, dout_stride_h, dout_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_rows, lse_stride_b, lse_stride_h, first_q, heads_q, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi,
    scale, features, start_n, MASK: tl.constexpr, FEATURES: tl.constexpr, EDGE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`count` query blocks of one head: with EDGE those that need a mask, else the full ones from `full_first` on.

    Everything is transposed, so that P^T and dS^T are left operands and can stay in registers.
    """
    q += b * q_stride_b + h * q_stride_h + first_q * q_stride_s
    dout += b * dout_stride_b + h * dout_stride_h + first_q * dout_stride_s
    mask += b * mask_stride_b + h * mask_stride_h
    row_base = b * lse_stride_b + h * lse_stride_h + first_q
    q_offsets = tile_offsets(q_stride_s, BLOCK_M, BLOCK_D)
    dout_offsets = tile_offsets(dout_stride_s, BLOCK_M, BLOCK_D)
    in_dim_k = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    in_dim_v = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    # As in the forward.
    unit = 1.0 if FEATURES else scale
    # With a mask the edges are not pipelined: few blocks, and it halves code and spills.
    for i in tl.range(0, count, num_stages=1 if EDGE and MASK != 0 and not FEATURES else None):
        if EDGE:
            start = edge_block(i, first, full_first, full_end) * BLOCK_M
        else:
            start = (full_first + i) * BLOCK_M
        rows = start + tl.arange(0, BLOCK_M)
        q_tile = load_tile(q, start, q_stride_s, q_offsets, in_dim_k, seqlen_q, BLOCK_M, EDGE)  # [BLOCK_M, BLOCK_D]
        row_term, row_factor = load_row_terms(lse, row_stats, num_rows, row_base, rows, seqlen_q, MASK, EDGE)
        mask_tile = 0
        keep = 0
        if MASK != 0:
            # Before the product, as in the forward. [BLOCK_M, BLOCK_N] is how keys lie side by side in memory.
            mask_tile = tl.trans(load_mask(mask, rows, columns, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k))
        s_t = tl.dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M]
        if EDGE:
            keep = in_band(rows[None, :], columns[:, None], seqlen_k, band_lo, band_hi)
        if FEATURES:
            s_t, slope = capped(s_t, scale, features)
        p_t = probabilities(s_t, unit, mask_tile, keep, row_term[None, :], row_factor[None, :], MASK, EDGE)
        dout_tile = load_tile(dout, start, dout_stride_s, dout_offsets, in_dim_v, seqlen_q, BLOCK_M, EDGE)
        dropped = p_t
        if FEATURES:
            factor = tl.trans(dropout_factor(b * heads_q + h, rows, start_n, features, BLOCK_M, BLOCK_N))
            dropped *= factor
        dv_acc = tl.dot(dropped.to(dout_tile.dtype), dout_tile, dv_acc)  # [BLOCK_N, BLOCK_D]
        row_delta = load_rows(delta + row_base, rows, seqlen_q, 0.0, EDGE)
        dp_t = tl.dot(v_tile, tl.trans(dout_tile))  # [BLOCK_N, BLOCK_M]
        if FEATURES:
            dp_t *= factor
        ds_t = p_t * (dp_t - row_delta[None, :])
        if FEATURES:
            ds_t *= slope
        dk_acc = tl.dot(ds_t.to(q_tile.dtype), q_tile, dk_acc)  # [BLOCK_N, BLOCK_D]
    return dk_acc, dv_acc


@triton.jit
def bwd_dkdv(
    q, k, v, mask, rng_state, cu_seqlens_q, cu_seqlens_k, dout, lse, row_stats, delta, dk, dv,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    dout_stride_b, dout_stride_h, dout_stride_s, dk_stride_b, dk_stride_h, dk_stride_s,
    dv_stride_b, dv_stride_h, dv_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_rows, lse_stride_b, lse_stride_h, heads_q, group_size, seqlen_q, seqlen_k, max_seqlen_k, is_packed,
    head_dim, head_dim_v, band_lo, band_hi, band_follows, scale, softcap, dropout_threshold, dropout_scale,
    MASK: tl.constexpr, FEATURES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One block of keys of one key head. Grid: cdiv(max_seqlen_k, BLOCK_N) * batch * heads_k."""
    num_blocks = tl.cdiv(max_seqlen_k, BLOCK_N)
    # Under causality the first block has the most queries, so this order is longest first.
    start_n = tl.program_id(0) % num_blocks * BLOCK_N
    head_index = tl.program_id(0) // num_blocks
    heads_k = heads_q // group_size
    b = head_index // heads_k
    h_k = head_index % heads_k
    first_q, seqlen_q, first_k, seqlen_k = sequence(cu_seqlens_q, cu_seqlens_k, b, seqlen_q, seqlen_k, is_packed, MASK)
    k += b * k_stride_b + h_k * k_stride_h + first_k * k_stride_s
    v += b * v_stride_b + h_k * v_stride_h + first_k * v_stride_s
    dk += b * dk_stride_b + h_k * dk_stride_h + first_k * dk_stride_s
    dv += b * dv_stride_b + h_k * dv_stride_h + first_k * dv_stride_s
    band_lo, band_hi = sequence_band(band_lo, band_hi, band_follows, seqlen_q, seqlen_k, MASK)

    columns = start_n + tl.arange(0, BLOCK_N)
    in_dim_k = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    in_dim_v = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    k_offsets = tile_offsets(k_stride_s, BLOCK_N, BLOCK_D)
    v_offsets = tile_offsets(v_stride_s, BLOCK_N, BLOCK_D)
    k_tile = load_tile(k, start_n, k_stride_s, k_offsets, in_dim_k, seqlen_k, BLOCK_N, True)
    v_tile = load_tile(v, start_n, v_stride_s, v_offsets, in_dim_v, seqlen_k, BLOCK_N, True)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)

    # Keys past the end need no edge: each key's gradient is a row of its own here, and theirs is not stored.
    first, full_first, full_end, end = block_ranges(start_n, seqlen_k, seqlen_q, -band_hi, -band_lo, BLOCK_N, BLOCK_M)
    if FEATURES:
        full_end = full_first  # as in the forward
    full = full_end - full_first
    features = (rng_state, softcap, dropout_threshold, dropout_scale)
    # Past a packed sequence's end there is nothing to do; a return here costs 64 bytes of spills.
    heads = tl.where(start_n < seqlen_k, group_size, 0)
    # Two loops over the group rather than one with both bodies: less stays live, which is what spilled.
    if not FEATURES:
        for g in tl.range(0, heads):
            dk_acc, dv_acc = dkdv_head(
                dk_acc, dv_acc, k_tile, v_tile, q, dout, mask, lse, row_stats, delta, b, h_k * group_size + g, columns,
                full, first, full_first, full_end, q_stride_b, q_stride_h, q_stride_s,
                dout_stride_b, dout_stride_h, dout_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
                num_rows, lse_stride_b, lse_stride_h, first_q, heads_q, seqlen_q, seqlen_k, head_dim, head_dim_v,
                band_lo, band_hi, scale, features, start_n, MASK, FEATURES, False, BLOCK_M, BLOCK_N, BLOCK_D,
            )  # fmt: skip
    for g in tl.range(0, heads):
        dk_acc, dv_acc = dkdv_head(
            dk_acc, dv_acc, k_tile, v_tile, q, dout, mask, lse, row_stats, delta, b, h_k * group_size + g, columns,
            end - first - full, first, full_first, full_end, q_stride_b, q_stride_h, q_stride_s,
            dout_stride_b, dout_stride_h, dout_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
            num_rows, lse_stride_b, lse_stride_h, first_q, heads_q, seqlen_q, seqlen_k, head_dim, head_dim_v,
            band_lo, band_hi, scale, features, start_n, MASK, FEATURES, True, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip

    in_columns = (columns < seqlen_k)[:, None]
    dk_tile = dk + start_n * dk_stride_s + tile_offsets(dk_stride_s, BLOCK_N, BLOCK_D)
    dv_tile = dv + start_n * dv_stride_s + tile_offsets(dv_stride_s, BLOCK_N, BLOCK_D)
    tl.store(dk_tile, (dk_acc * scale).to(dk.dtype.element_ty), mask=in_columns & in_dim_k)
    tl.store(dv_tile, dv_acc.to(dv.dtype.element_ty), mask=in_columns & in_dim_v)
