"""How the op launches on a CUDA device: what only a fresh process or a real stream can show.

Each test that needs the very first call runs its program in a process of its own.
"""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import flashtri  # noqa: F401  registers torch.ops.flashtri

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PREAMBLE = """
import sys
sys.modules["triton"] = None  # importing it raises
import torch
import flashtri
fwd, bwd = torch.ops.flashtri.fwd, torch.ops.flashtri.bwd

def inputs(seed=0, batch=2, heads=4, seqlen=256, head_dim=64):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, seqlen, head_dim)
    return [torch.randn(shape, generator=generator).to("cuda", torch.float16) for _ in range(4)]

def run(q, k, v, dout):
    out, lse, row_stats, rng_state = fwd(q, k, v, None, 0.0, True)
    return [out, *bwd(dout, None, q, k, v, out, lse, row_stats, rng_state, None, 0.0, True)[:3]]

def reference(q, k, v, dout):
    q, k, v = (t.detach().float().requires_grad_() for t in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout.float())]

def check(ours, expected):
    for got, want in zip(ours, expected, strict=True):
        error = ((got.float() - want).norm() / want.norm()).item()
        assert error < 2e-3, error  # fp16: see tests/reference.py for the bound of every problem
"""


def run_program(program, **environment):
    code = PREAMBLE + textwrap.dedent(program) + "\nprint('passed')\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.endswith("passed\n"), done.stdout + done.stderr


def test_needs_neither_path_nor_home(tmp_path):
    """No compiler can be found, nothing can be written, Triton cannot be imported."""
    program = """
        tensors = inputs()
        check(run(*tensors), reference(*tensors))
    """
    run_program(
        program, PATH="", HOME="/proc/nowhere", XDG_CACHE_HOME="/proc/nowhere", TRITON_CACHE_DIR="/proc/nowhere"
    )


def test_first_call_inside_graph_capture():
    """The kernels are loaded while the stream is captured; replays read the inputs' new values."""
    program = """
        static = inputs(seed=0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = run(*static)
        for seed in (1, 2, 3):
            fresh = inputs(seed=seed)
            for old, new in zip(static, fresh):
                old.copy_(new)
            graph.replay()
            torch.cuda.synchronize()
            check(results, reference(*fresh))
    """
    run_program(program)


def test_dropout_in_a_graph_draws_anew_at_each_replay():
    """And the backward that was captured with it drops what the forward dropped: out and dv share their zeros."""
    program = """
        q, k, _, _ = inputs(seqlen=64)
        unit = torch.eye(64, device="cuda", dtype=torch.float16).expand(2, 4, 64, 64)
        torch.cuda.manual_seed(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, lse, row_stats, rng_state = fwd(q, k, unit, None, 0.5)
            dv = bwd(unit, None, q, k, unit, out, lse, row_stats, rng_state, None, 0.5)[2]
        seen = []
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out != 0, dv.transpose(2, 3) != 0)
            seen.append((rng_state.clone(), out != 0))
        assert not torch.equal(seen[0][0], seen[1][0]) and not torch.equal(seen[1][1], seen[2][1])
    """
    run_program(program)


def test_eight_threads_race_the_first_call():
    program = """
        import threading
        barrier = threading.Barrier(8)
        tensors = [inputs(seed=i) for i in range(8)]
        results = [None] * 8
        torch.cuda.synchronize()

        def work(i):
            barrier.wait()
            results[i] = run(*tensors[i])
            torch.cuda.synchronize()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(8):
            check(results[i], reference(*tensors[i]))
    """
    run_program(program)


def test_side_stream_with_delayed_producer():
    """Run on any other stream, the op would read the inputs before they are written."""
    program = """
        real = inputs(seed=5)
        late = [torch.full_like(t, float("nan")) for t in real]
        run(*inputs(seed=6))  # load first: a module load may synchronise
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)  # about 0.1 s
            for to, source in zip(late, real):
                to.copy_(source)
            results = run(*late)
        assert not stream.query(), "the producer was not delayed"
        stream.synchronize()
        check(results, reference(*real))
    """
    run_program(program)


