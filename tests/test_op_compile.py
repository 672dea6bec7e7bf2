"""The op inside programs: opcheck, FakeTensor, torch.compile, TorchScript, torch.export, AOTInductor."""

import io
import itertools
import shutil
import subprocess
import sys

import pytest
import torch
from problems import Problem, in_layout
from torch._subclasses.fake_tensor import FakeTensorMode

import flashtri

fwd, bwd = torch.ops.flashtri.fwd, torch.ops.flashtri.bwd

SOME = [
    Problem(seqlen_q=33, seqlen_k=40, heads_k=2, causal="top_left"),
    Problem(seqlen_q=33, seqlen_k=40, mask="f32", mask_axes="b1qk", mask_values="dead", dtype="bf16", layout="bshd"),
    Problem(seqlen_q=33, seqlen_k=40, mask="bool", mask_axes="11k", head_dim_v=64, layout="transposed"),
    Problem(seqlen_q=33, seqlen_k=40, window=(9, 3), sinks="f32", bias="f16", softcap=4.0),
]


def arguments(inputs, requires_grad=False):
    tensors = (t.detach().clone() if t is not None else None for t in (inputs.q, inputs.k, inputs.v, inputs.mask))
    given = [t.requires_grad_() if requires_grad and t is not None and t.is_floating_point() else t for t in tensors]
    options = {
        name: value.detach().clone().requires_grad_(requires_grad) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.options.items()
    }
    options |= {"scale": inputs.scale, "bottom_right": inputs.bottom_right}
    return (*given, 0.0, inputs.is_causal), options


def backward_arguments(inputs):
    (q, k, v, mask, *rest), options = arguments(inputs)
    return (inputs.dout, inputs.dlse, q, k, v, *fwd(q, k, v, mask, *rest, **options), mask, *rest), options


@pytest.mark.parametrize("problem", SOME, ids=str)
def test_opcheck_fwd(problem, device):
    args, options = arguments(problem.inputs(device), requires_grad=True)
    torch.library.opcheck(fwd.default, args, options)


@pytest.mark.parametrize("problem", SOME, ids=str)
def test_opcheck_bwd(problem, device):
    args, options = backward_arguments(problem.inputs(device))
    torch.library.opcheck(bwd.default, args, options)


SINGLE = [(1, 4, 8, 16), (2, 1, 8, 16), (2, 4, 1, 16), (1, 1, 1, 16), (0, 4, 8, 16), (2, 4, 0, 16)]


def layouts():
    """24 orders of the dimensions in memory, the layouts of the table, and sizes of 1 and 0 in both usual orders."""
    for order in itertools.permutations(range(4)):
        yield f"order{''.join(map(str, order))}", (2, 4, 8, 16), lambda t, order=order: permuted(t, order)
    for name in ("sliced", "misaligned"):
        yield name, (2, 4, 8, 16), lambda t, name=name: in_layout(t, name)
    for dim in range(3):
        yield f"expanded{dim}", (2, 4, 8, 16), lambda t, dim=dim: t.narrow(dim, 0, 1).expand_as(t)
    for size in SINGLE:
        for name in ("dense", "bshd"):
            yield f"{name}{'x'.join(map(str, size))}", size, lambda t, name=name: in_layout(t, name)


def permuted(tensor, order):
    inverse = sorted(range(4), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)


@pytest.mark.parametrize("size, make", [pytest.param(size, make, id=name) for name, size, make in layouts()])
def test_fake_strides_are_the_real_ones(size, make, device):
    q, k, v, dout = (make(torch.randn(size, device=device).half()) for _ in range(4))
    mask = make(torch.randn(size[0], size[1], size[2], size[2], device=device))

    def results(q, k, v, mask, dout):
        forward = fwd(q, k, v, mask)
        return [*forward, *bwd(dout, forward[1], q, k, v, *forward, mask), *fwd(q, k, v)]

    real = results(q, k, v, mask, dout)
    with FakeTensorMode() as mode:
        fake = results(*(mode.from_tensor(t) for t in (q, k, v, mask, dout)))
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


class Model(torch.nn.Module):
    """A self-attention block, as people write them."""

    def __init__(self, heads: int = 4, width: int = 64, dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, dtype=dtype)
        self.out = torch.nn.Linear(width, width, dtype=dtype)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, seqlen, width = x.shape
        q, k, v = self.qkv(x).view(batch, seqlen, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        out = torch.ops.flashtri.fwd(q, k, v, mask, 0.0, True)[0]
        return self.out(out.transpose(1, 2).reshape(batch, seqlen, width))


def model_inputs(device, batch=2, seqlen=24):
    draw = torch.Generator().manual_seed(batch * 1000 + seqlen)
    x = torch.randn(batch, seqlen, 64, generator=draw).to(device, torch.bfloat16)
    mask = torch.randn(batch, 1, 1, seqlen, generator=draw).to(device)
    return x, mask


def gradients(model, inputs):
    """Of all parameters and of the mask, after the output."""
    x, mask = inputs
    mask = mask.detach().clone().requires_grad_()
    out = model(x, mask)
    wanted = [mask, *model.parameters()]
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), wanted)]


