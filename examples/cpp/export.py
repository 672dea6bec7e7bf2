"""Saves a small attention model for run_models.cpp, with inputs and the results expected of it.

    python examples/cpp/export.py FOLDER [--device cpu|cuda]

Writes model.pt (TorchScript), model.pt2 (AOTInductor package: compiled by torch here, once) and data.pt.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import flashtri  # noqa: F401 (registers torch.ops.flashtri)


class SelfAttention(nn.Module):
    """x [B, S, hidden] fp32, mask [B, 1, 1, S] additive -> [B, S, hidden]; causal and masked at once."""

    def __init__(self, hidden: int = 96, heads: int = 3):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        qkv = self.qkv(x).to(torch.float16).unflatten(-1, [3, self.heads, -1]).transpose(1, 3)  # [B, H, 3, S, D]
        q, k, v = qkv.unbind(2)
        out = torch.ops.flashtri.fwd(q, k, v, mask, 0.0, True)[0]
        return self.out(out.transpose(1, 2).flatten(2).to(x.dtype))


class Data(nn.Module):
    """Holds tensors by name, in a form that C++ reads without Python."""

    def __init__(self, **tensors: Tensor):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().clone())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    model = SelfAttention().to(args.device)
    x = torch.randn(2, 77, 96, device=args.device, requires_grad=True)
    mask = torch.zeros(2, 1, 1, 77, device=args.device)
    mask[1, ..., 50:] = float("-inf")  # the second sequence is padded

    out = model(x, mask)
    grad_out = torch.randn_like(out)
    grad_x, grad_qkv = torch.autograd.grad(out, [x, model.qkv.weight], grad_out)
    data = Data(x=x, mask=mask, out=out, grad_out=grad_out, grad_x=grad_x, grad_qkv=grad_qkv)
    torch.jit.script(data).save(args.folder / "data.pt")
    torch.jit.script(model).save(args.folder / "model.pt")
    with torch.no_grad():
        exported = torch.export.export(model, (x.detach(), mask))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(args.folder / "model.pt2"))
    print(f"saved model.pt, model.pt2 and data.pt in {args.folder}")


if __name__ == "__main__":
    main()
