"""The public attention function, over torch.ops.flashtri.fwd."""

import torch
from torch import Tensor

from flashtri.nested import attention_of_nested

_fwd = torch.ops.flashtri.fwd.default


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    bottom_right: bool = False,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    sinks: Tensor | None = None,
    relative_bias: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q k^T + attn_mask) v, differentiable in every floating tensor, and through lse.

    Args:
        q: [B, Hq, Sq, D], fp16 or bf16. D is a multiple of 8 from 8 to 256.
        k: [B, Hk, Sk, D], dtype of q. Hq is a multiple of Hk: each key head serves Hq / Hk consecutive query heads.
        v: [B, Hk, Sk, Dv], dtype of q. Dv is a multiple of 8 from 8 to 256.
            Any strides will do; docs/semantics.md says when a tensor is copied first.
        attn_mask: broadcastable to [B, Hq, Sq, Sk], never expanded in memory. bool (True takes part), or fp16, bf16 or
            fp32 added to the scores, whatever q's dtype. May be combined with is_causal.
        is_causal: row i sees keys j <= i, as in PyTorch.
        scale: of the scores, finite and >= 0. Default 1 / sqrt(D).
        bottom_right: with is_causal, row i sees keys j <= i + Sk - Sq: the last row sees every key. Windows too.
        window_left, window_right: how many keys a row sees before and after its diagonal, >= 0; None: all. The diagonal
            is key i of row i, or with bottom_right key i + Sk - Sq. is_causal leaves none after it.
        softcap: c > 0 turns scores into c * tanh(scores / c), before any mask or bias; 0.0: none.
        dropout_p: in [0, 1), the share of probabilities that are dropped, in steps of 2^-16; the others grow by
            1 / (1 - dropout_p). Drawn from torch's default generator of the device.
        sinks: [Hq], fp32 or dtype of q: a logit of each head that joins its rows' softmax, and has no value.
        relative_bias: [Hq or 1, Sq + Sk - 1], fp16, bf16 or fp32: element j - i + Sq - 1 is added to the score of query
            i and key j. Not beside attn_mask. See `alibi` and `t5_bias`.
        seqused_k: [B], int32: of each sequence only the first seqused_k keys exist (at most Sk), and with bottom_right
            the diagonal ends in the last of those. No gradient, and no attn_mask beside it.
        block_table: [B, max_pages], int32: k and v are [num_blocks, Hk, page_size, D or Dv], page_size a multiple of
            16, and key j of a sequence is row j % page_size of the block that its entry j // page_size names. Entries
            past the last key that exists are never read. Sk is max_pages * page_size. As seqused_k otherwise.
        cu_seqlens_q, cu_seqlens_k: [sequences + 1], int32: sequences of different lengths lie one after the other, q is
            [total_q, Hq, D], k and v [total_k, Hk, D or Dv], and sequence i has rows cu_seqlens_q[i] to
            cu_seqlens_q[i + 1]; the first entry is 0, the last the total. Any may be empty. A row sees keys of its own
            sequence only. No attn_mask, relative_bias or dropout. out is [total_q, Hq, Dv], lse [Hq, total_q].
        max_seqlen_q, max_seqlen_k: with these, the lengths of the longest sequences (or more).
            Nested tensors of layout torch.jagged, [B, H, length, D], bring all four themselves.
        return_lse: also return the logarithm of the sum of exp(scores) of each row.

    Returns:
        out: [B, Hq, Sq, Dv], dtype of q; laid out in memory as [B, Sq, Hq, Dv] where q is.
        lse (with return_lse): [B, Hq, Sq], fp32, natural logarithm.
        A row with nothing to attend to has out = 0 and lse = -inf (its sink, where there are sinks), and adds zero to
        every gradient but the sink's.

    Raises:
        ValueError: a shape, dtype or number that breaks a rule above; the message names rule, value and remedy.
        NotImplementedError: head_dim, dtype, architecture or feature that is not compiled in.
        RuntimeError: double backward, and what torch itself raises.

    Equivalent to:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        scores = scale * (q.float() @ k.float().transpose(-2, -1)) + attn_mask   # or masked_fill(~attn_mask, -inf)
        scores = scores.masked_fill(~torch.ones(Sq, Sk).tril(Sk - Sq if bottom_right else 0).bool(), -inf)  # is_causal
        out = torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v.float()
        lse = torch.logsumexp(scores, dim=-1)

    The forward is algorithm 1 and the backward algorithm 2 of Dao, "FlashAttention-2" (arXiv:2307.08691); the
    gradient of lse enters as delta = rowsum(out * dout) - dlse.
    """
    if q.is_nested or k.is_nested or v.is_nested:
        return attention_of_nested(
            attention, q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, bottom_right=bottom_right,
            window_left=window_left, window_right=window_right, softcap=softcap, dropout_p=dropout_p, sinks=sinks,
            relative_bias=relative_bias, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, seqused_k=seqused_k, block_table=block_table,
            return_lse=return_lse,
        )  # fmt: skip
    keywords = {}
    no_tensor = sinks is relative_bias is cu_seqlens_q is cu_seqlens_k is seqused_k is block_table is None
    no_number = scale is window_left is window_right is max_seqlen_q is max_seqlen_k is None
    if not (no_tensor and no_number) or bottom_right or softcap != 0.0:
        # Only then, as torch takes 0.3 us over each keyword.
        keywords = {
            "scale": scale,
            "bottom_right": bottom_right,
            "window_left": window_left,
            "window_right": window_right,
            "softcap": softcap,
            "sinks": sinks,
            "relative_bias": relative_bias,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "max_seqlen_q": max_seqlen_q,
            "max_seqlen_k": max_seqlen_k,
            "seqused_k": seqused_k,
            "block_table": block_table,
        }
    out, lse, _, _ = _fwd(q, k, v, attn_mask, dropout_p, is_causal, **keywords)
    return (out, lse) if return_lse else out