def assert_same(found, expected, exact=True):
    for a, b in zip(found, expected, strict=True):
        if exact:
            assert torch.equal(a, b)
        else:  # the linear layers around the op may be computed in another order
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, device):
    torch._dynamo.reset()
    model = Model().to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch, seqlen in ((2, 24), (3, 65), (5, 33)):
            inputs = model_inputs(device, batch, seqlen)
            assert_same(gradients(compiled, inputs), gradients(model, inputs), exact=backend == "aot_eager")


@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript(how, device):
    model = Model().to(device)
    inputs = model_inputs(device)
    program = torch.jit.script(model) if how == "script" else torch.jit.trace(model, inputs)
    file = io.BytesIO()
    torch.jit.save(program, file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location=device)
    for _ in range(3):  # the profiling executor takes another path from the second call on
        assert_same(gradients(loaded, inputs), gradients(model, inputs))
        with torch.inference_mode():
            assert torch.equal(loaded(*inputs), model(*inputs))


def exported(model, device):
    batch, seqlen = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("seqlen", min=2, max=4096)
    shapes = ({0: batch, 1: seqlen}, {0: batch, 3: seqlen})
    return torch.export.export(model, model_inputs(device), dynamic_shapes=shapes)


def test_export(device, tmp_path):
    model = Model().to(device).requires_grad_(False)
    torch.export.save(exported(model, device), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for batch, seqlen in ((2, 24), (3, 65)):
        inputs = model_inputs(device, batch, seqlen)
        assert torch.equal(loaded(*inputs), model(*inputs))


class OptionsModel(torch.nn.Module):
    """Options by keyword, with parameters of their own."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.sinks = torch.nn.Parameter(torch.linspace(-1, 1, heads))
        self.slopes = torch.nn.Parameter(torch.linspace(0.1, 0.5, heads))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[2] + k.shape[2] - 1
        bias = -self.slopes.unsqueeze(1) * (torch.arange(length, device=q.device) - (q.shape[2] - 1)).abs()
        return torch.ops.flashtri.fwd(
            q, k, v, None, 0.0, True, window_left=20, softcap=5.0, sinks=self.sinks, relative_bias=bias
        )[0]


def options_inputs(device, seqlen=24):
    draw = torch.Generator().manual_seed(seqlen)
    return [torch.randn(2, 4, seqlen, 32, generator=draw).to(device, torch.bfloat16) for _ in range(3)]


def options_gradients(model, inputs, parameters):
    return torch.autograd.grad(model(*inputs).float().square().sum(), parameters)


def test_options_in_torchscript(device):
    model = OptionsModel().to(device)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location=device)
    for seqlen in (24, 40, 24):
        inputs = options_inputs(device, seqlen)
        assert torch.equal(loaded(*inputs), model(*inputs))
        found = options_gradients(loaded, inputs, list(loaded.parameters()))
        assert_same(found, options_gradients(model, inputs, list(model.parameters())))


def test_options_in_an_exported_program_of_any_length(device):
    model = OptionsModel().to(device).requires_grad_(False)
    shapes = ({2: torch.export.Dim("seqlen", min=2, max=4096)},) * 3
    program = torch.export.export(model, tuple(options_inputs(device)), dynamic_shapes=shapes).module()
    for seqlen in (24, 40):
        inputs = options_inputs(device, seqlen)
        assert torch.equal(program(*inputs), model(*inputs))


def test_options_in_a_compiled_program(device):
    torch._dynamo.reset()
    model = OptionsModel().to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    parameters = list(model.parameters())
    for seqlen in (24, 40):
        inputs = options_inputs(device, seqlen)
        assert_same(options_gradients(compiled, inputs, parameters), options_gradients(model, inputs, parameters))


def test_a_window_that_is_a_symbol(device):
    """window_left follows a size, as in a model that is compiled for any window."""
    torch._dynamo.reset()

    def attend(q, k, v, window):
        return flashtri.attention(q, k, v, is_causal=True, window_left=window.shape[0])

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    q, k, v = options_inputs(device, 40)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (5, 9, 17):
            window = torch.empty(size, device=device)
            assert torch.equal(compiled(q, k, v, window), attend(q, k, v, window))


def test_aotinductor(device, tmp_path):
    model = Model().to(device).requires_grad_(False)
    with torch.no_grad():
        program = exported(model, device)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for batch, seqlen in ((2, 24), (3, 65)):
        inputs = model_inputs(device, batch, seqlen)
        assert_same([loaded(*inputs)], [model(*inputs)], exact=False)


def test_second_copy_of_the_library(tmp_path):
    """As when two wheels, or a wheel and a C++ program, each bring one: the second registers nothing."""
    copy = shutil.copy(flashtri.library, tmp_path / "libflashtri_again.so")
    program = f"""
import flashtri, torch
torch.ops.load_library({str(copy)!r})
q = torch.randn(1, 2, 16, 32).half()
assert torch.ops.flashtri.fwd(q, q, q)[0].isfinite().all()
print("passed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "passed\n" and not done.stderr, done.stdout + done.stderr
