"""TFLOP/s, forward and backward, ours and the peers side by side in one process: in steady state, and in a burst.

Under a long load the chip lowers its clock to stay within its power, in a short one it does not.
"""

import functools
import random
import time
from collections.abc import Callable

import torch

from . import cases, peers, report

WARM_UP = 0.060  # seconds of its own work before each timing: clocks and caches as in a long run of that kernel alone
TIMED = 0.040
REST = 0.050  # seconds of idling before a burst
BURST = 5  # calls of a burst
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


def steady(call: Callable[[], object], device: str) -> float:
    """Seconds a call, after a warm-up of the same call."""
    one = time_calls(call, device, 1)
    time_calls(call, device, max(1, round(WARM_UP / one)))
    return time_calls(call, device, max(2, round(TIMED / one)))


def burst(call: Callable[[], object], device: str) -> float:
    """Seconds a call of a few, after a rest and one call that brings the inputs back into the caches."""
    time.sleep(REST)
    time_calls(call, device, 1)
    return time_calls(call, device, BURST)


WAYS = {"": steady, " burst": burst}


def contenders_of(inputs: cases.Inputs, found: list[peers.Peer]) -> tuple[dict, dict]:
    """{(direction, peer): (peer, call)} of those that take the inputs, and what the others say to them."""
    calls, refusals = {}, {}
    for peer in found:
        with torch.inference_mode():
            refusals["forward", peer.name] = peer.reason_refused(inputs)
        refusals["backward", peer.name] = peer.reason_refused(inputs)
        if refusals["forward", peer.name] is None:
            calls["forward", peer.name] = peer, functools.partial(peer.call, inputs)
        if refusals["backward", peer.name] is None:
            with peer.context():
                out = peer.call(inputs)
            wanted = inputs.differentiable()
            backward = functools.partial(torch.autograd.grad, out, wanted, inputs.dout, retain_graph=True)
            calls["backward", peer.name] = peer, backward
    return calls, {key: reason for key, reason in refusals.items() if reason}


def measure(case: cases.Problem, found: list[peers.Peer], args) -> list[report.Row]:
    inputs, name = cases.inputs(case, args.device, requires_grad=True), cases.name(case)
    calls, refusals = contenders_of(inputs, found)
    rows = [report.row("speed", name, m, peer, "TFLOP/s", [], reason) for (m, peer), reason in refusals.items()]
    speeds = {(direction + way, peer): [] for direction, peer in calls for way in WAYS}
    for _ in range(args.rounds):
        # In random order, so that nobody always runs after the same neighbour.
        for direction, peer_name in random.sample(list(calls), len(calls)):
            peer, call = calls[direction, peer_name]
            flops = cases.flops(case) * (BACKWARD_FLOPS if direction == "backward" else 1)
            for way, seconds in WAYS.items():
                with peer.context(), torch.inference_mode(direction == "forward"):
                    speed = flops / (time_calls(call, args.device, 1) if args.smoke else seconds(call, args.device))
                speeds[direction + way, peer_name].append(speed / 1e12)
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
