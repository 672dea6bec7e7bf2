"""Each tile compiled in beside today's (aot/tune.py): checked against the reference, timed through the op."""

import dataclasses

import torch

import flashtri
from flashtri import _C

from . import cases, report, speed

import reference  # isort: skip  (its folder is on the path since cases was imported)

# Of each kernel: which gradients run it, and its products of two matrices (two are the forward's).
GRADIENTS = {"fwd": ("", 2), "bwd_dq": ("q", 3), "bwd_dkdv": ("kv", 4), "bwd_dmask": ("mask", 2)}
# The reference's own sizes: unequal lengths, no multiple of a block, causality.
CHECKED = cases.Problem(batch=1, heads_q=4, heads_k=2, seqlen_q=200, seqlen_k=330, causal="bottom_right")
MASKS = {"boolean": "bool"}


def groups() -> list[list[dict]]:
    """The compiled kernels that serve one kind of problem, today's first; only where there are candidates."""
    found = {}
    for kernel in flashtri.kernels():
        if kernel["function"] in GRADIENTS and kernel["arch"] == _C.device()["arch"]:
            key = tuple(kernel[name] for name in ("function", "dtype", "mask", "block_d"))
            found.setdefault(key, []).append(kernel)
    return [kernels for kernels in found.values() if len(kernels) > 1]


def problems_of(kernel: dict) -> tuple[cases.Problem, cases.Problem]:
    """A small problem to check and a large one to time."""
    same = {"dtype": kernel["dtype"], "head_dim": kernel["block_d"]}
    if kernel["mask"] != "none":
        same |= {"mask": MASKS.get(kernel["mask"], kernel["mask"]), "mask_axes": "1hqk"}
    large = cases.large(4096, kernel["block_d"], causal=False)
    return dataclasses.replace(CHECKED, **same), dataclasses.replace(large, **same)


def attention(q, k, v, mask, is_causal, scale, bottom_right):
    return torch.ops.flashtri.fwd(q, k, v, mask, 0.0, is_causal, scale=scale, bottom_right=bottom_right)[:2]


def call_of(kernel: dict, problem: cases.Problem, device: str):
    """A call in which this kernel does nearly all the work."""
    inputs = cases.inputs(problem, device)
    gradients, _ = GRADIENTS[kernel["function"]]
    if not gradients:
        return lambda: attention(inputs.q, inputs.k, inputs.v, inputs.mask, False, None, False)
    wanted = [inputs.mask] if gradients == "mask" else [getattr(inputs, name) for name in gradients]
    for tensor in wanted:
        tensor.requires_grad_()
    out, _ = attention(inputs.q, inputs.k, inputs.v, inputs.mask, False, None, False)
    return lambda: torch.autograd.grad(out, wanted, inputs.dout, retain_graph=True)


def measure(kernels: list[dict], args) -> list[report.Row]:
    today = kernels[0]
    small, large = problems_of(today)
    inputs = small.inputs(args.device)
    call = call_of(today, large, args.device)
    _, products = GRADIENTS[today["function"]]
    flops = cases.flops(large) * products / 2
    case = " ".join([today["function"], "plain" if today["mask"] == "none" else "masked", str(today["block_d"]),
                     str(today["arch"])])  # fmt: skip
    samples, wrong = {k["name"]: [] for k in kernels}, {}
    try:
        for kernel in kernels:
            _C.prefer(kernel["name"])
            try:
                reference.check(reference.run(attention, inputs), inputs)
            except AssertionError as error:
                wrong[kernel["name"]] = str(error)
        for _ in range(args.rounds):
            for kernel in kernels:
                if kernel["name"] not in wrong:
                    _C.prefer(kernel["name"])
                    samples[kernel["name"]].append(flops / speed.steady(call, args.device) / 1e12)
    finally:
        _C.prefer(None)
    rows = []
    for kernel in kernels:
        tile = (
            f"{kernel['block_m']} {kernel['block_n']} {kernel['block_d']} {kernel['num_warps']} {kernel['num_stages']}"
        )
        note = wrong.get(kernel["name"]) or ("" if kernel is today else tile)
        rows.append(
            report.row("tune", case, today["function"], kernel["name"], "TFLOP/s", samples[kernel["name"]], note)
        )
    return rows


def run(args) -> list[report.Row]:
    rows = []
    for kernels in groups():
        found = measure(kernels, args)
        report.show(found)
        rows += found
    return rows
