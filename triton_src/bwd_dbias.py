"""Backward: a relative bias' gradient, dS summed in fp32 over every pair of query and key the same distance apart."""

import triton
import triton.language as tl

from .score_gradient import score_gradient


@triton.jit
def bwd_dbias(
    q, k, v, mask, rng_state, dout, lse, row_stats, delta, dbias,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    dout_stride_b, dout_stride_h, dout_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_rows, batch, heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi,
    mask_heads, splits, scale,
    softcap, dropout_threshold, dropout_scale,
    MASK: tl.constexpr, FEATURES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One split of one diagonal of square score tiles, [BLOCK_M, BLOCK_M] each, which all hold the same distances.

    The bias stands in the mask's place, read along diagonals by strides of -1 and +1. Grid: splits * mask_heads *
    (query blocks + key blocks - 1), split fastest. Element (r, c) of a tile lies c - r from the tile's own diagonal;
    the sum over a tile's distances 0 to BLOCK_M - 1 goes to dbias[split, head, 0, block], that over -BLOCK_M to -1 to
    dbias[split, head, 1, block], which the caller adds to the former of the block before, in a fixed order.
    """
    tl.static_assert(BLOCK_M == BLOCK_N, "a diagonal of square tiles")
    row_blocks = tl.cdiv(seqlen_q, BLOCK_M)
    column_blocks = tl.cdiv(seqlen_k, BLOCK_M)
    diagonals = row_blocks + column_blocks - 1
    split = tl.program_id(0) % splits
    diagonal = tl.program_id(0) // splits % diagonals
    bias_h = tl.program_id(0) // splits // diagonals

    # Query block m meets key block m + offset, for m in [first, end).
    offset = diagonal - (row_blocks - 1)
    first = tl.maximum(-offset, 0)
    end = tl.minimum(row_blocks, column_blocks - offset)
    nearest = offset * BLOCK_M
    in_reach = (nearest + BLOCK_M > band_lo) & (nearest - BLOCK_M < band_hi)
    loop_m = tl.where(in_reach, end - first, 0)
    loop_h = tl.where(mask_heads == 1, heads_q, 1)
    total = loop_m.to(tl.int64) * loop_h * batch
    acc = tl.zeros((BLOCK_M, BLOCK_M), tl.float32)
    features = (rng_state, softcap, dropout_threshold, dropout_scale)
    for i in tl.range(0, tl.cdiv(total - split, splits)):
        index = split.to(tl.int64) + i * splits
        m = first + (index % loop_m).to(tl.int32)
        index = index // loop_m
        h = bias_h + (index % loop_h).to(tl.int32)
        b = (index // loop_h).to(tl.int32)
        acc += score_gradient(
            b, h, m * BLOCK_M, (m + offset) * BLOCK_M, q, k, v, mask, dout, lse, row_stats, delta,
            q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
            dout_stride_b, dout_stride_h, dout_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
            num_rows, heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, scale,
            features, MASK, FEATURES, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip

    # Row r turned left by r: column d then holds the distance d, or d - BLOCK_M where it came round.
    columns = tl.arange(0, BLOCK_M)
    turned = columns[None, :] + tl.arange(0, BLOCK_M)[:, None]
    acc = tl.gather(acc, turned % BLOCK_M, 1)
    came_round = turned >= BLOCK_M
    # 64-bit: splits * heads * length may pass 2^31.
    plane = (split.to(tl.int64) * mask_heads + bias_h) * 2 * diagonals + diagonal
    tl.store(dbias + plane * BLOCK_M + columns, tl.sum(tl.where(came_round, 0.0, acc), 0))
    tl.store(dbias + (plane + diagonals) * BLOCK_M + columns, tl.sum(tl.where(came_round, acc, 0.0), 0))
