"""Forward for few queries over many keys: programs share the keys of a head, and every query head that reads those.

Split-KV as in "Flash-Decoding for long-context inference" (Dao, Haziza, Massa, Sizov, 2023); fwd_combine merges.
"""

import triton
import triton.language as tl

from .common import LN2, LOG2E, in_band


@triton.jit
def decode_share(
    q, k, v, sinks, out, lse, partial_out, partial_lse, seqused_k, block_table,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    out_stride_b, out_stride_h, out_stride_s, table_stride_b,
    heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, band_follows, has_seqused_k,
    has_sinks, page_size, key_splits, scale,
    PAGED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One share of the keys of one key head, for BLOCK_M of the group_size * seqlen_q rows that read them.

    Rows are packed with the query heads of a group side by side, so K and V are read once for all of them.
    Writes out and lse where key_splits is 1, else partial_out and partial_lse. A row without a visible key: out 0,
    lse -inf, with a sink its logit.
    """
    num_rows = seqlen_q * group_size
    num_blocks = tl.cdiv(num_rows, BLOCK_M)
    # Programs that read the same keys are neighbours, so that all but the first find them in L2.
    start_m = tl.program_id(0) % num_blocks * BLOCK_M
    split = tl.program_id(0) // num_blocks % key_splits
    head_index = tl.program_id(0) // (num_blocks * key_splits)
    heads_k = heads_q // group_size
    b = head_index // heads_k
    h_k = head_index % heads_k

    packed = start_m + tl.arange(0, BLOCK_M)
    in_rows = packed < num_rows
    rows = packed // group_size
    heads = h_k * group_size + packed % group_size
    dims = tl.arange(0, BLOCK_D)
    in_dim_k = (dims < head_dim)[None, :]
    in_dim_v = (dims < head_dim_v)[None, :]
    q_rows = q + b * q_stride_b + heads * q_stride_h + rows * q_stride_s
    q_tile = tl.load(q_rows[:, None] + dims[None, :], mask=in_rows[:, None] & in_dim_k, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    # A head's sink joins each row's sum once, without a value. A null pointer is never read: the predicate is false.
    sink_rows = tl.where(split == 0, tl.where(has_sinks != 0, num_rows, 0), 0)
    logit = tl.load(sinks + heads, mask=packed < sink_rows, other=float("-inf"))
    row_max = logit * LOG2E
    row_sum = tl.where(logit > float("-inf"), 1.0, 0.0)

    length = seqlen_k
    if has_seqused_k != 0:
        length = tl.minimum(tl.load(seqused_k + b), seqlen_k)
    last_key = tl.maximum(length - 1, 0)
    # A band aligned to the last key moves with the sequence's own length.
    shift = tl.where(band_follows != 0, length - seqlen_q, 0)
    lo = band_lo + shift
    hi = band_hi + shift
    last_row = tl.minimum(start_m + BLOCK_M, num_rows) - 1
    first = tl.maximum(start_m // group_size + lo, 0) // BLOCK_N
    end = tl.cdiv(tl.maximum(tl.minimum(last_row // group_size + hi + 1, length), 0), BLOCK_N)
    tiles = tl.maximum(end - first, 0)
    share = tiles // key_splits
    extra = tiles % key_splits
    begin = first + split * share + tl.minimum(split, extra)
    count = share + (split < extra).to(tl.int32)

    k += h_k * k_stride_h
    v += h_k * v_stride_h
    if PAGED:
        table = block_table + b * table_stride_b
        # A tile's pages are looked up one turn ahead: a load whose address comes from another one in the same turn
        # is pipelined by one stage less.
        pages = tl.load(table + tl.minimum(begin * BLOCK_N + tl.arange(0, BLOCK_N), last_key) // page_size)
    else:
        k += b * k_stride_b
        v += b * v_stride_b
    for tile in tl.range(begin, begin + count):
        columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        # Past the end the last key is read again: what lies there need not exist, and a predicate a row costs more.
        keys = tl.minimum(columns, last_key)
        if PAGED:
            k_rows = pages * k_stride_b + keys % page_size * k_stride_s
            v_rows = pages * v_stride_b + keys % page_size * v_stride_s
            pages = tl.load(table + tl.minimum(columns + BLOCK_N, last_key) // page_size)
        else:
            k_rows = keys * k_stride_s
            v_rows = keys * v_stride_s
        k_tile = tl.load(k + k_rows[:, None] + dims[None, :], mask=in_dim_k, other=0.0)  # [BLOCK_N, BLOCK_D]
        s = tl.dot(q_tile, tl.trans(k_tile)) * (scale * LOG2E)  # [BLOCK_M, BLOCK_N]
        s = tl.where(in_band(rows[:, None], columns[None, :], length, lo, hi), s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1))
        # A row that has seen no key yet: 0 keeps -inf - (-inf) out, and exp2(-inf) is the 0 that is wanted.
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.math.exp2(s - safe_max[:, None])
        alpha = tl.math.exp2(row_max - safe_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v_tile = tl.load(v + v_rows[:, None] + dims[None, :], mask=in_dim_v, other=0.0)  # [BLOCK_N, BLOCK_D]
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc)  # [BLOCK_M, BLOCK_D]
        row_max = new_max

    acc = acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    # log2(0) = -inf makes the LSE of a row without keys -inf by itself.
    row_lse = (row_max + tl.math.log2(row_sum)) * LN2
    # 64-bit: batch * heads * seqlen may pass 2^31.
    row_index = (b * heads_q + heads).to(tl.int64) * seqlen_q + rows
    store = in_rows[:, None] & in_dim_v
    if key_splits == 1:
        out_rows = out + b * out_stride_b + heads * out_stride_h + rows * out_stride_s
        tl.store(out_rows[:, None] + dims[None, :], acc.to(out.dtype.element_ty), mask=store)
        tl.store(lse + row_index, row_lse, mask=in_rows)
    else:
        part = row_index * key_splits + split
        tl.store(partial_out + part[:, None] * head_dim_v + dims[None, :], acc, mask=store)
        tl.store(partial_lse + part, row_lse, mask=in_rows)


@triton.jit
def fwd_decode(
    q, k, v, sinks, out, lse, partial_out, partial_lse, seqused_k,
    q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
    out_stride_b, out_stride_h, out_stride_s,
    heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, band_follows, has_seqused_k,
    has_sinks, key_splits, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """decode_share over contiguous keys. Grid: cdiv(seqlen_q * group_size, BLOCK_M) * key_splits * batch * heads_k."""
    decode_share(
        q, k, v, sinks, out, lse, partial_out, partial_lse, seqused_k, None,
        q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
        out_stride_b, out_stride_h, out_stride_s, 0,
        heads_q, group_size, seqlen_q, seqlen_k, head_dim, head_dim_v, band_lo, band_hi, band_follows, has_seqused_k,
        has_sinks, 1, key_splits, scale, False, BLOCK_M, BLOCK_N, BLOCK_D,
    )  # fmt: skip
