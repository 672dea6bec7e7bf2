"""Forward over keys and values in pages (PagedAttention, Kwon et al., 2023), for any number of queries."""

import triton
import triton.language as tl

from .fwd_decode import decode_share


@triton.jit
def fwd_paged(
    q, k, v, sinks, out, lse, partial_out, partial_lse, seqused_k, block_table,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    out_stride_b, out_stride_h, out_stride_s, table_stride_b,
    heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, band_follows, has_seqused_k,
    has_sinks, page_size, key_splits, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """decode_share through a block table: k and v are [num_blocks, heads_k, page_size, head_dim]; grid as fwd_decode's.

    A kernel of its own, as finding out at run time that there are no pages took the 16-row tile from 4,087 to 3,254
    GB/s of contiguous keys and values (one share of 64 keys a turn; batch 16, 8,192 keys, 8 heads, D 128; H200).
    """
    decode_share(
        q, k, v, sinks, out, lse, partial_out, partial_lse, seqused_k, block_table,
        q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
        out_stride_b, out_stride_h, out_stride_s, table_stride_b,
        heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, band_follows, has_seqused_k,
        has_sinks, page_size, key_splits, scale, True, BLOCK_M, BLOCK_N, BLOCK_D,
    )  # fmt: skip
