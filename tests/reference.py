"""The one reference of the op, in plain torch, and the one error bound.

`attention` computes in the dtype of what it is given: in fp64 it is the reference, in fp16 or bf16 it is the peer whose
error bounds ours.
"""

import dataclasses
import math

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    bottom_right: bool = False,
) -> tuple[Tensor, Tensor]:
    """out [B, Hq, Sq, Dv] and lse [B, Hq, Sq]; a row that sees no finite score has out 0 and lse -inf."""
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    seqlen_q, seqlen_k = scores.shape[-2:]
    if is_causal:
        diagonal = seqlen_k - seqlen_q if bottom_right else 0
        visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device).tril(diagonal)
        scores = scores.masked_fill(~visible, -math.inf)
    if seqlen_k == 0:
        return scores @ v, scores.sum(-1) - math.inf
    dead = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(dead, 0.0)
    p = scores.softmax(-1).masked_fill(dead, 0.0)
    # Not logsumexp, whose own gradient exp(scores - lse) is wrong on a row of finfo.min: lse has absorbed log(n) there.
    maximum = scores.detach().amax(-1, keepdim=True)
    lse = (maximum + (scores - maximum).exp().sum(-1, keepdim=True).log()).squeeze(-1)
    lse = lse.masked_fill(dead.squeeze(-1), -math.inf)
    return p.to(v.dtype) @ v, lse


@dataclasses.dataclass
class Results:
    """Everything the op computes; None where there is nothing (a boolean mask has no gradient)."""

    out: Tensor
    lse: Tensor
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    dmask: Tensor | None = None


def run(function, inputs) -> Results:
    """Forward and backward of `function(q, k, v, mask, is_causal, scale, bottom_right) -> (out, lse)`.

    inputs: problems.Inputs.
    """

    def leaf(tensor):
        is_leaf = tensor is not None and tensor.is_floating_point()
        return tensor.detach().requires_grad_() if is_leaf else tensor

    q, k, v, mask = (leaf(t) for t in (inputs.q, inputs.k, inputs.v, inputs.mask))
    out, lse = function(q, k, v, mask, inputs.is_causal, inputs.scale, inputs.bottom_right)
    outputs, gradients = [out], [inputs.dout.to(out.dtype)]
    if inputs.dlse is not None:
        outputs.append(lse)
        gradients.append(inputs.dlse.to(lse.dtype))
    wanted = [t for t in (q, k, v, mask) if t is not None and t.requires_grad]
    found = list(torch.autograd.grad(outputs, wanted, gradients))
    return Results(out.detach(), lse.detach(), *found)


def expected(inputs) -> Results:
    """The truth, in fp64."""
    cast = {
        name: value.double()
        for name, value in vars(inputs).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    return run(attention, dataclasses.replace(inputs, **cast))


def peer(inputs) -> Results:
    """What plain torch computes in the dtype of q. Gradients come in the inputs' own dtypes."""

    def in_dtype_of_q(q, k, v, mask, *options):
        if mask is not None and mask.is_floating_point() and mask.dtype != q.dtype:
            # A finite mask stays finite: finfo.min of a wider dtype must not turn into -inf.
            mask = (
                mask.float().clamp(min=torch.finfo(q.dtype).min).masked_fill(mask == -math.inf, -math.inf).to(q.dtype)
            )
        return attention(q, k, v, mask, *options)

    return run(in_dtype_of_q, inputs)


def check(ours: Results, inputs) -> None:
    """Asserts that every result of ours is within the bound; names the result and its figures where one is not."""
    reference, same_dtype = expected(inputs), peer(inputs)
    finite = reference.lse.abs() < 1e30  # not -inf, and not a row of finfo.min, whose lse has no digits left
    assert torch.equal(ours.lse == -math.inf, reference.lse == -math.inf), "lse is -inf in other rows"
    huge = ~finite & (reference.lse != -math.inf)
    torch.testing.assert_close(ours.lse[huge].double(), reference.lse[huge], rtol=1e-6, atol=0.0)
    check_tensor("lse", ours.lse[finite], same_dtype.lse[finite], reference.lse[finite])
    for name in ("out", "dq", "dk", "dv", "dmask"):
        if getattr(reference, name) is not None:
            check_tensor(name, getattr(ours, name), getattr(same_dtype, name), getattr(reference, name))


def check_tensor(name: str, ours: Tensor, same_dtype: Tensor, reference: Tensor) -> None:
    assert ours.shape == reference.shape, f"{name} has sizes {tuple(ours.shape)}, not {tuple(reference.shape)}"
    assert ours.dtype == same_dtype.dtype or name == "lse", f"{name} is {ours.dtype}, not {same_dtype.dtype}"
    assert ours.isfinite().all(), f"{name} has {(~ours.isfinite()).sum()} values that are not finite"
    if ours.numel() == 0:
        return
    error, bound = distance(ours, reference), 2 * distance(same_dtype, reference) + 2 * rounding(reference, ours.dtype)
    assert error <= bound, f"{name} is off by {error:.3g}, the bound is {bound:.3g}"
    norm, norm_bound = frobenius(ours, reference), 1.5 * frobenius(same_dtype, reference)
    assert norm <= norm_bound, f"{name} is off by {norm:.3g} in norm, the bound is {norm_bound:.3g}"


def distance(a: Tensor, reference: Tensor) -> float:
    return (a.double() - reference).abs().max().item()


def frobenius(a: Tensor, reference: Tensor) -> float:
    """Relative to the reference; where that is all zero, absolute."""
    norm = reference.norm().item()
    return (a.double() - reference).norm().item() / (norm if norm > 0 else 1.0)


def rounding(reference: Tensor, dtype: torch.dtype) -> float:
    """What a detour over + 0.3 loses in the dtype of the result: the size of a rounding step near the values."""
    rounded = reference.to(dtype)
    return ((rounded + 0.3) - 0.3 - rounded).abs().max().item()
