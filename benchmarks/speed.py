"""Steady-state TFLOP/s, forward and backward, ours and the peers side by side in one process."""

import functools
import random
import time
from collections.abc import Callable

import torch

from . import cases, peers, report

WARM_UP = 0.060  # seconds of its own work before each timing: clocks and caches as in a long run of that kernel alone
TIMED = 0.040
BACKWARD_FLOPS = 2.5  # of the forward's: five products of the size of which the forward has two


def time_calls(call: Callable[[], object], device: str, calls: int) -> float:
    """Seconds of one of `calls` calls in a row."""
    if device.startswith("cuda"):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def timing(call: Callable[[], object], device: str, smoke: bool) -> float:
    """Seconds a call, after a warm-up of the same call."""
    one = time_calls(call, device, 1)
    if smoke:
        return one
    time_calls(call, device, max(1, round(WARM_UP / one)))
    return time_calls(call, device, max(2, round(TIMED / one)))


def measure(case: cases.Problem, contenders: list[peers.Peer], args) -> list[report.Row]:
    inputs, name = cases.inputs(case, args.device, requires_grad=True), cases.name(case)
    calls, rows = {}, []
    for peer in contenders:
        refused = peer.reason_refused(inputs)
        if refused:
            rows += [report.row("speed", name, m, peer.name, "TFLOP/s", [], refused) for m in ("forward", "backward")]
            continue
        with peer.context():
            out = peer.call(inputs)
        wanted = inputs.differentiable()
        backward = functools.partial(torch.autograd.grad, out, wanted, inputs.dout, retain_graph=True)
        calls["forward", peer.name] = peer, functools.partial(peer.call, inputs)
        calls["backward", peer.name] = peer, backward
    speeds = {key: [] for key in calls}
    for _ in range(args.rounds):
        # In random order, so that nobody always runs after the same neighbour.
        for key in random.sample(list(calls), len(calls)):
            peer, call = calls[key]
            with peer.context(), torch.inference_mode(key[0] == "forward"):
                seconds = timing(call, args.device, args.smoke)
            flops = cases.flops(case) * (BACKWARD_FLOPS if key[0] == "backward" else 1)
            speeds[key].append(flops / seconds / 1e12)
    rows += [report.row("speed", name, metric, peer, "TFLOP/s", found) for (metric, peer), found in speeds.items()]
    return report.add_ratios(peers.in_order(rows), more_is_better=True)


def run(args) -> list[report.Row]:
    contenders = peers.available(args.peers)
    rows = []
    for case in args.select(cases.SMOKE if args.smoke else cases.SPEED):
        found = measure(case, contenders, args)
        report.show(found)
        rows += found
    return rows
