"""Forward: out = softmax(scale * q k^T + mask) v over the band, by online softmax (FlashAttention-2, algorithm 1)."""

import triton
import triton.language as tl

from .common import LN2, LOG2E, block_ranges, edge_block, in_band, load_mask, load_tile, mask_scores, tile_offsets
from .features import capped, dropout_factor
from .packed import sequence, sequence_band


@triton.jit
def fwd_blocks(
    acc, row_max, row_sum, q_tile, k, v, mask, rows, head_index, count, first, full_first, full_end,
    k_stride_s, v_stride_s, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi,
    scale, features, MASK: tl.constexpr, FEATURES: tl.constexpr, EDGE: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`count` key blocks: with EDGE those that need a mask, else the full ones from `full_first` on.

    row_max is in base-2 units without a mask (scale * log2e rides on one FMA) and in natural units with one.
    """
    k_offsets = tile_offsets(k_stride_s, BLOCK_N, BLOCK_D)
    v_offsets = tile_offsets(v_stride_s, BLOCK_N, BLOCK_D)
    in_dim_k = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    in_dim_v = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    # What is left to do to the scores: capping has them scaled.
    unit = 1.0 if FEATURES else scale
    for i in tl.range(0, count):
        if EDGE:
            start = edge_block(i, first, full_first, full_end) * BLOCK_N
        else:
            start = (full_first + i) * BLOCK_N
        k_tile = load_tile(k, start, k_stride_s, k_offsets, in_dim_k, seqlen_k, BLOCK_N, EDGE)  # [BLOCK_N, BLOCK_D]
        columns = start + tl.arange(0, BLOCK_N)
        if MASK != 0:
            # Before the product: its latency is hidden, and Triton then keeps the softmax in the product's layout
            # (after it, 16-bit and boolean masks made it compute the softmax twice, in two layouts).
            mask_tile = load_mask(mask, rows, columns, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k)
        s = tl.dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
        if FEATURES:
            s, _ = capped(s, scale, features)
        if MASK != 0:
            s = mask_scores(s, unit, mask_tile, MASK)
        elif EDGE:
            # Scaled before masking, as a scale of 0 times -inf would be NaN.
            s = s * (unit * LOG2E)
        if EDGE:
            s = tl.where(in_band(rows[:, None], columns[None, :], seqlen_k, band_lo, band_hi), s, float("-inf"))
        if MASK != 0 or EDGE:
            new_max = tl.maximum(row_max, tl.max(s, 1))
            # A row that has seen no key yet: 0 keeps -inf - (-inf) out, and exp2(-inf) is the 0 that is wanted.
            safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
            if MASK != 0:
                p = tl.math.exp2((s - safe_max[:, None]) * LOG2E)
                alpha = tl.math.exp2((row_max - safe_max) * LOG2E)
            else:
                p = tl.math.exp2(s - safe_max[:, None])
                alpha = tl.math.exp2(row_max - safe_max)
        else:
            new_max = tl.maximum(row_max, tl.max(s, 1) * (unit * LOG2E))
            p = tl.math.exp2(s * (unit * LOG2E) - new_max[:, None])
            alpha = tl.math.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        if FEATURES:
            # After the sum: dropout leaves out values, not their share of the softmax.
            p *= dropout_factor(head_index, rows, start, features, p.shape[0], BLOCK_N)
        v_tile = load_tile(v, start, v_stride_s, v_offsets, in_dim_v, seqlen_k, BLOCK_N, EDGE)  # [BLOCK_N, BLOCK_D]
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc)  # [BLOCK_M, BLOCK_D]
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def add_sink(acc, row_max, row_sum, sink, has_sink, MASK: tl.constexpr):
    """The head's sink joins each row's sum, without a value. Without one nothing changes, to the bit."""
    units: tl.constexpr = 1.0 if MASK == 0 else LOG2E  # of row_max, to base 2
    # A null pointer is never read: the predicate is false.
    logit = tl.load(sink, mask=has_sink != 0, other=float("-inf")) * (LOG2E / units)
    new_max = tl.maximum(row_max, logit)
    safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
    alpha = tl.math.exp2((row_max - safe_max) * units)
    row_sum = row_sum * alpha + tl.math.exp2((logit - safe_max) * units)
    return acc * alpha[:, None], new_max, row_sum


@triton.jit
def fwd(
    q, k, v, mask, sinks, rng_state, cu_seqlens_q, cu_seqlens_k, out, lse, row_stats,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    out_stride_b, out_stride_h, out_stride_s, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_rows, lse_stride_b, lse_stride_h, heads_q, group_size, seqlen_q, seqlen_k, max_seqlen_q, is_packed,
    head_dim, head_dim_v, band_lo, band_hi, band_follows, has_sinks, scale, softcap, dropout_threshold, dropout_scale,
    MASK: tl.constexpr, FEATURES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. Grid: cdiv(max_seqlen_q, BLOCK_M) * batch * heads_q.

    Writes out, lse and, with a mask, row_stats. A row without a visible key: out 0, lse -inf, row_stats (-inf, 0);
    with a sink lse is its logit, row_stats (logit, 1).
    """
    num_blocks = tl.cdiv(max_seqlen_q, BLOCK_M)
    # Under causality the last block has the most keys: first in, so that short ones fill the tail.
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
    out += b * out_stride_b + h * out_stride_h + first_q * out_stride_s
    band_lo, band_hi = sequence_band(band_lo, band_hi, band_follows, seqlen_q, seqlen_k, MASK)
    mask += b * mask_stride_b + h * mask_stride_h

    rows = start_m + tl.arange(0, BLOCK_M)
    in_dim_k = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    q_offsets = tile_offsets(q_stride_s, BLOCK_M, BLOCK_D)
    q_tile = load_tile(q, start_m, q_stride_s, q_offsets, in_dim_k, seqlen_q, BLOCK_M, True)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)

    first, full_first, full_end, end = block_ranges(start_m, seqlen_q, seqlen_k, band_lo, band_hi, BLOCK_M, BLOCK_N)
    if FEATURES:
        full_end = full_first  # one loop for all blocks: with two, these kernels would be twice as large
    full = full_end - full_first
    features = (rng_state, softcap, dropout_threshold, dropout_scale)
    if not FEATURES:
        acc, row_max, row_sum = fwd_blocks(
            acc, row_max, row_sum, q_tile, k, v, mask, rows, head_index, full, first, full_first, full_end,
            k_stride_s, v_stride_s, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo,
            band_hi, scale, features, MASK, FEATURES, False, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    acc, row_max, row_sum = fwd_blocks(
        acc, row_max, row_sum, q_tile, k, v, mask, rows, head_index, end - first - full, first, full_first, full_end,
        k_stride_s, v_stride_s, mask_stride_q, mask_stride_k, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo,
        band_hi, scale, features, MASK, FEATURES, True, BLOCK_N, BLOCK_D,
    )  # fmt: skip

    acc, row_max, row_sum = add_sink(acc, row_max, row_sum, sinks + h, has_sinks, MASK)
    in_rows = rows < seqlen_q
    acc = acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    in_dim_v = (tl.arange(0, BLOCK_D) < head_dim_v)[None, :]
    out_tile = out + start_m * out_stride_s + tile_offsets(out_stride_s, BLOCK_M, BLOCK_D)
    tl.store(out_tile, acc.to(out.dtype.element_ty), mask=in_rows[:, None] & in_dim_v)

    row_base = b * lse_stride_b + h * lse_stride_h + first_q
    # log2(0) = -inf makes the LSE of a row without keys -inf by itself.
    row_lse = tl.math.log2(row_sum) * LN2
    if MASK == 0:
        row_lse += row_max * LN2
    else:
        row_lse += row_max
        tl.store(row_stats + row_base + rows, row_max, mask=in_rows)
        tl.store(row_stats + num_rows + row_base + rows, row_sum, mask=in_rows)
    tl.store(lse + row_base + rows, row_lse, mask=in_rows)
