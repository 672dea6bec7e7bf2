"""Hopper's kernels on the device: lengths around their tiles, repeats, and streams that run them at the same time."""

import itertools

import pytest
import torch
from problems import Problem
from reference import check, run

import flashtri
from flashtri import _C

DEVICE = _C.device(0) if _C.device_count() else {"arch": 0}
pytestmark = pytest.mark.skipif(DEVICE["arch"] != 90, reason="needs a Hopper GPU")


BACKWARD_DIMS = [64, 128, 256, 40, 96, 200]


def ours(q, k, v, mask, is_causal, scale, bottom_right):
    return flashtri.attention(q, k, v, is_causal=is_causal, scale=scale, bottom_right=bottom_right, return_lse=True)


def _problems():
    # Around tiles of 128 and 192 queries and of 64 and 128 keys; more queries than keys leaves rows without a key.
    lengths = ((65, 1000), (127, 129), (193, 64), (700, 300), (300, 700), (640, 641), (1000, 40))
    layouts = itertools.cycle(("dense", "bshd", "sliced"))
    dims = itertools.cycle((64, 128, 256, 40, 96, 200, 56))
    for (seqlen_q, seqlen_k), causal in itertools.product(lengths, (None, "top_left", "bottom_right")):
        for dtype, heads_k in (("f16", 2), ("bf16", 6)):
            yield Problem(
                heads_q=6, heads_k=heads_k, seqlen_q=seqlen_q, seqlen_k=seqlen_k, head_dim=next(dims), dtype=dtype,
                causal=causal, layout=next(layouts),
            )  # fmt: skip
    # The tile of long problems, at head_dim 64 another than that of short ones.
    for causal in ("top_left", "bottom_right"):
        yield Problem(batch=1, heads_q=2, heads_k=1, seqlen_q=4100, seqlen_k=4200, head_dim=64, causal=causal)
    yield Problem(seqlen_q=300, seqlen_k=300, head_dim=64, head_dim_v=128, causal="top_left")
    yield Problem(seqlen_q=300, seqlen_k=300, head_dim=200, head_dim_v=40, scale=2.0)


def planned(inputs, backward):
    """The names of the kernels; gradients lie in memory as what they are of."""
    names = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "out": inputs.dout}
    if backward:
        names |= {"dout": inputs.dout, "dq": inputs.q, "dk": inputs.k, "dv": inputs.v}
    tensors = {name: (tuple(t.shape), tuple(t.stride())) for name, t in names.items()}
    plan = _C.plan(**tensors, is_causal=inputs.is_causal, backward=backward, **DEVICE)
    return [launch["kernel"] for launch in plan["launches"]]


def backward_inputs(seqlen=1000, head_dim=128, heads_q=8, heads_k=4, dtype=torch.bfloat16):
    q, dout = (torch.randn(2, heads_q, seqlen, head_dim, device="cuda", dtype=dtype) for _ in range(2))
    k, v = (torch.randn(2, heads_k, seqlen, head_dim, device="cuda", dtype=dtype) for _ in range(2))
    return q, k, v, dout


def gradients(q, k, v, dout, is_causal, needs_dq=True):
    out, lse, row_stats, rng_state = torch.ops.flashtri.fwd(q, k, v, None, 0.0, is_causal)
    wanted = [needs_dq, True, True, False, False, False]
    return torch.ops.flashtri.bwd(
        dout, None, q, k, v, out, lse, row_stats, rng_state, None, 0.0, is_causal, output_mask=wanted
    )[:3]


@pytest.mark.parametrize("problem", dict.fromkeys(_problems()), ids=str)
def test_against_the_reference(problem):
    inputs = problem.inputs("cuda")
    assert planned(inputs, backward=False)[0].startswith("fwd_hopper")
    assert planned(inputs, backward=True)[1].startswith("bwd_hopper")
    check(run(ours, inputs), inputs)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("head_dim", BACKWARD_DIMS)
def test_the_backward_writes_every_value(head_dim, is_causal):
    """Its results and scratch come from memory full of NaN."""
    tensors = backward_inputs(head_dim=head_dim)
    expected = gradients(*tensors, is_causal)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    poison = torch.full((1 << 26,), float("nan"), device="cuda")
    pieces = [t.clone() for t in poison.split(1 << 22)]
    del poison, pieces
    for found, value in zip(gradients(*tensors, is_causal), expected, strict=True):
        assert not found.isnan().any()
        torch.testing.assert_close(found, value, rtol=1e-2, atol=1e-3)  # dq is summed in another order


@pytest.mark.parametrize("head_dim", BACKWARD_DIMS)
def test_a_zero_dout_gives_exactly_zero(head_dim):
    q, k, v, dout = backward_inputs(head_dim=head_dim, dtype=torch.float16)
    assert all(not found.any() for found in gradients(q, k, v, dout.zero_(), True))


@pytest.mark.parametrize("head_dim", BACKWARD_DIMS)
def test_the_backward_without_dq(head_dim):
    tensors = backward_inputs(head_dim=head_dim)
    _, dk, dv = gradients(*tensors, True)
    dq, dk_alone, dv_alone = gradients(*tensors, True, needs_dq=False)
    # Nothing is added to dk and dv from elsewhere: their bits do not change.
    assert dq.numel() == 0 and torch.equal(dk, dk_alone) and torch.equal(dv, dv_alone)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_deterministic_gradients_repeat_bit_for_bit(head_dim):
    tensors = backward_inputs(head_dim=head_dim, seqlen=2000)
    torch.use_deterministic_algorithms(True)
    try:
        first = gradients(*tensors, True)
        assert all(torch.equal(a, b) for _ in range(50) for a, b in zip(gradients(*tensors, True), first, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_500_repeats_give_the_same_bits(head_dim, is_causal):
    q, k, v = (torch.randn(2, 8, 1500, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    first = torch.ops.flashtri.fwd(q, k, v, None, 0.0, is_causal)
    for _ in range(500):
        again = torch.ops.flashtri.fwd(q, k, v, None, 0.0, is_causal)
        assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])


def test_streams_at_the_same_time():
    """A schedule that kept a counter in memory would mix up launches that run together."""
    inputs = [torch.randn(3, 1, 8, 700, 128, device="cuda", dtype=torch.float16) for _ in range(8)]
    expected = [torch.ops.flashtri.fwd(*qkv, None, 0.0, True)[:2] for qkv in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    found = [[] for _ in inputs]
    for _ in range(20):
        for qkv, stream, results in zip(inputs, streams, found, strict=True):
            with torch.cuda.stream(stream):
                results.append(torch.ops.flashtri.fwd(*qkv, None, 0.0, True)[:2])
    torch.cuda.synchronize()
    for (out, lse), results in zip(expected, found, strict=True):
        assert all(torch.equal(out, o) and torch.equal(lse, m) for o, m in results)
