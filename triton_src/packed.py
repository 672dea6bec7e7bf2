"""Sequences of different lengths packed one after the other, [total, heads, head_dim], without padding."""

import triton
import triton.language as tl


@triton.jit
def sequence(cu_seqlens_q, cu_seqlens_k, b, seqlen_q, seqlen_k, is_packed, MASK: tl.constexpr):
    """(first row, rows, first key, keys) of sequence b, whose tensors' own lengths are seqlen_q and seqlen_k.

    Known at run time: compiled in it would double the kernels without a mask. With one nothing is packed.
    """
    if MASK != 0:
        return 0, seqlen_q, 0, seqlen_k
    # Null pointers are never read: the predicate is false.
    first_q = tl.load(cu_seqlens_q + b, mask=is_packed != 0, other=0)
    end_q = tl.load(cu_seqlens_q + b + 1, mask=is_packed != 0, other=seqlen_q)
    first_k = tl.load(cu_seqlens_k + b, mask=is_packed != 0, other=0)
    end_k = tl.load(cu_seqlens_k + b + 1, mask=is_packed != 0, other=seqlen_k)
    return first_q, end_q - first_q, first_k, end_k - first_k


@triton.jit
def sequence_band(band_lo, band_hi, band_follows, seqlen_q, seqlen_k, MASK: tl.constexpr):
    """The band of a sequence: with band_follows around a diagonal that ends in its own last row and key."""
    if MASK != 0:
        return band_lo, band_hi
    shift = tl.where(band_follows != 0, seqlen_k - seqlen_q, 0)
    return band_lo + shift, band_hi + shift
