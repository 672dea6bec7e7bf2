"""Host time of one forward call in inference mode: many calls queued, none waited for."""

import time

import torch

from . import cases, peers, report

WARM_UP = 0.5  # seconds of calls, in which the processor reaches its clock
BLOCK = 200  # calls queued before the device is waited for: fewer than a launch queue holds


def measure(case: cases.Problem, contenders: list[peers.Peer], args) -> list[report.Row]:
    inputs, name = cases.inputs(case, args.device), cases.name(case)
    block = 2 if args.smoke else BLOCK
    synchronize = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    samples: dict[str, list[float]] = {}
    rows = []
    with torch.inference_mode():
        for peer in contenders:
            refused = peer.reason_refused(inputs)
            if refused:
                rows.append(report.row("host_time", name, "forward", peer.name, "us/call", [], refused))
            else:
                samples[peer.name] = []
        begin = time.perf_counter()
        warm_up = 0 if args.smoke else WARM_UP
        while any(len(found) < args.rounds for found in samples.values()):
            is_warm = time.perf_counter() - begin > warm_up
            for peer in contenders:
                if peer.name not in samples:
                    continue
                with peer.context():
                    synchronize()
                    start = time.perf_counter()
                    for _ in range(block):
                        peer.call(inputs)
                    elapsed = time.perf_counter() - start
                    synchronize()
                if is_warm:
                    samples[peer.name].append(1e6 * elapsed / block)
    rows += [report.row("host_time", name, "forward", peer, "us/call", found) for peer, found in samples.items()]
    return report.add_ratios(peers.in_order(rows), more_is_better=False)


def run(args) -> list[report.Row]:
    contenders = peers.available(args.peers, [*peers.PEERS, peers.ATTENTION])
    rows = []
    for case in args.select(cases.SMOKE[:2] if args.smoke else cases.HOST_TIME):
        found = measure(case, contenders, args)
        report.show(found)
        rows += found
    return rows
