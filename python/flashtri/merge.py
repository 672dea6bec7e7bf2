"""Attention over split keys, put together again."""

import math

import torch
from torch import Tensor


def merge(out1: Tensor, lse1: Tensor, out2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys together, from attention over each; differentiable in all four.

        lse = log(exp(lse1) + exp(lse2));  out = exp(lse1 - lse) out1 + exp(lse2 - lse) out2

    Args:
        out1, out2: [B, Hq, Sq, Dv], of `attention` with the same queries and each its own keys.
        lse1, lse2: [B, Hq, Sq], fp32, of the same calls (return_lse). -inf: the row saw no key there.

    Returns:
        out: [B, Hq, Sq, Dv], dtype of out1; lse: [B, Hq, Sq], fp32. A row without a key on either side: 0 and -inf.

    Raises:
        ValueError: shapes that do not belong together.

    A sink counts in each part that is given it: pass it with one part only. Formula: Milakov and Gimelshein, "Online
    normalizer calculation for softmax" (arXiv:1805.02867), section 3.1.
    """
    if not (out1.shape == out2.shape and lse1.shape == lse2.shape == out1.shape[:-1]):
        raise ValueError(
            f"out1 and out2 must have one shape, and lse1 and lse2 that shape without its last dimension; got "
            f"{tuple(out1.shape)}, {tuple(lse1.shape)}, {tuple(out2.shape)}, {tuple(lse2.shape)}; pass what attention "
            f"returned for the same queries"
        )
    maximum = torch.maximum(lse1, lse2).detach()
    dead = maximum == -math.inf
    # 0 for a row without keys: -inf - (-inf) is NaN, and exp(-inf - 0) the 0 that is wanted.
    shift = maximum.masked_fill(dead, 0.0)
    weight1, weight2 = (lse1 - shift).exp(), (lse2 - shift).exp()
    total = (weight1 + weight2).masked_fill(dead, 1.0)
    lse = (shift + total.log()).masked_fill(dead, -math.inf)
    share1, share2 = (weight1 / total).unsqueeze(-1), (weight2 / total).unsqueeze(-1)
    return (share1 * out1 + share2 * out2).to(out1.dtype), lse
