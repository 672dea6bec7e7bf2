"""One tile of the scores' gradient, for the kernels that sum it over what a mask or a bias is shared by."""

import triton
import triton.language as tl

from .common import in_band, load_mask, load_row_terms, load_rows, load_tile, probabilities, tile_offsets
from .features import capped, dropout_factor


@triton.jit
def score_gradient(
    b, h, start_m, start_n, q, k, v, mask, dout, lse, row_stats, delta,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    dout_stride_b, dout_stride_h, dout_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_rows, heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, scale,
    features, MASK: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dS = P * (dout v^T - delta) of query head h, [BLOCK_M, BLOCK_N]; 0 past the ends and outside the band.

    It is by the capped scores, which a mask or a bias is added to.
    """
    h_k = h // group_size
    rows = start_m + tl.arange(0, BLOCK_M)
    columns = start_n + tl.arange(0, BLOCK_N)
    in_dim_k = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    in_dim_v = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    q_offsets = tile_offsets(q_stride_s, BLOCK_M, BLOCK_D)
    k_offsets = tile_offsets(k_stride_s, BLOCK_N, BLOCK_D)
    v_offsets = tile_offsets(v_stride_s, BLOCK_N, BLOCK_D)
    dout_offsets = tile_offsets(dout_stride_s, BLOCK_M, BLOCK_D)
    q_head = q + b * q_stride_b + h * q_stride_h
    k_head = k + b * k_stride_b + h_k * k_stride_h
    v_head = v + b * v_stride_b + h_k * v_stride_h
    dout_head = dout + b * dout_stride_b + h * dout_stride_h
    mask_head = mask + b * mask_stride_b + h * mask_stride_h
    row_base = (b * heads_q + h).to(tl.int64) * seqlen_q
    q_tile = load_tile(q_head, start_m, q_stride_s, q_offsets, in_dim_k, seqlen_q, BLOCK_M, True)
    k_tile = load_tile(k_head, start_n, k_stride_s, k_offsets, in_dim_k, seqlen_k, BLOCK_N, True)
    mask_tile = load_mask(mask_head, rows, columns, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k)
    s = tl.dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
    row_term, row_factor = load_row_terms(lse, row_stats, num_rows, row_base, rows, seqlen_q, MASK, True)
    # Rows past the end have P = 0, so they add nothing to a sum over rows.
    keep = in_band(rows[:, None], columns[None, :], seqlen_k, band_lo, band_hi)
    if FEATURES:
        s, _ = capped(s, scale, features)
        scale = 1.0
    p = probabilities(s, scale, mask_tile, keep, row_term[:, None], row_factor[:, None], MASK, True)
    dout_tile = load_tile(dout_head, start_m, dout_stride_s, dout_offsets, in_dim_v, seqlen_q, BLOCK_M, True)
    v_tile = load_tile(v_head, start_n, v_stride_s, v_offsets, in_dim_v, seqlen_k, BLOCK_N, True)
    dp = tl.dot(dout_tile, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N]
    if FEATURES:
        dp *= dropout_factor(b * heads_q + h, rows, start_n, features, BLOCK_M, BLOCK_N)
    row_delta = load_rows(delta + row_base, rows, seqlen_q, 0.0, True)
    return p * (dp - row_delta[:, None])
