"""Packed sequences beyond the table of problems: against a batch, nested tensors, errors, and torch's own checks."""

import pytest
import torch
from problems import Problem
from reference import run
from test_op import ours

import flashtri

fwd = torch.ops.flashtri.fwd
PROBLEM = Problem(packed=((20, 33), (0, 5), (17, 0), (40, 40)), heads_k=2, causal="bottom_right")


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_sequences_of_one_length_are_a_batch(causal, device):
    batch = Problem(batch=3, heads_k=2, causal=causal, sinks="f32", has_dlse=True).inputs(device)
    lengths = {"q": batch.q.shape[2], "k": batch.k.shape[2]}

    def packed(q, k, v, mask, *options, **more):
        cu_seqlens = {f"cu_seqlens_{n}": torch.arange(4, device=device, dtype=torch.int32) * lengths[n] for n in "qk"}
        longest = {f"max_seqlen_{n}": lengths[n] for n in "qk"}
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))
        out, lse = ours(q, k, v, mask, *options, **more, **cu_seqlens, **longest)
        return out.unflatten(0, (3, -1)).transpose(1, 2), lse.unflatten(1, (3, -1)).transpose(0, 1)

    found, expected = run(packed, batch), run(ours, batch)
    for name, value in vars(expected).items():
        if value is not None:
            torch.testing.assert_close(getattr(found, name), value, rtol=1e-2, atol=1e-3)


def nested(packed, offsets):
    return torch.nested.nested_tensor_from_jagged(packed, offsets=offsets).transpose(1, 2)


def test_nested_tensors(device):
    inputs = PROBLEM.inputs(device)
    packed = [t.contiguous().requires_grad_() for t in (inputs.q, inputs.k, inputs.v)]
    offsets = {name: inputs.options[f"cu_seqlens_{name}"].long() for name in "qk"}
    q, k, v = (nested(t, offsets[name]) for t, name in zip(packed, "qkk", strict=True))
    out, lse = flashtri.attention(q, k, v, is_causal=True, bottom_right=True, return_lse=True)
    assert out.is_nested and out.shape == q.shape and lse.shape == q.shape[:3]
    expected = ours(*packed, None, True, None, True, **inputs.options)
    assert torch.equal(out.transpose(1, 2).values(), expected[0])
    assert torch.equal(lse.transpose(1, 2).values(), expected[1].transpose(0, 1))
    found = torch.autograd.grad(out.transpose(1, 2).values(), packed, inputs.dout)
    for a, b in zip(found, torch.autograd.grad(expected[0], packed, inputs.dout), strict=True):
        assert torch.equal(a, b)


def test_a_dense_tensor_beside_a_nested_one(device):
    inputs = PROBLEM.inputs(device)
    q = nested(inputs.q.contiguous(), inputs.options["cu_seqlens_q"].long())
    with pytest.raises(ValueError, match=r"k must be a nested tensor .*; got a dense tensor; make it with"):
        flashtri.attention(q, inputs.k, inputs.v)


# Changes to the keywords of PROBLEM, then the exception and what its message must say.
BAD = {
    "one of two": ({"cu_seqlens_k": None}, ValueError, "need both cu_seqlens_q and cu_seqlens_k; got one"),
    "no longest": ({"max_seqlen_q": None}, ValueError, "need max_seqlen_q and max_seqlen_k.*got one of them; compute"),
    "int64": ({"cu_seqlens_q": torch.zeros(5)}, ValueError, "cu_seqlens_q must be int32; got Float; cast"),
    "rank": (
        {"cu_seqlens_q": torch.zeros(5, 1, dtype=torch.int32)},
        ValueError,
        r"must be \[sequences \+ 1\]; got .*\[5, 1\]",
    ),
    "other counts": (
        {"cu_seqlens_q": torch.zeros(4, dtype=torch.int32)},
        ValueError,
        "one more entry than there are sequences.*got 4 and 5",
    ),
    "negative": ({"max_seqlen_k": -1}, ValueError, "at least 0; got 40 and -1"),
    "mask": (
        {"attn_mask": torch.zeros(1)},
        NotImplementedError,
        "attn_mask together with cu_seqlens_q .* sees its own",
    ),
    "seqused_k": (
        {"seqused_k": torch.zeros(1, dtype=torch.int32)},
        NotImplementedError,
        "seqused_k together with cu_seqlens_q is not implemented",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case, device):
    changes, error, message = BAD[case]
    inputs = PROBLEM.inputs(device)
    changes = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in changes.items()}
    with pytest.raises(error, match=message):
        flashtri.attention(inputs.q, inputs.k, inputs.v, **(inputs.options | changes))


def test_ranks(device):
    inputs = PROBLEM.inputs(device)
    with pytest.raises(ValueError, match=r"with cu_seqlens_q, q, k and v must have 3 dimensions .*; got 4"):
        flashtri.attention(inputs.q[None], inputs.k, inputs.v, **inputs.options)
    with pytest.raises(ValueError, match="max_seqlen_q and max_seqlen_k go with cu_seqlens_q and"):
        flashtri.attention(*(t.transpose(0, 1)[None] for t in (inputs.q, inputs.k, inputs.v)), max_seqlen_q=3)


def test_where_sequences_begin_is_checked_on_the_cpu():
    inputs = PROBLEM.inputs()
    wrong = inputs.options | {"cu_seqlens_q": torch.tensor([0, 20, 10, 37, 77], dtype=torch.int32)}
    with pytest.raises(ValueError, match="cu_seqlens_q must ascend from 0 to the 77 rows there are"):
        flashtri.attention(inputs.q, inputs.k, inputs.v, **wrong)


def test_opcheck(device):
    inputs = PROBLEM.inputs(device)
    q, k, v = (t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v))
    torch.library.opcheck(fwd.default, (q, k, v, None, 0.0, True), {"bottom_right": True, **inputs.options})


def test_compile(device):
    inputs = PROBLEM.inputs(device)

    def loss(q, k, v):
        out, lse = ours(q, k, v, None, True, None, True, **inputs.options)
        return (out.float() * inputs.dout.float()).sum()

    q, k, v = (t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v))
    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    found = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(q, k, v), (q, k, v))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
