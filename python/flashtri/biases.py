"""Biases by the distance of key and query, as small tables that `attention` takes as `relative_bias`.

They are plain torch, so gradients reach slopes and tables by autograd: no matrix of scores exists in either direction.
"""

import math

import torch
from torch import Tensor


def alibi(slopes: Tensor, seqlen_q: int, seqlen_k: int, *, bottom_right: bool = False) -> Tensor:
    """ALiBi as a relative bias: -slope * |distance from the row's diagonal|.

    Args:
        slopes: [Hq] floating; the paper's are 2^(-8 (h + 1) / Hq) for head h from 0.
        seqlen_q, seqlen_k: lengths of q and k.
        bottom_right: the diagonal is key i + seqlen_k - seqlen_q of row i, as when earlier keys come from a cache; else
            key i.

    Returns:
        [Hq, seqlen_q + seqlen_k - 1], dtype of slopes: element j - i + seqlen_q - 1 belongs to query i and key j.

    Raises:
        ValueError: slopes that are not one-dimensional.

    Press, Smith and Lewis, "Train short, test long" (arXiv:2108.12409), section 3; without causality its usual
    symmetric form.
    """
    if slopes.dim() != 1:
        raise ValueError(f"slopes must have one dimension, the heads of q; got {tuple(slopes.shape)}; flatten them")
    distance = _distances(seqlen_q, seqlen_k, bottom_right, slopes.device)
    return -slopes.unsqueeze(1) * distance.abs().to(slopes.dtype)


def t5_bias(
    table: Tensor,
    seqlen_q: int,
    seqlen_k: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    bottom_right: bool = False,
) -> Tensor:
    """T5's bucketed relative positions as a relative bias: table[bucket(j - i), h].

    Args:
        table: [buckets, Hq] floating, as T5's relative_attention_bias.weight.
        seqlen_q, seqlen_k: lengths of q and k.
        bidirectional: half of the buckets are for keys after the query (an encoder); else those share bucket 0.
        max_distance: from here on all distances share the last bucket.
        bottom_right: distances are from key i + seqlen_k - seqlen_q of row i, as with a cache; else from key i.

    Returns:
        [Hq, seqlen_q + seqlen_k - 1], dtype of table: element j - i + seqlen_q - 1 belongs to query i and key j.

    Raises:
        ValueError: a table of another rank, or with too few buckets.

    Raffel et al., "Exploring the limits of transfer learning" (arXiv:1910.10683), section 2.1: half of a direction's
    buckets hold one distance each, the others grow logarithmically up to max_distance. T5 itself uses a scale of 1.
    """
    buckets = (table.shape[0] // 2 if bidirectional else table.shape[0]) if table.dim() == 2 else 0
    exact = buckets // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"table must be [buckets, heads] with at least {4 if bidirectional else 2} buckets, and max_distance above "
            f"the {exact} exact distances; got {tuple(table.shape)} and {max_distance}; pass T5's own table"
        )
    distance = _distances(seqlen_q, seqlen_k, bottom_right, table.device)
    offset = torch.zeros_like(distance)
    if bidirectional:
        offset = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    growth = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact) * (buckets - exact)
    far = (exact + growth.long()).clamp(max=buckets - 1)
    return table[offset + torch.where(distance < exact, distance, far)].t()


def _distances(seqlen_q: int, seqlen_k: int, bottom_right: bool, device: torch.device) -> Tensor:
    """j - i of every element of a relative bias, or its distance from a diagonal that ends in the last key."""
    diagonal = seqlen_k - seqlen_q if bottom_right else 0
    return torch.arange(seqlen_q + seqlen_k - 1, device=device) - (seqlen_q - 1 + diagonal)
