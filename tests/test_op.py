"""The op against the reference, forward and backward, over the table of problems, on the device of --device."""

import pytest
import torch
from problems import FORWARD_PROBLEMS, PROBLEMS, Problem
from reference import check, run

import flashtri


def ours(q, k, v, mask, is_causal, scale, bottom_right, **options):
    return flashtri.attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, bottom_right=bottom_right, return_lse=True, **options
    )


def test_ids_are_unique():
    every = PROBLEMS + FORWARD_PROBLEMS
    assert len({str(problem) for problem in every}) == len(every)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_forward_and_backward(problem, device):
    inputs = problem.inputs(device)
    check(run(ours, inputs), inputs)


@pytest.mark.parametrize("problem", FORWARD_PROBLEMS, ids=str)
def test_forward(problem, device):
    inputs = problem.inputs(device)
    check(run(ours, inputs), inputs)


SOME = [
    Problem(seqlen_q=130, heads_k=2, causal="top_left"),
    Problem(seqlen_q=130, mask="f32", mask_axes="1hqk", mask_values="dead", dtype="bf16"),
    Problem(seqlen_q=130, bias="f32", bias_heads=1, sinks="f32", window=(50, 0), softcap=3.0, dropout=0.2),
]


@pytest.mark.parametrize("problem", SOME, ids=str)
def test_repeats_bit_for_bit(problem, device):
    """torch's deterministic mode fills new memory with NaN, so a value that is left unwritten shows as well."""
    inputs = problem.inputs(device)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = run(ours, inputs), run(ours, inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    check(first, inputs)
    for name, value in vars(first).items():
        assert value is None or torch.equal(value, getattr(second, name)), name


@pytest.mark.parametrize("needs", range(1, 32), ids=lambda bits: format(bits, "05b"))
@pytest.mark.parametrize("added", ["mask", "bias"])
def test_only_needed_gradients(added, needs, device):
    """Every subset of inputs that require a gradient gets the same values as all together, and no other gradient."""
    more = {"mask": "f32", "mask_axes": "1hqk"} if added == "mask" else {"bias": "f32"}
    inputs = Problem(seqlen_q=33, seqlen_k=40, sinks="f32", **more).inputs(device)
    full = run(ours, inputs)
    given = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "mask": inputs.mask, **inputs.options}
    names = ["q", "k", "v", "sinks", "mask" if added == "mask" else "relative_bias"]
    for i, name in enumerate(names):
        given[name] = given[name].detach().clone().requires_grad_(bool(needs >> i & 1))
    out, lse = ours(**given, is_causal=False, scale=None, bottom_right=False)
    torch.autograd.backward([out, lse], [inputs.dout, inputs.dlse])
    for name in names:
        if given[name].requires_grad:
            assert torch.equal(given[name].grad, getattr(full, f"d{name}"))
        else:
            assert given[name].grad is None


@pytest.mark.parametrize("added", [{}, {"mask": "bool"}, {"mask": "f32"}, {"sinks": "f32"}, {"bias": "f32"}], ids=str)
def test_bwd_leaves_out_what_is_not_asked(added, device):
    inputs = Problem(seqlen_q=33, seqlen_k=40, **added).inputs(device)
    q, k, v = inputs.q, inputs.k, inputs.v
    sources = (q, k, v, inputs.mask, inputs.options.get("sinks"), inputs.options.get("relative_bias"))
    saved = torch.ops.flashtri.fwd(q, k, v, inputs.mask, **inputs.options)
    for wanted in range(6):
        options = {**inputs.options, "output_mask": [i == wanted for i in range(6)]}
        found = torch.ops.flashtri.bwd(inputs.dout, None, q, k, v, *saved, inputs.mask, **options)
        for i, (gradient, source) in enumerate(zip(found, sources, strict=True)):
            has_gradient = i == wanted and source is not None and source.is_floating_point()
            assert gradient.shape == (source.shape if has_gradient else (0,))


@pytest.mark.parametrize("values", ["one_dead", "one_lowest"])
def test_a_loss_that_ignores_the_masked_row(values, device):
    """Its gradients are those of the other rows alone, and exactly zero where they concern nothing else."""
    inputs = Problem(heads_q=3, heads_k=3, seqlen_k=64, head_dim=64, mask="f32", mask_values=values).inputs(device)
    row = 2 * 3 * 65 // 2
    inputs.dout.flatten(0, 2)[row] = 0
    inputs.dlse.flatten()[row] = 0
    found = run(ours, inputs)
    check(found, inputs)
    assert not found.dq.flatten(0, 2)[row].any() and not found.dmask.flatten(0, 2)[row].any()


@pytest.mark.parametrize("mask", [None, "bool", "f32"])
def test_no_gradient_from_no_gradient(mask, device):
    inputs = Problem(mask=mask, mask_values="dead" if mask else "random", has_dlse=False).inputs(device)
    inputs.dout.zero_()
    found = run(ours, inputs)
    for name in ("dq", "dk", "dv", "dmask"):
        assert getattr(found, name) is None or not getattr(found, name).any(), name


def test_lse_alone(device):
    """A loss of lse only: out has no gradient."""
    inputs = Problem(causal="top_left").inputs(device)
    q, k = (t.detach().requires_grad_() for t in (inputs.q, inputs.k))
    (_, lse) = ours(q, k, inputs.v, None, True, None, False)
    found = torch.autograd.grad(lse, (q, k), inputs.dlse)
    zero = torch.zeros_like(inputs.dout)
    q, k = (t.detach().requires_grad_() for t in (inputs.q, inputs.k))
    both = torch.autograd.grad(ours(q, k, inputs.v, None, True, None, False), (q, k), (zero, inputs.dlse))
    assert all(torch.equal(a, b) for a, b in zip(found, both, strict=True))


def test_row_that_sees_no_key_ignores_its_gradient(device):
    """lse is -inf there, so what comes back through it may be anything."""
    inputs = Problem(mask="f32", mask_values="dead", mask_axes="b1qk").inputs(device)
    q, mask = inputs.q.detach().requires_grad_(), inputs.mask.detach().requires_grad_()
    out, lse = ours(q, inputs.k, inputs.v, mask, False, None, False)
    dead = lse == -torch.inf
    assert dead.any() and (out[dead] == 0).all()
    dq, dmask = torch.autograd.grad((out, lse), (q, mask), (inputs.dout, inputs.dlse.masked_fill(dead, torch.nan)))
    assert dq.isfinite().all() and (dq[dead] == 0).all()
    assert dmask.isfinite().all()


def test_out_keeps_the_layout_of_q(device):
    q, k, v = (torch.randn(2, 65, 4, 32, device=device, dtype=torch.float16).transpose(1, 2) for _ in range(3))
    out = flashtri.attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    assert flashtri.attention(q.contiguous(), k, v).is_contiguous()
