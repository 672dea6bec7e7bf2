"""What dropout draws: repeatable from the seed, independent of how the work is split, kept in compiled programs."""

import pytest
import torch
from problems import Problem
from reference import kept

import flashtri

P = 0.25


def drawn(problem, device, seed=0, **options):
    """The factor of each probability, read off by values that are the rows of a unit matrix, and the forward's lse."""
    inputs = problem.inputs(device)
    keys = torch.eye(problem.seqlen_k, device=device, dtype=inputs.q.dtype).expand(
        problem.batch, problem.heads_k, -1, -1
    )
    torch.manual_seed(seed)
    dropped, lse = flashtri.attention(inputs.q, inputs.k, keys, dropout_p=P, return_lse=True, **options)
    plain, plain_lse = flashtri.attention(inputs.q, inputs.k, keys, return_lse=True, **options)
    assert torch.allclose(lse, plain_lse, rtol=1e-5, atol=1e-5)
    return dropped.float() / plain.float()


SQUARE = Problem(seqlen_q=70, seqlen_k=128, head_dim=64, dtype="bf16")


def test_the_share_that_is_dropped_and_the_scale_of_the_rest(device):
    factors = drawn(SQUARE, device)
    is_kept = factors != 0
    count = factors.numel()
    # Five standard deviations of a binomial distribution.
    assert abs(is_kept.float().mean().item() - (1 - P)) < 5 * (P * (1 - P) / count) ** 0.5
    # Both are rounded to bf16, by up to 2^-9 of themselves.
    torch.testing.assert_close(factors[is_kept], torch.full_like(factors[is_kept], 1 / (1 - P)), rtol=2e-2, atol=0.0)


def test_the_seed_decides(device):
    first, again, other = drawn(SQUARE, device), drawn(SQUARE, device), drawn(SQUARE, device, seed=1)
    assert torch.equal(first, again) and not torch.equal(first != 0, other != 0)
    heads = (first != 0).flatten(0, 1)
    assert not any(torch.equal(a, b) for a, b in zip(heads[1:], heads, strict=False))


def test_a_window_does_not_change_the_draw(device):
    whole, narrow = drawn(SQUARE, device), drawn(SQUARE, device, window_left=40, window_right=9)
    seen = narrow.isfinite()
    assert seen.any() and not seen.all()
    assert torch.equal((whole != 0)[seen], (narrow != 0)[seen])


def test_the_state_is_what_the_backward_and_the_reference_take(device):
    inputs = SQUARE.inputs(device)
    rng_state = torch.ops.flashtri.fwd(inputs.q, inputs.k, inputs.v, None, P)[3]
    assert rng_state.shape == (2,) and rng_state.dtype == torch.int64 and rng_state.device == inputs.q.device
    share = kept(rng_state.tolist(), P, (2, 4, 70, 128)).float().mean().item()
    assert abs(share - (1 - P)) < 0.02


@pytest.mark.parametrize("dropout_p, expected", [(1e-9, 1.0), (1 - 1e-9, 0.0)])
def test_the_ends_of_the_range(dropout_p, expected, device):
    inputs = SQUARE.inputs(device)
    out = flashtri.attention(inputs.q, inputs.k, inputs.v, dropout_p=dropout_p)
    plain = flashtri.attention(inputs.q, inputs.k, inputs.v)
    torch.testing.assert_close(out, expected * plain, rtol=2e-2, atol=2e-2)


def test_compiled_with_its_gradient(device):
    """The backward of a compiled program drops what its forward dropped."""
    inputs = SQUARE.inputs(device)
    q, k, v = (t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v))

    def loss(q, k, v):
        return torch.ops.flashtri.fwd(q, k, v, None, P)[0].float().square().sum()

    found = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(function(q, k, v), (q, k, v)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_checkpoint_draws_the_same_again(device):
    inputs = SQUARE.inputs(device)
    q, k, v = (t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v))

    def loss(q, k, v):
        return flashtri.attention(q, k, v, dropout_p=P).float().square().sum()

    torch.manual_seed(3)
    plain = torch.autograd.grad(loss(q, k, v), (q, k, v))
    torch.manual_seed(3)
    again = torch.autograd.grad(torch.utils.checkpoint.checkpoint(loss, q, k, v, use_reentrant=False), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
