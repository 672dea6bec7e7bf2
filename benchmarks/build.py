"""Seconds that `python -m aot` takes for each architecture with an empty cache. Needs the source tree and no GPU."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import report
from .peers import OURS


def cpu_seconds() -> float:
    """Of all finished child processes and theirs: what a build costs even where others keep the machine busy."""
    times = os.times()
    return times.children_user + times.children_system


def run(args) -> list[report.Row]:
    from aot import variants

    rows = []
    for arch in variants.parse_archs(args.archs):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "aot", "--out", str(Path(folder, "out")), "--archs", str(arch)]
            environment = {**os.environ, "FLASHTRI_CACHE": str(Path(folder, "cache"))}
            start, cpu_start = time.perf_counter(), cpu_seconds()
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu_start
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")
        kernels = re.findall(r"\d+ kernels", done.stdout)[-1]
        note = f"{kernels}, {len(os.sched_getaffinity(0))} cores"
        rows.append(report.row("build", f"sm{arch}", "empty cache", OURS, "s", [seconds], note))
        rows.append(report.row("build", f"sm{arch}", "its CPU time", OURS, "s", [cpu], "over all cores"))
        report.show(rows[-2:])
    return rows
