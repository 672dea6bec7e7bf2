"""What the kernels share: block ranges of the band, tile loads that stay inside the tensor, masked scores, and P.

Strides are i64 in every ahead-of-time signature, so `index * stride` is a 64-bit product with no cast written here.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
MIN_FLOAT = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def block_ranges(start, length, other_length, lo, hi, BLOCK: tl.constexpr, OTHER: tl.constexpr):
    """Which blocks of the other dimension the block at `start` sees, where x sees y for x + lo <= y <= x + hi.

    Serves keys of a query block as (band_lo, band_hi) and queries of a key block as (-band_hi, -band_lo).
    Returns, counted in blocks of OTHER: first, full_first, full_end, end. Blocks in [full_first, full_end) lie wholly
    inside the band and inside the tensor; the rest of [first, end) needs a mask; nothing outside is ever visited.
    """
    stop = tl.minimum(start + BLOCK, length)
    first = tl.maximum(start + lo, 0) // OTHER
    end = tl.cdiv(tl.maximum(tl.minimum(stop + hi, other_length), 0), OTHER)
    end = tl.maximum(end, first)
    full_first = tl.cdiv(tl.maximum(stop - 1 + lo, 0), OTHER)
    full_end = tl.maximum(tl.minimum(start + hi + 1, other_length), 0) // OTHER
    full_first = tl.minimum(tl.maximum(full_first, first), end)
    full_end = tl.minimum(tl.maximum(full_end, full_first), end)
    return first, full_first, full_end, end


@triton.jit
def edge_block(i, first, full_first, full_end):
    """The i-th block that needs a mask: those left of the full range, then those right of it."""
    return first + i + tl.where(first + i >= full_first, full_end - full_first, 0)


@triton.jit
def load_tile(base, start, stride, offsets, in_dim, length, BLOCK: tl.constexpr, EDGE: tl.constexpr):
    """Rows [start, start + BLOCK) of a tensor, [BLOCK, BLOCK_D]; zero past `length` and past the head dimension.

    The tile's own offsets stay the same over a loop; only the scalar base moves.
    """
    pointers = base + start * stride + offsets
    if EDGE:
        in_rows = (start + tl.arange(0, BLOCK)) < length
        return tl.load(pointers, mask=in_rows[:, None] & in_dim, other=0.0)
    return tl.load(pointers, mask=in_dim, other=0.0)


@triton.jit
def tile_offsets(stride, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Offsets of a tile's elements from its first, [BLOCK, BLOCK_D]."""
    return tl.arange(0, BLOCK)[:, None] * stride + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def load_mask(mask, rows, columns, stride_q, stride_k, seqlen_q, seqlen_k):
    """The attention mask over rows x columns, [BLOCK_M, BLOCK_N]; a broadcast dimension has stride 0.

    Past the end the last row or column is read again: cheaper than a predicate an element, and never used.
    """
    rows = tl.minimum(rows, seqlen_q - 1)
    columns = tl.minimum(columns, seqlen_k - 1)
    return tl.load(mask + rows[:, None] * stride_q + columns[None, :] * stride_k)


@triton.jit
def mask_scores(s, scale, mask_tile, MASK: tl.constexpr):
    """scale * s with the attention mask applied, in natural units; s and mask_tile have one shape."""
    if MASK == 1:
        return tl.where(mask_tile, s * scale, float("-inf"))
    # Not clamped: a finfo.min row is ordinary arithmetic over its real keys, a -inf row has none.
    return s * scale + mask_tile.to(tl.float32)


@triton.jit
def in_band(rows, columns, seqlen_k, band_lo, band_hi):
    """Where a row sees a real key; rows and columns are shaped to broadcast against each other."""
    return (columns < seqlen_k) & (columns >= rows + band_lo) & (columns <= rows + band_hi)


@triton.jit
def load_rows(base, rows, length, other, EDGE: tl.constexpr):
    """One fp32 number a row, [BLOCK]; `other` past the end."""
    if EDGE:
        return tl.load(base + rows, mask=rows < length, other=other)
    return tl.load(base + rows)


@triton.jit
def load_row_terms(lse, row_stats, num_rows, row_base, rows, seqlen_q, MASK: tl.constexpr, EDGE: tl.constexpr):
    """What P is recomputed from, a row each, in the terms of `probabilities`; rows past the end get P = 0.

    Without a mask one base-2 LSE is enough. It is -inf only for a row that the band leaves without keys, where
    `probabilities` puts 0 for every key. With a mask, maximum and sum stay apart, since the LSE of a finfo.min row
    absorbs log(sum): P = exp2((s - max) * log2e) / sum.
    """
    if MASK == 0:
        lse2 = load_rows(lse + row_base, rows, seqlen_q, float("inf"), EDGE) * LOG2E
        return lse2, lse2
    row_max = load_rows(row_stats + row_base, rows, seqlen_q, float("inf"), EDGE)
    row_sum = load_rows(row_stats + (num_rows + row_base), rows, seqlen_q, 1.0, EDGE)
    # A row without keys has (-inf, 0), any other a sum of at least 1: these bounds change only the former, to P = 0.
    # rsqrt is one instruction on the GPU where a division is eight, and each thread does it for many rows.
    root = tl.math.rsqrt(tl.maximum(row_sum, 1.0))
    return tl.maximum(row_max, MIN_FLOAT), root * root


@triton.jit
def probabilities(s, scale, mask_tile, keep, row_term, row_factor, MASK: tl.constexpr, EDGE: tl.constexpr):
    """P from raw products q k^T; row_term and row_factor come from load_row_terms, shaped to broadcast."""
    if MASK == 0:
        p = tl.math.exp2(s * (scale * LOG2E) - row_term)
    else:
        p = tl.math.exp2((mask_scores(s, scale, mask_tile, MASK) - row_term) * LOG2E) * row_factor
    if EDGE:
        p = tl.where(keep, p, 0.0)
    return p
