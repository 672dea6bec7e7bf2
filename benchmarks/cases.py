"""What is measured: problems as the tests describe them (tests/problems.py), at the sizes of real models."""

import dataclasses
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from problems import DTYPES, Problem  # noqa: E402

# Shapes of masks: padded keys, one matrix for all, a matrix for each, and a bias for each head that is learned.
KEYS, MATRIX, MATRICES, BIAS = "b11k", "11qk", "bhqk", "1hqk"


@dataclasses.dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    is_causal: bool
    dout: Tensor

    def differentiable(self) -> list[Tensor]:
        return [t for t in (self.q, self.k, self.v, self.mask) if t is not None and t.requires_grad]


TOKENS = 16384  # batch * seqlen, and
WIDTH = 2048  # heads * head_dim, of a large problem


def case(batch: int, heads: int, seqlen: int, head_dim: int, mask: str | None = None, causal: bool = False) -> Problem:
    values = {"mask": "bf16", "mask_axes": mask, "mask_values": "padding" if mask == KEYS else "random"} if mask else {}
    sizes = {"heads_q": heads, "heads_k": heads, "seqlen_q": seqlen, "seqlen_k": seqlen, "head_dim": head_dim}
    return Problem(batch, **sizes, dtype="bf16", causal="top_left" if causal else None, has_dlse=False, **values)


def name(problem: Problem) -> str:
    return str(problem).removesuffix("-no_dlse")  # no peer has a gradient through lse


def flops(problem: Problem) -> float:
    """Of the forward: two products of 2 Sq Sk D each, half of that where half of the scores is never used."""
    count = 4.0 * problem.batch * problem.heads_q * problem.seqlen_q * problem.seqlen_k * problem.head_dim
    return count / 2 if problem.causal else count


def inputs(problem: Problem, device: str, requires_grad: bool = False) -> Inputs:
    """Zero-mean inputs, drawn on the device itself: `Problem.inputs` takes seconds for a mask of these sizes."""
    draw = torch.Generator(device).manual_seed(0)

    def tensor(*size: int, dtype: str = problem.dtype) -> Tensor:
        return torch.randn(size, generator=draw, device=device, dtype=DTYPES[dtype])

    sizes_q = problem.batch, problem.heads_q, problem.seqlen_q, problem.head_dim
    sizes_k = problem.batch, problem.heads_k, problem.seqlen_k, problem.head_dim
    q, k, v, dout = (tensor(*sizes) for sizes in (sizes_q, sizes_k, sizes_k, sizes_q))
    mask = None
    if problem.mask:
        lengths = {"b": problem.batch, "h": problem.heads_q, "q": problem.seqlen_q, "k": problem.seqlen_k, "1": 1}
        mask = tensor(*(lengths[axis] for axis in problem.mask_axes), dtype=problem.mask)
    if problem.mask_values == "padding":
        for item in range(problem.batch):  # none to a quarter of the keys, another number for each sequence
            first = problem.seqlen_k - problem.seqlen_k * item // (4 * problem.batch)
            mask[item, ..., :first], mask[item, ..., first:] = 0, -math.inf
    for t in (q, k, v, *([mask] if problem.mask_axes == BIAS and problem.mask else [])):
        t.requires_grad_(requires_grad)
    return Inputs(q, k, v, mask, problem.causal is not None, dout)


def large(seqlen: int, head_dim: int, causal: bool) -> Problem:
    return case(TOKENS // seqlen, WIDTH // head_dim, seqlen, head_dim, causal=causal)


LARGE = [
    large(seqlen, head_dim, causal)
    for seqlen, head_dim in ((2048, 64), (16384, 64), (2048, 128), (8192, 128), (8192, 256))
    for causal in (False, True)
]
SHORT = [
    *(
        large(seqlen, head_dim, causal)
        for head_dim in (64, 128)
        for seqlen in (128, 256, 512, 1024)
        for causal in (False, True)
    ),
    # Few of them: not enough tiles to fill the chip more than once.
    *(case(1, 16, seqlen, 128, causal=causal) for seqlen in (512, 1024, 2048, 4096) for causal in (False, True)),
]
MASKED = [
    *(case(8, 32, 2048, 64, mask) for mask in (KEYS, MATRIX, MATRICES, BIAS)),
    *(case(4, 16, 4096, 128, mask) for mask in (KEYS, MATRIX, MATRICES, BIAS)),
    *(case(4, 16, 4096, 128, mask, causal=True) for mask in (KEYS, MATRIX)),
]
SPEED = [*LARGE, *SHORT, *MASKED]


def decoding(batch: int, heads_k: int, seqlen_q: int, seqlen_k: int) -> Problem:
    """32 query heads of 128, as in models of 7 to 8 billion parameters."""
    sizes = {"heads_q": 32, "heads_k": heads_k, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": 128}
    return Problem(batch, **sizes, dtype="bf16", has_dlse=False)


DECODE = [
    decoding(16, 8, 1, 8192),
    decoding(1, 8, 1, 131072),
    decoding(16, 32, 1, 8192),
    decoding(16, 8, 16, 8192),
    decoding(64, 8, 1, 2048),
]
FIRST_CALL = [case(4, 16, 2048, 128, causal=True), case(4, 16, 2048, 64, KEYS)]
# Small enough that the device is always waiting for the host.
HOST_TIME = [case(1, 8, 128, 64), case(1, 8, 128, 64, KEYS)]

SMOKE = [case(2, 2, 48, 32, mask, causal) for mask, causal in ((None, False), (KEYS, True), (BIAS, False))]
SMOKE_DECODE = [Problem(2, 4, 2, 1, 96, 32, dtype="bf16", has_dlse=False)]
