"""flashtri.merge, flashtri.alibi and flashtri.t5_bias against their formulas, and their gradients."""

import math

import pytest
import torch
from problems import Problem
from reference import attention, check_tensor

import flashtri


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("mask", [None, "f32"])
@pytest.mark.parametrize("split", [0, 1, 70, 130])
def test_split_keys_merge_to_attention_over_all(split, mask, device):
    inputs = Problem(heads_k=2, mask=mask, mask_axes="b1qk", mask_values="dead").inputs(device)

    def split_and_merge(q, k, v, mask):
        parts = []
        for keys in (slice(0, split), slice(split, None)):
            part = None if mask is None else mask[..., keys]
            parts += flashtri.attention(q, k[:, :, keys], v[:, :, keys], attn_mask=part, return_lse=True)
        return flashtri.merge(*parts)

    def results(function, *tensors):
        tensors = [t if t is None else t.detach().requires_grad_() for t in tensors]
        out, lse = function(*tensors)
        wanted = [t for t in tensors if t is not None]
        gradients = (inputs.dout.to(out.dtype), inputs.dlse.to(lse.dtype))
        return [out.detach(), *torch.autograd.grad((out, lse), wanted, gradients)], lse.detach()

    tensors = (inputs.q, inputs.k, inputs.v, inputs.mask)
    ours, lse = results(split_and_merge, *tensors)
    expected, expected_lse = results(attention, *(t if t is None else t.double() for t in tensors))
    half = [t if t is None else t.to(inputs.q.dtype) for t in tensors]
    peer, _ = results(attention, *half)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)
    for name, a, b, c in zip(("out", "dq", "dk", "dv", "dmask"), ours, peer, expected, strict=False):
        check_tensor(name, a, b.to(a.dtype), c)


def test_merge_of_rows_without_keys(device):
    """On one side they leave the other as it is; on both they give 0 and -inf, and no NaN as a gradient."""
    out1, out2 = leaves(*torch.randn(2, 1, 1, 3, 8, device=device))
    lse1 = torch.tensor([[[0.5, -math.inf, -math.inf]]], device=device).requires_grad_()
    lse2 = torch.tensor([[[-math.inf, 1.5, -math.inf]]], device=device).requires_grad_()
    out, lse = flashtri.merge(out1, lse1, out2.detach().requires_grad_(), lse2)
    assert torch.equal(out[0, 0, 0], out1[0, 0, 0]) and torch.equal(out[0, 0, 1], out2[0, 0, 1])
    assert torch.isfinite(out).all()
    assert lse.tolist() == [[[0.5, 1.5, -math.inf]]]
    gradients = torch.autograd.grad((out, lse), (out1, lse1, lse2), (torch.ones_like(out), torch.ones_like(lse)))
    assert all(g.isfinite().all() for g in gradients)
    for found, expected in zip(gradients[1:], ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]), strict=True):
        torch.testing.assert_close(found[0, 0], torch.tensor(expected, device=device))


def test_merge_refuses_other_shapes():
    out, lse = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=r"one shape.*got \(1, 2, 3, 8\), \(1, 2, 3\).*\(1, 2, 4\); pass what"):
        flashtri.merge(out, lse, out, torch.zeros(1, 2, 4))


def as_matrix(bias, seqlen_q, seqlen_k):
    index = torch.arange(seqlen_k) - torch.arange(seqlen_q).unsqueeze(1) + seqlen_q - 1
    return bias[:, index.to(bias.device)]


@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(5, 9), (9, 5), (1, 7)])
def test_alibi_is_its_formula(seqlen_q, seqlen_k, bottom_right):
    slopes = torch.tensor([0.5, 0.25])
    matrix = as_matrix(flashtri.alibi(slopes, seqlen_q, seqlen_k, bottom_right=bottom_right), seqlen_q, seqlen_k)
    diagonal = seqlen_k - seqlen_q if bottom_right else 0
    for h, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(seqlen_q), torch.arange(seqlen_k)).tolist():
        assert matrix[h, i, j] == -slopes[h] * abs(j - i - diagonal)


def t5_bucket(distance, bidirectional, buckets, max_distance):
    """One distance at a time, as T5's own source has it (mesh_tensorflow/transformer/transformer_layers.py)."""
    bucket, n = 0, -distance
    if bidirectional:
        buckets //= 2
        bucket += buckets if n < 0 else 0
        n = abs(n)
    else:
        n = max(n, 0)
    exact = buckets // 2
    if n < exact:
        return bucket + n
    growth = math.log(n / exact) / math.log(max_distance / exact) * (buckets - exact)
    return bucket + min(exact + int(growth), buckets - 1)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 20), (5, 7)])
def test_t5_bias_is_its_formula(bidirectional, buckets, max_distance):
    table = torch.arange(float(buckets)).unsqueeze(1).repeat(1, 3)
    found = flashtri.t5_bias(table, 150, 170, bidirectional=bidirectional, max_distance=max_distance)
    expected = [t5_bucket(n - 149, bidirectional, buckets, max_distance) for n in range(319)]
    # A logarithm that lands on a whole number may round either way: the distances where a bucket ends.
    assert ((found[0] - torch.tensor(expected)).abs() > 0).sum() <= 2
    assert torch.equal(found[0], found[2])


def test_gradients_reach_slopes_and_table(device):
    """Through the op, as through the same bias written out as a mask."""
    inputs = Problem(heads_k=2, causal="top_left").inputs(device)
    slopes, table = torch.tensor([0.5, 0.3, 0.2, 0.1], device=device), torch.randn(32, 4, device=device)
    for parameter, make in ((slopes, flashtri.alibi), (table, flashtri.t5_bias)):
        found, expected, half = (t.detach().to(d).requires_grad_() for t, d in zip([parameter] * 3, (
            torch.float32, torch.float64, torch.float16), strict=True))  # fmt: skip
        bias = make(found, 65, 130)
        out = flashtri.attention(inputs.q, inputs.k, inputs.v, relative_bias=bias, is_causal=True)
        gradients = [torch.autograd.grad(out, found, inputs.dout)[0]]
        for leaf in (half, expected):
            q, k, v, dout = (t.to(leaf.dtype) for t in (inputs.q, inputs.k, inputs.v, inputs.dout))
            matrix = as_matrix(make(leaf, 65, 130), 65, 130)
            gradients += torch.autograd.grad(attention(q, k, v, matrix, True)[0], leaf, dout)
        check_tensor(make.__name__, gradients[0], gradients[1].float(), gradients[2])


def test_bad_tables():
    with pytest.raises(ValueError, match=r"slopes must have one dimension.*\(4, 1\); flatten"):
        flashtri.alibi(torch.zeros(4, 1), 8, 8)
    with pytest.raises(ValueError, match=r"at least 4 buckets.*got \(3, 4\) and 128"):
        flashtri.t5_bias(torch.zeros(3, 4), 8, 8)
