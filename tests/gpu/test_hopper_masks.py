"""Masks in Hopper's forward on the device: every way to read one, over lengths around its tiles."""

import itertools
import math

import pytest
import torch
from problems import DTYPES, Problem
from reference import check, run

import flashtri
from flashtri import _C

DEVICE = _C.device(0) if _C.device_count() else {"arch": 0}
pytestmark = pytest.mark.skipif(DEVICE["arch"] != 90, reason="needs a Hopper GPU")


def ours(q, k, v, mask, is_causal, scale, bottom_right):
    return flashtri.attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, bottom_right=bottom_right, return_lse=True
    )


def _problems():
    # TMA asks for rows of a multiple of 16 bytes: 16 keys in every dtype. Those of a mask of keys may end anywhere.
    lengths = ((1, 1008), (127, 128), (193, 64), (700, 304), (304, 704), (640, 656), (1000, 48), (2100, 2096))
    values = {"bool": ("holes", "dead", "padding"), "f32": ("random", "lowest", "dead"), "own": ("holes", "lowest")}
    cycles = {mask: itertools.cycle(kinds) for mask, kinds in values.items()}
    axes = itertools.cycle(("11qk", "b1qk", "1hqk", "bhqk"))
    causal = itertools.cycle((None, "top_left", "bottom_right", None, "top_left"))
    for (seqlen_q, seqlen_k), head_dim, mask in itertools.product(lengths, (64, 128, 200), values):
        dtype = ("f16", "bf16")[seqlen_q % 2]
        for mask_axes in (next(axes), ("b11k", "1h1k")[head_dim % 3 % 2]):
            of_keys = mask_axes[2] == "1"
            yield Problem(
                heads_q=4, heads_k=2, seqlen_q=seqlen_q, seqlen_k=seqlen_k + (seqlen_q % 3 if of_keys else 0),
                head_dim=head_dim, dtype=dtype, mask=dtype if mask == "own" else mask, mask_axes=mask_axes,
                mask_values=next(cycles[mask]), causal=next(causal),
            )  # fmt: skip


def planned(inputs):
    tensors = {name: (tuple(t.shape), tuple(t.stride())) for name, t in vars(inputs).items() if name in ("q", "k", "v")}
    mask = (tuple(inputs.mask.shape), tuple(inputs.mask.stride()))
    names = {dtype: name for name, dtype in DTYPES.items()} | {torch.bool: "boolean"}
    plan = _C.plan(
        **tensors, out=tensors["q"], mask=mask, dtype=names[inputs.q.dtype], mask_dtype=names[inputs.mask.dtype],
        is_causal=inputs.is_causal, bottom_right=inputs.bottom_right, **DEVICE,
    )  # fmt: skip
    return [launch["kernel"] for launch in plan["launches"]]


@pytest.mark.parametrize("problem", dict.fromkeys(_problems()), ids=str)
def test_against_the_reference(problem):
    inputs = problem.inputs("cuda")
    assert planned(inputs)[-1].startswith("fwd_hopper_mask")
    check(run(ours, inputs), inputs)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("mask_axes", ["b11k", "b1qk"])
def test_repeats_give_the_same_bits(head_dim, mask_axes):
    inputs = Problem(
        heads_q=8, heads_k=8, seqlen_q=1504, seqlen_k=1504, head_dim=head_dim, dtype="bf16", mask="bf16",
        mask_axes=mask_axes, mask_values="holes", causal="top_left",
    ).inputs("cuda")  # fmt: skip
    first = torch.ops.flashtri.fwd(inputs.q, inputs.k, inputs.v, inputs.mask, 0.0, True)
    for _ in range(200):
        again = torch.ops.flashtri.fwd(inputs.q, inputs.k, inputs.v, inputs.mask, 0.0, True)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_a_long_boolean_mask():
    """S = 17,776 with half of the keys hidden from each row, forward and backward, a few rows against the reference."""
    seqlen = 17776
    q, k, v, dout = (torch.randn(1, 1, seqlen, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    mask = torch.rand(seqlen, seqlen, device="cuda") < 0.5
    q.requires_grad_()
    out = flashtri.attention(q, k, v, attn_mask=mask[None, None])
    (dq,) = torch.autograd.grad(out, q, dout)
    rows = torch.tensor([0, 1, 127, 128, 9000, seqlen - 1], device="cuda")
    some = q.detach()[:, :, rows].float().requires_grad_()
    scores = (some @ k.float().mT / math.sqrt(64)).masked_fill(~mask[rows], -math.inf)
    expected = scores.softmax(-1) @ v.float()
    (expected_dq,) = torch.autograd.grad(expected, some, dout[:, :, rows].float())
    for found, wanted in ((out[:, :, rows], expected), (dq[:, :, rows], expected_dq)):
        assert ((found.float() - wanted).norm() / wanted.norm()).item() < 1e-2  # bf16
