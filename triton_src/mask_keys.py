"""A mask that is the same for every query, made ready for one reading a key block: biases, and lists of blocks."""

import triton
import triton.language as tl


@triton.jit
def mask_keys(
    mask, mask_bias, mask_table, mask_stride_b, mask_stride_h, mask_stride_k, mask_heads, seqlen_k,
    MASK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One batch item and head of the mask. Grid: mask_batch * mask_heads.

    mask_bias: what is added to the scores, in natural units; False is -inf, and so is all that lies past the last key.
    A block of BLOCK_N keys is plain where its bias is 0 everywhere, absent where it is -inf everywhere, else biased.
    The four rows of mask_table: how many plain blocks lie below each block (and, last, how many there are), the same of
    biased ones, the plain blocks, the biased blocks. The first entry of the third row is valid even if none is plain.
    BLOCK_M blocks are read at a time.
    """
    row = tl.program_id(0)
    mask += row // mask_heads * mask_stride_b + row % mask_heads * mask_stride_h
    num_blocks = tl.cdiv(seqlen_k, BLOCK_N)
    width = num_blocks + 1
    # 64-bit: batch * heads * seqlen_k may pass 2^31.
    mask_bias += row.to(tl.int64) * num_blocks * BLOCK_N
    mask_table += row.to(tl.int64) * width * 4
    num_plain = 0
    num_biased = 0
    tl.store(mask_table + 2 * width, 0)
    for start in tl.range(0, num_blocks, BLOCK_M):
        blocks = start + tl.arange(0, BLOCK_M)
        columns = blocks[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        in_keys = columns < seqlen_k
        value = tl.load(mask + columns * mask_stride_k, mask=in_keys, other=0)  # [BLOCK_M, BLOCK_N]
        if MASK == 1:
            bias = tl.where(value & in_keys, 0.0, float("-inf"))
        else:
            bias = tl.where(in_keys, value.to(tl.float32), float("-inf"))
        in_blocks = blocks < num_blocks
        tl.store(mask_bias + columns, bias, mask=in_blocks[:, None])

        # Counted rather than compared with a maximum: a block with a NaN must be visited.
        is_plain = (tl.sum((bias != 0.0).to(tl.int32), 1) == 0).to(tl.int32)
        is_biased = (tl.sum((bias != float("-inf")).to(tl.int32), 1) > 0).to(tl.int32) - is_plain
        plain_before = num_plain + tl.cumsum(is_plain, 0) - is_plain
        biased_before = num_biased + tl.cumsum(is_biased, 0) - is_biased
        tl.store(mask_table + blocks, plain_before, mask=in_blocks)
        tl.store(mask_table + width + blocks, biased_before, mask=in_blocks)
        tl.store(mask_table + 2 * width + plain_before, blocks, mask=is_plain != 0)
        tl.store(mask_table + 3 * width + biased_before, blocks, mask=is_biased != 0)
        num_plain += tl.sum(is_plain, 0)
        num_biased += tl.sum(is_biased, 0)
    tl.store(mask_table + num_blocks, num_plain)
    tl.store(mask_table + width + num_blocks, num_biased)
