"""What torch builds on an op's gradient: torch.func, vmap, compiled autograd, double backward, autocast."""

import pytest
import torch
from problems import Problem
from torch.func import grad, vmap

import flashtri

fwd, bwd = torch.ops.flashtri.fwd, torch.ops.flashtri.bwd


def loss_of(q, k, v, mask=None, dout=None, causal=True):
    return (fwd(q, k, v, mask, 0.0, causal)[0].float() * dout.float()).sum()


def leaves(inputs):
    return [t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v, inputs.mask) if t is not None]


MASKED = Problem(seqlen_q=33, seqlen_k=40, mask="f32", mask_axes="b1qk", mask_values="dead", causal="top_left")


def test_func_grad(device):
    inputs = MASKED.inputs(device)
    tensors = (inputs.q, inputs.k, inputs.v, inputs.mask)
    found = grad(loss_of, argnums=(0, 1, 2, 3))(*tensors, inputs.dout)
    plain = leaves(inputs)
    for a, b in zip(found, torch.autograd.grad(loss_of(*plain, inputs.dout), plain), strict=True):
        assert torch.equal(a, b)


# Which of q, k, v, mask have the dimension that vmap takes away, and where.
@pytest.mark.parametrize(
    "in_dims", [(0, 0, 0, 0), (1, 2, 0, 3), (0, None, None, None), (None, None, None, 0), (0, 0, 0, None)], ids=str
)
@pytest.mark.parametrize("mask_axes", ["b1qk", "1hqk", "qk", "k"])
def test_vmap(in_dims, mask_axes, device):
    shape = {"batch": 3, "seqlen_q": 17, "seqlen_k": 24, "heads_k": 2, "mask": "f32", "mask_axes": mask_axes}
    drawn = [Problem(**shape, scale=scale).inputs(device) for scale in (0.1, 0.2, 0.3)]
    samples = [(i.q, i.k, i.v, i.mask) for i in drawn]

    def f(*tensors):
        return fwd(*tensors, 0.0, True)

    def gradients(*tensors):
        dout = drawn[0].dout
        return grad(lambda *t: loss_of(*t, dout), argnums=(0, 1, 2, 3))(*tensors)

    in_dims = tuple(min(d, samples[0][i].dim()) if d is not None else None for i, d in enumerate(in_dims))
    stacked = [
        torch.stack([s[i] for s in samples], d) if d is not None else samples[0][i] for i, d in enumerate(in_dims)
    ]
    for function in (f, gradients):
        found = vmap(function, in_dims)(*stacked)
        for n in range(3):
            one = function(*[samples[n if d is not None else 0][i] for i, d in enumerate(in_dims)])
            for a, b in zip(found, one, strict=True):
                assert a[n].shape == b.shape
                torch.testing.assert_close(a[n], b, rtol=1e-3, atol=1e-3)


def test_vmap_twice(device):
    q = torch.randn(2, 3, 2, 4, 16, 32, device=device).half()
    found = vmap(vmap(lambda t: fwd(t, t, t)[0]))(q)
    assert torch.equal(found, torch.stack([torch.stack([fwd(b, b, b)[0] for b in a]) for a in q]))


@pytest.mark.parametrize("has_mask", [False, True])
def test_compiled_autograd(has_mask, device):
    inputs = (MASKED if has_mask else Problem(seqlen_q=33, causal="top_left")).inputs(device)
    eager, compiled = leaves(inputs), leaves(inputs)

    def loss(tensors):
        out, lse, _, _ = fwd(*tensors, *(() if has_mask else (None,)), 0.0, True, scale=0.25)
        return (out * inputs.dout).sum() + lse.clamp(min=-1e9).sum()

    loss(eager).backward()
    seen = []

    def compile_graph(graph):
        seen.append(str(graph.code))
        return torch.compile(graph, backend="aot_eager", fullgraph=True, dynamic=True)

    with torch._dynamo.compiled_autograd._enable(compile_graph):
        for _ in range(2):
            for tensor in compiled:
                tensor.grad = None
            loss(compiled).backward()
    assert seen, "compiled autograd traced nothing"
    for a, b in zip(eager, compiled, strict=True):
        assert torch.equal(a.grad, b.grad)


def test_compiled_autograd_sees_a_new_scale(device):
    inputs = Problem(seqlen_q=33).inputs(device)
    with torch._dynamo.compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
        for scale in (0.1, 0.7):
            found, plain = leaves(inputs), leaves(inputs)
            (fwd(*found, scale=scale)[0] * inputs.dout).sum().backward()
            with torch._dynamo.compiled_autograd._disable():
                (fwd(*plain, scale=scale)[0] * inputs.dout).sum().backward()
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(found, plain, strict=True))


