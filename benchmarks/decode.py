"""Few queries over many keys, the forward alone: GB/s of keys and values, as reading those is what takes the time."""

import contextlib
import functools
import random
from collections.abc import Callable

import torch

from . import cases, peers, report
from .speed import steady, time_calls

PAGE_SIZES = (16, 256)


def in_pages(inputs: cases.Inputs, page_size: int) -> Callable[[], torch.Tensor]:
    """Ours over the same keys in pages of random order."""
    batch, heads, seqlen_k, dim = inputs.k.shape
    order = torch.randperm(batch * seqlen_k // page_size, device=inputs.k.device)
    table = order.argsort().view(batch, -1).int()
    k, v = (t.view(batch, heads, -1, page_size, dim).transpose(1, 2).flatten(0, 1)[order] for t in (inputs.k, inputs.v))
    return lambda: torch.ops.flashtri.fwd(inputs.q, k, v, block_table=table)[0]


def measure(case: cases.Problem, contenders: list[peers.Peer], args) -> list[report.Row]:
    inputs, name = cases.inputs(case, args.device), cases.name(case)
    calls, rows = {}, []
    timing = functools.partial(time_calls, calls=1) if args.smoke else steady
    with torch.inference_mode():
        for peer in contenders:
            if refused := peer.reason_refused(inputs):
                rows.append(report.row("decode", name, "forward", peer.name, "GB/s", [], refused))
            else:
                calls[peer.name] = peer.context, functools.partial(peer.call, inputs)
        for page_size in PAGE_SIZES:
            if case.seqlen_k % page_size == 0:
                calls[f"{peers.OURS} pages of {page_size}"] = contextlib.nullcontext, in_pages(inputs, page_size)
        speeds = {key: [] for key in calls}
        gigabytes = (inputs.k.nbytes + inputs.v.nbytes) / 1e9
        for _ in range(args.rounds):
            # In random order, so that nobody always runs after the same neighbour.
            for key in random.sample(list(calls), len(calls)):
                context, call = calls[key]
                with context():
                    speeds[key].append(gigabytes / timing(call, args.device))
    rows += [report.row("decode", name, "forward", key, "GB/s", found) for key, found in speeds.items()]
    return report.add_ratios(rows, more_is_better=True)


def run(args) -> list[report.Row]:
    contenders = peers.available(args.peers)
    rows = []
    for case in args.select(cases.SMOKE_DECODE if args.smoke else cases.DECODE):
        found = measure(case, contenders, args)
        report.show(found)
        rows += found
    return rows
