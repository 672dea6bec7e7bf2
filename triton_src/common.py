"""What the kernels share: block ranges of the band, tile loads that stay inside the tensor, masked scores, and P.

Strides are i64 in every ahead-of-time signature, so `index * stride` is a 64-bit product with no cast written here.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


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
    """The attention mask over rows x columns, [BLOCK_M, BLOCK_N]; a broadcast dimension has stride 0."""
    inside = (rows < seqlen_q)[:, None] & (columns < seqlen_k)[None, :]
    return tl.load(mask + rows[:, None] * stride_q + columns[None, :] * stride_k, mask=inside, other=0)


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
def load_row_terms(lse, row_stats, num_rows, row_base, rows, seqlen_q, MASK: tl.constexpr):
    """What P is recomputed from, a row each: (subtracted from the score, multiplied on).

    Without a mask one base-2 LSE is enough: P = exp2(s * scale * log2e - lse2), +inf for a row without keys. With one,
    maximum and sum stay apart, since the LSE of a finfo.min row absorbs log(sum): P = exp2((s - max) * log2e) / sum.
    """
    inside = rows < seqlen_q
    if MASK == 0:
        lse2 = tl.load(lse + row_base + rows, mask=inside, other=float("inf")) * LOG2E
        return tl.where(lse2 == float("-inf"), float("inf"), lse2), lse2
    row_max = tl.load(row_stats + row_base + rows, mask=inside, other=0.0)
    row_sum = tl.load(row_stats + num_rows + row_base + rows, mask=inside, other=0.0)
    row_max = tl.where(row_max == float("-inf"), 0.0, row_max)
    return row_max, tl.where(row_sum > 0.0, 1.0 / row_sum, 0.0)


@triton.jit
def probabilities(s, scale, mask_tile, keep, subtract, multiply, MASK: tl.constexpr, EDGE: tl.constexpr):
    """P from raw products q k^T; `subtract` and `multiply` come from load_row_terms, shaped to broadcast."""
    if MASK == 0:
        p = tl.math.exp2(s * (scale * LOG2E) - subtract)
    else:
        p = tl.math.exp2((mask_scores(s, scale, mask_tile, MASK) - subtract) * LOG2E) * multiply
    if EDGE:
        p = tl.where(keep, p, 0.0)
    return p
