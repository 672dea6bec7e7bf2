"""Forward: merges what fwd_decode computed of each share of the keys, out = sum(exp(lse_i - lse) * out_i)."""

import triton
import triton.language as tl

from .common import LN2, LOG2E


@triton.jit
def fwd_combine(
    out, lse, partial_out, partial_lse, out_stride_b, out_stride_h, out_stride_s,
    heads_q, seqlen_q, head_dim_v, key_splits,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One row, BLOCK_M shares at a time. Grid: batch * heads_q * seqlen_q."""
    row_index = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    in_dim = dims < head_dim_v
    acc = tl.zeros((BLOCK_D,), tl.float32)
    row_max = float("-inf")
    row_sum = 0.0
    for start in tl.range(0, key_splits, BLOCK_M):
        splits = start + tl.arange(0, BLOCK_M)
        in_splits = splits < key_splits
        parts = row_index * key_splits + splits
        part_lse = tl.load(partial_lse + parts, mask=in_splits, other=float("-inf"))
        tile = partial_out + parts[:, None] * head_dim_v + dims[None, :]
        part_out = tl.load(tile, mask=in_splits[:, None] & in_dim[None, :], other=0.0)  # [BLOCK_M, BLOCK_D]
        new_max = tl.maximum(row_max, tl.max(part_lse, 0))
        # As in the forward: a row without a key in any share so far.
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.math.exp2((part_lse - safe_max) * LOG2E)
        alpha = tl.math.exp2((row_max - safe_max) * LOG2E)
        row_sum = row_sum * alpha + tl.sum(weights, 0)
        acc = acc * alpha + tl.sum(weights[:, None] * part_out, 0)
        row_max = new_max
    acc = acc / tl.where(row_sum > 0.0, row_sum, 1.0)
    h = tl.program_id(0) // seqlen_q
    out += h // heads_q * out_stride_b + h % heads_q * out_stride_h + tl.program_id(0) % seqlen_q * out_stride_s
    tl.store(out + dims, acc.to(out.dtype.element_ty), mask=in_dim)
    tl.store(lse + row_index, row_max + tl.math.log2(row_sum) * LN2)