def _same_as_contiguous(q, k, v, dout, **options):
    """Strides must not change a bit of the results."""

    def run(*tensors):
        leaves = [t.detach().requires_grad_() for t in tensors[:3]]
        out, lse, *_ = torch.ops.flashtri.fwd(*leaves, **options)
        return [out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, tensors[3])]

    for strided, contiguous in zip(run(q, k, v, dout), run(*(t.contiguous() for t in (q, k, v, dout))), strict=True):
        assert torch.isfinite(strided).all()
        assert torch.equal(strided, contiguous)


@pytest.mark.parametrize("far", ["row", "head", "batch"])
def test_offsets_past_2_31(far):
    """The last rows, heads or batch items of q, k, v and dout lie more than 2^31 elements after the first."""
    head_dim = 64
    if far == "row":  # 70,016 rows, 32,768 elements apart
        shape, stride = (1, 2, 70_016, head_dim), (0, head_dim, 32_768, 1)
    elif far == "head":
        shape, stride = (1, 3, 512, head_dim), (0, 2**30 + 64, head_dim, 1)
    else:
        shape, stride = (3, 1, 512, head_dim), (2**30 + 64, 0, head_dim, 1)
    extent = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
    assert extent > 2**31
    buffer = torch.empty(extent, device="cuda", dtype=torch.bfloat16)
    view = buffer.as_strided(shape, stride)
    view.normal_()
    # One buffer serves the four: they differ in the order of rows.
    q, k, v, dout = view, view.flip(2), view.roll(1, 2), view.roll(7, 2)
    assert q.stride() == stride
    k, v, dout = (t.contiguous() for t in (k, v, dout))
    is_causal = far == "row"  # halves the work of the long sequence
    _same_as_contiguous(q, k, v, dout, is_causal=is_causal)
    _same_as_contiguous(k, q, v, dout, is_causal=is_causal)
    _same_as_contiguous(k, v, q, dout, is_causal=is_causal)
    _same_as_contiguous(k, v, dout, q, is_causal=is_causal)


def test_mask_offsets_past_2_31():
    seqlen_q, seqlen_k, row = 4096, 192, 2**20
    buffer = torch.empty((seqlen_q - 1) * row + seqlen_k, device="cuda", dtype=torch.float16)
    assert buffer.numel() > 2**31
    mask = buffer.as_strided((1, 1, seqlen_q, seqlen_k), (0, 0, row, 1))
    mask.normal_()
    q = torch.randn(1, 2, seqlen_q, 64, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, 2, seqlen_k, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    results = []
    for additive in (mask, mask.contiguous()):
        leaf = additive.detach().requires_grad_()
        out, *_ = torch.ops.flashtri.fwd(q, k, v, leaf)
        results.append((out.detach(), *torch.autograd.grad(out.float().square().sum(), leaf)))
    for strided, contiguous in zip(*results, strict=True):
        assert torch.isfinite(strided).all() and torch.equal(strided, contiguous)


def test_batch_times_heads_of_70000_and_outputs_past_2_31():
    batch, heads, seqlen, head_dim = 700, 100, 128, 256
    assert batch * heads * seqlen * head_dim > 2**31
    tensors = [torch.randn(batch, heads, seqlen, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    *leaves, dout = (t.requires_grad_(i < 3) for i, t in enumerate(tensors))
    out, *_ = torch.ops.flashtri.fwd(*leaves)
    gradients = torch.autograd.grad(out, leaves, dout)
    for item in (0, 350, 699):  # a batch item alone is an ordinary problem: it must give the same bits
        own = [t[item : item + 1].detach().requires_grad_() for t in leaves]
        out_alone, *_ = torch.ops.flashtri.fwd(*own)
        alone = [out_alone, *torch.autograd.grad(out_alone, own, dout[item : item + 1])]
        for whole, single in zip([out, *gradients], alone, strict=True):
            assert torch.isfinite(single).all() and torch.equal(whole[item : item + 1], single)
