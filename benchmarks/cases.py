"""What is measured: one table of shapes and masks, shared by every benchmark here."""

import dataclasses
import math

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    heads: int
    seqlen: int
    head_dim: int
    is_causal: bool = False
    mask: str = "none"  # or its shape: key [B,1,1,S], row [1,1,S,S], full [B,H,S,S], bias [1,H,S,S] with a gradient

    def __str__(self) -> str:
        size = f"D{self.head_dim}-S{self.seqlen}-B{self.batch}-H{self.heads}"
        return size + ("-causal" if self.is_causal else "") + ("" if self.mask == "none" else f"-{self.mask}")

    def flops(self) -> float:
        """Of the forward: two products of 2 S S D each, half of that where half of the scores is never used."""
        flops = 4.0 * self.batch * self.heads * self.seqlen**2 * self.head_dim
        return flops / 2 if self.is_causal else flops

    def inputs(self, device: str, dtype: torch.dtype, requires_grad: bool = False) -> "Inputs":
        """Zero-mean q, k, v [B, H, S, D], the mask in their dtype, and grad_out like the output."""
        generator = torch.Generator(device).manual_seed(0)

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, device=device, dtype=dtype)

        q, k, v, grad_out = (draw(self.batch, self.heads, self.seqlen, self.head_dim) for _ in range(4))
        mask = self._mask(draw)
        for tensor in (q, k, v):
            tensor.requires_grad_(requires_grad)
        if self.mask == "bias":
            mask.requires_grad_(requires_grad)
        return Inputs(q, k, v, mask, self.is_causal, grad_out)

    def _mask(self, draw) -> Tensor | None:
        batch, heads, seqlen = self.batch, self.heads, self.seqlen
        if self.mask == "none":
            return None
        if self.mask == "key":
            mask = draw(batch, 1, 1, seqlen).zero_()
            for item in range(batch):  # padding of 0 to a quarter of the keys, another for each sequence
                mask[item, ..., seqlen - seqlen * item // (4 * batch) :] = -math.inf
            return mask
        sizes = {"row": (1, 1), "full": (batch, heads), "bias": (1, heads)}
        return draw(*sizes[self.mask], seqlen, seqlen)


@dataclasses.dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    is_causal: bool
    grad_out: Tensor

    def differentiable(self) -> list[Tensor]:
        return [t for t in (self.q, self.k, self.v, self.mask) if t is not None and t.requires_grad]


SPEED = [
    *(Case(4, 16, 4096, head_dim, causal) for head_dim in (64, 128, 256) for causal in (False, True)),
    *(Case(2, 16, 8192, 128, causal) for causal in (False, True)),
    *(Case(8, 32, 2048, 64, mask=mask) for mask in ("none", "key", "row", "full", "bias")),
    *(Case(4, 16, 4096, 128, mask=mask) for mask in ("key", "row", "full", "bias")),
    *(Case(4, 16, 4096, 128, True, mask) for mask in ("key", "row")),
]
FIRST_CALL = [Case(4, 16, 2048, 128, True), Case(4, 16, 2048, 64, mask="key")]
# Small enough that the device is always waiting for the host.
HOST_TIME = [Case(1, 8, 128, 64), Case(1, 8, 128, 64, mask="key")]

SMOKE = [Case(2, 2, 48, 32), Case(2, 2, 48, 32, True), Case(2, 2, 48, 32, mask="key"), Case(2, 2, 48, 32, mask="bias")]
