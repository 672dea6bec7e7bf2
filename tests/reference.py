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
    *,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    relative_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out [B, Hq, Sq, Dv] and lse [B, Hq, Sq]; a row that sees no finite score has out 0 and lse -inf.

    kept: [B, Hq, Sq, Sk] bool, with dropout_p: which probabilities were not dropped.
    """
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    seqlen_q, seqlen_k = scores.shape[-2:]
    # How far each key lies after the row's diagonal.
    distance = torch.arange(seqlen_k, device=q.device) - torch.arange(seqlen_q, device=q.device).unsqueeze(1)
    if relative_bias is not None:
        scores = scores + relative_bias[:, distance + seqlen_q - 1]
    distance = distance - (seqlen_k - seqlen_q if bottom_right else 0)
    right = 0 if is_causal else window_right
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if right is not None:
        hidden |= distance > right
    if window_left is not None:
        hidden |= distance < -window_left
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        # A key more, whose value is 0.
        scores = torch.cat([scores, sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
        v = torch.cat([v, v.new_zeros(*v.shape[:2], 1, v.shape[3])], 2)
        if kept is not None:
            kept = torch.nn.functional.pad(kept, (0, 1))
    if scores.shape[-1] == 0:
        return scores @ v, scores.sum(-1) - math.inf
    dead = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(dead, 0.0)
    p = scores.softmax(-1).masked_fill(dead, 0.0)
    # Not logsumexp, whose own gradient exp(scores - lse) is wrong on a row of finfo.min: lse has absorbed log(n) there.
    maximum = scores.detach().amax(-1, keepdim=True)
    lse = (maximum + (scores - maximum).exp().sum(-1, keepdim=True).log()).squeeze(-1)
    lse = lse.masked_fill(dead.squeeze(-1), -math.inf)
    if kept is not None:
        p = (p * kept) / (1.0 - dropout_p)
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
    dsinks: Tensor | None = None
    drelative_bias: Tensor | None = None


def run(function, inputs) -> Results:
    """Forward and backward of `function(q, k, v, mask, is_causal, scale, bottom_right, **options) -> (out, lse)`.

    inputs: problems.Inputs. Random numbers are drawn from the same seed each time.
    """

    def leaf(tensor):
        is_leaf = tensor is not None and tensor.is_floating_point()
        return tensor.detach().requires_grad_(inputs.dout is not None) if is_leaf else tensor

    q, k, v, mask = (leaf(t) for t in (inputs.q, inputs.k, inputs.v, inputs.mask))
    options = {name: leaf(value) if isinstance(value, Tensor) else value for name, value in inputs.options.items()}
    torch.manual_seed(0)
    out, lse = function(q, k, v, mask, inputs.is_causal, inputs.scale, inputs.bottom_right, **options)
    if inputs.dout is None:
        return Results(out.detach(), lse.detach())
    outputs, gradients = [out], [inputs.dout.to(out.dtype)]
    if inputs.dlse is not None:
        outputs.append(lse)
        gradients.append(inputs.dlse.to(lse.dtype))
    leaves = {"q": q, "k": k, "v": v, "mask": mask} | {n: options.get(n) for n in ("sinks", "relative_bias")}
    wanted = {f"d{name}": t for name, t in leaves.items() if t is not None and t.requires_grad}
    found = torch.autograd.grad(outputs, list(wanted.values()), gradients)
    return Results(out.detach(), lse.detach(), **dict(zip(wanted, found, strict=True)))


def expected(inputs) -> Results:
    """The truth, in fp64."""
    cast = {
        name: value.double()
        for name, value in vars(inputs).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    options = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.options.items()
    }
    return run(attention, with_kept(dataclasses.replace(inputs, options=options, **cast), inputs))


def with_kept(inputs, drawn):
    """`inputs` with what dropout keeps where the op draws for the problem `drawn`, seeded as in run."""
    if "dropout_p" not in inputs.options:
        return inputs
    torch.manual_seed(0)
    rng_state = torch.ops.flashtri.fwd(drawn.q, drawn.k, drawn.v, drawn.mask, drawn.options["dropout_p"])[3]
    batch, heads, seqlen_q, _ = drawn.q.shape
    size = (batch, heads, seqlen_q, drawn.k.shape[2])
    found = kept(rng_state.tolist(), drawn.options["dropout_p"], size).to(drawn.q.device)
    return dataclasses.replace(inputs, options={**inputs.options, "kept": found})


def kept(rng_state: list[int], dropout_p: float, size: tuple[int, int, int, int]) -> Tensor:
    """Which probabilities dropout keeps: Philox 4x32-10 in int64, 16 of its bits for each of 8 keys among 32."""
    seed, offset = rng_state
    batch, heads, seqlen_q, seqlen_k = size
    draws = 4 * -(-seqlen_k // 32)
    word = 0xFFFFFFFF
    head = torch.arange(batch * heads).view(-1, 1, 1)
    row, draw = torch.arange(seqlen_q).view(-1, 1), torch.arange(draws)
    counter = [t.expand(batch * heads, seqlen_q, draws) for t in (draw, row, head, torch.tensor(offset & word))]
    key = [seed & word, seed >> 32 & word]

    def product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
        """The upper and lower word, by halves, as the whole passes 63 bits."""
        low, high = a * (b & 0xFFFF), a * (b >> 16)
        total = (low >> 16) + high
        return total >> 16, (total << 16 | low & 0xFFFF) & word

    for _ in range(10):
        (high_0, low_0), (high_2, low_2) = product(0xD2511F53, counter[0]), product(0xCD9E8D57, counter[2])
        counter = [high_2 ^ counter[1] ^ key[0], low_2, high_0 ^ counter[3] ^ key[1], low_0]
        key = [key[0] + 0x9E3779B9 & word, key[1] + 0xBB67AE85 & word]
    bits = torch.stack([half for words in counter for half in (words & 0xFFFF, words >> 16)], -1)
    # [.., 32 keys, draw, which 8 of the 32, even or odd] -> the order of the keys.
    bits = bits.unflatten(2, (-1, 4)).unflatten(-1, (4, 2)).transpose(3, 4).flatten(2)
    return (bits >= round(dropout_p * 65536))[..., :seqlen_k].reshape(size)


def peer(inputs) -> Results:
    """What plain torch computes in the dtype of q. Gradients come in the inputs' own dtypes."""

    def in_dtype_of_q(q, k, v, mask, *options, relative_bias=None, sinks=None, **more):
        if mask is not None and mask.is_floating_point() and mask.dtype != q.dtype:
            # A finite mask stays finite: finfo.min of a wider dtype must not turn into -inf.
            mask = (
                mask.float().clamp(min=torch.finfo(q.dtype).min).masked_fill(mask == -math.inf, -math.inf).to(q.dtype)
            )
        relative_bias, sinks = (t.to(q.dtype) if t is not None else None for t in (relative_bias, sinks))
        return attention(q, k, v, mask, *options, relative_bias=relative_bias, sinks=sinks, **more)

    return run(in_dtype_of_q, with_kept(inputs, inputs))


