"""Backward on Hopper, last pass: dq = scale * dS k from its fp32 accumulator, which is in the order of a wgmma."""

import triton
import triton.language as tl

from .common import tile_offsets


@triton.jit
def bwd_dq_cast(
    dq_acc, dq, dq_stride_b, dq_stride_h, dq_stride_s, heads_q, seqlen_q, head_dim, scale,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One block of rows of one head. Grid: cdiv(seqlen_q, BLOCK_M) * batch * heads_q."""
    num_blocks = tl.cdiv(seqlen_q, BLOCK_M)
    start_m = tl.program_id(0) % num_blocks * BLOCK_M
    head_index = tl.program_id(0) // num_blocks
    b = head_index // heads_q
    h = head_index % heads_q

    block = tl.program_id(0).to(tl.int64)
    acc = tl.load(dq_acc + block * (BLOCK_M * BLOCK_D) + tl.arange(0, BLOCK_M * BLOCK_D))
    # For each 64 rows and 64 columns: columns 8, rows 4 (warps), rows 8 and columns 4 (lanes), rows 2, columns 2.
    acc = acc.reshape(BLOCK_M // 64, BLOCK_D // 64, 8, 4, 8, 4, 2, 2)
    tile = acc.permute(0, 3, 6, 4, 1, 2, 5, 7).reshape(BLOCK_M, BLOCK_D)

    in_rows = (start_m + tl.arange(0, BLOCK_M) < seqlen_q)[:, None]
    in_dim = (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    dq += b * dq_stride_b + h * dq_stride_h + start_m * dq_stride_s
    pointers = dq + tile_offsets(dq_stride_s, BLOCK_M, BLOCK_D)
    tl.store(pointers, (tile * scale).to(dq.dtype.element_ty), mask=in_rows & in_dim)
