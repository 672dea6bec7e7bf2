"""Backward: the additive mask's gradient, dS summed in fp32 over every dimension along which the mask is broadcast."""

import triton
import triton.language as tl

from .score_gradient import score_gradient


@triton.jit
def bwd_dmask(
    q, k, v, mask, rng_state, dout, lse, row_stats, delta, dmask,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    dout_stride_b, dout_stride_h, dout_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_rows, batch, heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi,
    mask_batch, mask_heads, mask_rows, mask_columns, splits, scale,
    softcap, dropout_threshold, dropout_scale,
    MASK: tl.constexpr, FEATURES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One split of one tile of the mask: every splits-th score tile that the mask tile is broadcast over.

    Grid: splits * mask_batch * mask_heads * cdiv(mask_rows, BLOCK_M) * cdiv(mask_columns, BLOCK_N), split fastest.
    Writes its partial sum to dmask[split]; the caller adds the splits, in a fixed order.
    """
    row_blocks = tl.cdiv(mask_rows, BLOCK_M)
    column_blocks = tl.cdiv(mask_columns, BLOCK_N)
    split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits
    tile_n = tile % column_blocks
    tile_m = tile // column_blocks % row_blocks
    tile_h = tile // column_blocks // row_blocks % mask_heads
    tile_b = tile // column_blocks // row_blocks // mask_heads

    # How often the tile is used along each dimension: a mask of size 1 there serves every index, else only its own.
    loop_n = tl.where(mask_columns == 1, tl.cdiv(seqlen_k, BLOCK_N), 1)
    loop_m = tl.where(mask_rows == 1, tl.cdiv(seqlen_q, BLOCK_M), 1)
    loop_h = tl.where(mask_heads == 1, heads_q, 1)
    loop_b = tl.where(mask_batch == 1, batch, 1)
    total = loop_n.to(tl.int64) * loop_m * loop_h * loop_b

    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    features = (rng_state, softcap, dropout_threshold, dropout_scale)
    for i in tl.range(0, tl.cdiv(total - split, splits)):
        index = split.to(tl.int64) + i * splits
        start_n = (tile_n + (index % loop_n).to(tl.int32)) * BLOCK_N
        index = index // loop_n
        start_m = (tile_m + (index % loop_m).to(tl.int32)) * BLOCK_M
        index = index // loop_m
        h = tile_h + (index % loop_h).to(tl.int32)
        b = tile_b + (index // loop_h).to(tl.int32)
        # The tile's upper right corner lies above the band's lower edge, its lower left corner below the upper one.
        if (start_n + BLOCK_N > start_m + band_lo) & (start_n < start_m + BLOCK_M + band_hi):
            acc += score_gradient(
                b, h, start_m, start_n, q, k, v, mask, dout, lse, row_stats, delta,
                q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s,
                v_stride_b, v_stride_h, v_stride_s, dout_stride_b, dout_stride_h, dout_stride_s,
                mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
                num_rows, heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, scale,
                features, MASK, FEATURES, BLOCK_M, BLOCK_N, BLOCK_D,
            )  # fmt: skip

    # 64-bit: splits * the mask's elements may pass 2^31.
    plane = (split.to(tl.int64) * mask_batch + tile_b) * mask_heads + tile_h
    dmask += plane * mask_rows * mask_columns
    # A dimension of size 1 has had all its blocks summed into one tile: sum over it and store its only index.
    if mask_rows == 1:
        acc = tl.where(tl.arange(0, BLOCK_M)[:, None] == 0, tl.sum(acc, 0)[None, :], 0.0)
    if mask_columns == 1:
        acc = tl.where(tl.arange(0, BLOCK_N)[None, :] == 0, tl.sum(acc, 1)[:, None], 0.0)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < mask_rows)[:, None] & (columns < mask_columns)[None, :]
    tl.store(dmask + rows[:, None].to(tl.int64) * mask_columns + columns[None, :], acc, mask=inside)
