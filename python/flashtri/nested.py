"""Nested (jagged) tensors: their values are packed sequences already."""

import torch
from torch import Tensor


def attention_of_nested(attention, q: Tensor, k: Tensor, v: Tensor, **keywords) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` of nested q [B, Hq, Sq, D], k and v, whose lengths differ from sequence to sequence.

    Returns what it returns, nested as q is: out [B, Hq, Sq, Dv] and, where asked for, lse [B, Hq, Sq].
    Raises ValueError for a tensor that is not nested as those are.
    """
    packed = {name: _packed(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v))}
    given = {name: value for name, value in keywords.items() if name.startswith(("cu_", "max_")) and value is not None}
    if given:
        raise ValueError(f"nested tensors bring their own lengths; got {', '.join(given)} as well; leave them out")
    keywords |= {
        "cu_seqlens_q": q.offsets().int(),
        "cu_seqlens_k": k.offsets().int(),
        "max_seqlen_q": q._get_max_seqlen(),  # kept by the tensor, so it is read from the device once
        "max_seqlen_k": k._get_max_seqlen(),
    }
    found = attention(**packed, **keywords)
    if not keywords["return_lse"]:
        return _nested_as(q, found)
    out, lse = found
    return _nested_as(q, out), _nested_as(q, lse.transpose(0, 1))


def _packed(name: str, tensor: Tensor) -> Tensor:
    """[total, H, D]: a view of the nested tensor's values."""
    is_jagged = tensor.is_nested and tensor.layout == torch.jagged
    if not is_jagged or tensor.dim() != 4 or tensor._ragged_idx != 2 or tensor.lengths() is not None:
        kind = f"a nested tensor of sizes {list(tensor.shape)}" if tensor.is_nested else "a dense tensor"
        raise ValueError(
            f"beside nested tensors, {name} must be a nested tensor of layout torch.jagged and sizes "
            f"[batch, heads, length, head_dim] without holes, only the length differing; got {kind}; make it with "
            "torch.nested.nested_tensor_from_jagged from [total, heads, head_dim], then transpose(1, 2)"
        )
    return tensor.transpose(1, 2).values()


def _nested_as(like: Tensor, values: Tensor) -> Tensor:
    made = torch.nested.nested_tensor_from_jagged(
        values, offsets=like.offsets(), min_seqlen=like._get_min_seqlen(), max_seqlen=like._get_max_seqlen()
    )
    return made.transpose(1, 2)