def join(results: list[Results], inputs) -> Results:
    """Results of the parts of a problem as one: of a batch's sequences, or packed as q is."""
    if not inputs.parts:
        return results[0]
    packed, joined = inputs.q.dim() == 3, {}
    for name in vars(results[0]):
        values = [value for result in results if (value := getattr(result, name)) is not None]
        if not values:
            continue
        if name == "dsinks":
            joined[name] = torch.stack(values).sum(0)
        elif not packed:
            joined[name] = torch.cat(values)
        else:
            rows = torch.cat(values, dim=2)[0]
            joined[name] = rows if name == "lse" else rows.transpose(0, 1)
    return Results(**joined)


def check(ours: Results, inputs) -> None:
    """Asserts that every result of ours is within the bound; names the result and its figures where one is not."""
    parts = inputs.parts or (inputs,)
    reference, same_dtype = (join([function(part) for part in parts], inputs) for function in (expected, peer))
    finite = reference.lse.abs() < 1e30  # not -inf, and not a row of finfo.min, whose lse has no digits left
    assert torch.equal(ours.lse == -math.inf, reference.lse == -math.inf), "lse is -inf in other rows"
    huge = ~finite & (reference.lse != -math.inf)
    torch.testing.assert_close(ours.lse[huge].double(), reference.lse[huge], rtol=1e-6, atol=0.0)
    check_tensor("lse", ours.lse[finite], same_dtype.lse[finite], reference.lse[finite])
    for name in ("out", "dq", "dk", "dv", "dmask", "dsinks", "drelative_bias"):
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
