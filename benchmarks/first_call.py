"""The first forward and backward of a fresh process, over a plain operation on the same device.

Run as a script (`python -m benchmarks.first_call PEER CASE DEVICE`) it is that fresh process.
"""

import json
import subprocess
import sys
import time

from . import cases, peers, report

PROCESSES = 5


def fresh_process(peer_name: str, case_name: str, device: str) -> dict[str, float]:
    """Milliseconds of each step, in the order in which a program meets them."""
    import torch

    peer = next(p for p in peers.PEERS if p.name == peer_name)
    case = next(c for c in [*cases.FIRST_CALL, *cases.SMOKE] if cases.name(c) == case_name)
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    steps = {}
    clock = time.perf_counter()

    def step(label: str) -> None:
        nonlocal clock
        synchronize()
        now = time.perf_counter()
        steps[label] = 1e3 * (now - clock)
        clock = now

    __import__(peer.module)
    steps["import"] = 1e3 * (time.perf_counter() - clock)  # not `step`, which would start the device
    clock = time.perf_counter()
    # What any program that trains on this device pays: its context, torch's allocator, the matrix library, and what
    # torch itself imports at its first backward.
    ones = torch.ones(64, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    torch.autograd.grad((ones + 1) @ ones, ones, torch.ones_like(ones))
    step("plain operation")
    inputs = cases.inputs(case, device, requires_grad=True)
    step("inputs")
    with peer.context():
        out = peer.call(inputs)
        step("forward")
        torch.autograd.grad(out, inputs.differentiable(), inputs.dout)
        step("backward")
        steps["both"] = steps["forward"] + steps["backward"]
        out = peer.call(inputs)
        torch.autograd.grad(out, inputs.differentiable(), inputs.dout)
        step("second of both")
    return steps


def measure(case: cases.Problem, contenders: list[peers.Peer], args) -> list[report.Row]:
    name = cases.name(case)
    samples: dict[tuple[str, str], list[float]] = {}
    rows = []
    processes = 1 if args.smoke else PROCESSES
    for attempt in range(processes):
        print(f"  {name}: process {attempt + 1} of {processes} of each", flush=True)
        for peer in contenders:
            if attempt and ("both", peer.name) not in samples:
                continue  # it refused before
            command = [sys.executable, "-m", "benchmarks.first_call", peer.name, name, args.device]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                reason = done.stderr.strip().splitlines()[-1]
                rows.append(report.row("first_call", name, "both", peer.name, "ms", [], reason))
                continue
            for label, milliseconds in json.loads(done.stdout.splitlines()[-1]).items():
                samples.setdefault((label, peer.name), []).append(milliseconds)
    rows += [report.row("first_call", name, label, peer, "ms", found) for (label, peer), found in samples.items()]
    return report.add_ratios(peers.in_order(rows), more_is_better=False)


def run(args) -> list[report.Row]:
    contenders = peers.available(args.peers)
    rows = []
    for case in args.select(cases.SMOKE[1:2] if args.smoke else cases.FIRST_CALL):
        found = measure(case, contenders, args)
        report.show([r for r in found if r.metric in ("both", "plain operation")])
        rows += found
    return rows


if __name__ == "__main__":
    print(json.dumps(fresh_process(*sys.argv[1:])))