def test_double_backward_raises_where_it_is_used(device):
    inputs = Problem(seqlen_q=33).inputs(device)
    q, k, v = leaves(inputs)
    (dq,) = torch.autograd.grad(fwd(q, k, v)[0], q, inputs.dout, create_graph=True)
    (plain,) = torch.autograd.grad(fwd(q, k, v)[0], q, inputs.dout)
    assert torch.equal(dq, plain)  # asking for the graph costs nothing
    with pytest.raises(NotImplementedError, match="no double backward.*got one.*use create_graph=False"):
        dq.sum().backward()


@pytest.mark.parametrize("name", ["q", "k", "v", "attn_mask"])
@pytest.mark.parametrize("grad_mode", [True, False], ids=["grad", "no_grad"])
def test_forward_mode_raises(name, grad_mode, device):
    inputs = MASKED.inputs(device)
    given = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "attn_mask": inputs.mask}
    message = "no forward-mode derivative.*tangent; use reverse mode"
    with torch.set_grad_enabled(grad_mode), torch.autograd.forward_ad.dual_level():
        given[name] = torch.autograd.forward_ad.make_dual(given[name], torch.ones_like(given[name]))
        with pytest.raises(NotImplementedError, match=message):
            flashtri.attention(**given)


def test_jvp_raises(device):
    q = Problem().inputs(device).q
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda t: fwd(t, t, t)[0], (q,), (q,))


def test_what_has_no_gradient(device):
    inputs = MASKED.inputs(device)
    out, lse, row_stats, rng_state = fwd(*leaves(inputs))
    assert out.requires_grad and lse.requires_grad
    assert not row_stats.requires_grad and not rng_state.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, device):
    inputs = MASKED.inputs(device)
    q, k, v, mask = leaves(inputs)
    with mode():
        out = flashtri.attention(q, k, v, attn_mask=mask, is_causal=True)
    assert not out.requires_grad
    assert torch.equal(out, flashtri.attention(q, k, v, attn_mask=mask, is_causal=True))


def test_saved_tensors_are_guarded_and_freed(device):
    q, k, v = leaves(Problem(seqlen_q=33).inputs(device))
    out = flashtri.attention(q, k, v)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()
    k = k.detach().clone().requires_grad_()
    out = flashtri.attention(q, k, v)
    with torch.no_grad():
        k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensor_hooks(device):
    """As activation offloading uses them."""
    inputs = MASKED.inputs(device)
    packed = []
    tensors = leaves(inputs)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.cpu(), lambda t: t.to(device)):
        loss_of(*tensors, inputs.dout).backward()
    plain = leaves(inputs)
    loss_of(*plain, inputs.dout).backward()
    assert len(packed) >= 6
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(tensors, plain, strict=True))


def test_checkpoint(device):
    inputs = MASKED.inputs(device)
    tensors, plain = leaves(inputs), leaves(inputs)
    torch.utils.checkpoint.checkpoint(loss_of, *tensors, inputs.dout, use_reentrant=False).backward()
    loss_of(*plain, inputs.dout).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(tensors, plain, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(dtype, device):
    """fp32 parameters, an fp32 mask that keeps its dtype, and a backward that itself runs under autocast."""
    inputs = MASKED.inputs(device)
    tensors = [t.detach().float().requires_grad_() for t in (inputs.q, inputs.k, inputs.v, inputs.mask)]
    with torch.autocast(device.type, dtype):
        out, lse = flashtri.attention(*tensors[:3], attn_mask=tensors[3], is_causal=True, return_lse=True)
        gradients = torch.autograd.grad((out, lse), tensors, (inputs.dout.to(dtype), inputs.dlse))
    assert out.dtype == dtype and all(g.dtype == torch.float32 for g in gradients)
    plain = [t.detach().to(dtype).requires_grad_() for t in tensors[:3]] + [tensors[3].detach().requires_grad_()]
    out2, lse2 = flashtri.attention(*plain[:3], attn_mask=plain[3], is_causal=True, return_lse=True)
    again = torch.autograd.grad((out2, lse2), plain, (inputs.dout.to(dtype), inputs.dlse))
    assert torch.equal(out, out2) and torch.equal(lse, lse2)
    assert all(torch.equal(a, b.float()) for a, b in zip(gradients, again, strict=True))


def test_autocast_casts_a_mix(device):
    """q already in half precision, k and v not."""
    inputs = Problem(dtype="bf16").inputs(device)
    with torch.autocast(device.type, torch.bfloat16):
        out = flashtri.attention(inputs.q, inputs.k.float(), inputs.v.float())
    assert torch.equal(out, flashtri.attention(inputs.q, inputs.k, inputs.v))
