"""Rows, their ratios, and the CSV that says where and when they were measured."""

import csv
import dataclasses
import datetime
import importlib.metadata
import platform
import statistics
import subprocess
from pathlib import Path

from .peers import OURS


@dataclasses.dataclass
class Row:
    benchmark: str
    case: str
    metric: str  # what was measured: forward, backward, wheel, ...
    implementation: str
    unit: str
    p20: float | None
    p50: float | None  # None: it refuses the case, and `note` says why
    p80: float | None
    samples: int
    ours_better_by: float | None = None  # ours over theirs, or theirs over ours where less is better
    note: str = ""


def row(
    benchmark: str, case: str, metric: str, implementation: str, unit: str, samples: list[float], note: str = ""
) -> Row:
    p20 = p50 = p80 = None
    if samples:
        ordered = sorted(samples)
        p20, p80 = (ordered[round(q * (len(ordered) - 1))] for q in (0.2, 0.8))
        p50 = statistics.median(ordered)
    return Row(benchmark, case, metric, implementation, unit, p20, p50, p80, len(samples), note=note)


def add_ratios(rows: list[Row], more_is_better: bool) -> list[Row]:
    """Fills `ours_better_by` of every peer from our own row of the same case and metric."""
    ours = {(r.case, r.metric): r.p50 for r in rows if r.implementation == OURS}
    for r in rows:
        mine = ours.get((r.case, r.metric))
        if mine and r.p50 and r.implementation != OURS:
            r.ours_better_by = mine / r.p50 if more_is_better else r.p50 / mine
    return rows


def show(rows: list[Row]) -> None:
    case = None
    for r in rows:
        if r.case != case:
            case = r.case
            print(f"  {case}", flush=True)
        line = f"    {r.metric:16s} {r.implementation:19s}"
        if r.p50 is None:
            print(f"{line}refuses: {r.note[:80]}", flush=True)
            continue
        spread = f"({r.p20:.4g} to {r.p80:.4g})" if r.samples > 1 else ""
        ratio = "" if r.ours_better_by is None else f"ours better by {r.ours_better_by:.2f}"
        print(f"{line}{r.p50:10.4g} {r.unit:9s}{spread:24s}{ratio}{r.note}".rstrip(), flush=True)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def machine(device: str) -> dict[str, str]:
    """Columns that say what the figures are worth: device, clocks as the run ends, versions, date."""
    import torch

    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "device": platform.machine(),
        "clock_sm": "",
        "clock_memory": "",
        "driver": "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "flashtri": version("flashtri"),
        "triton": version("triton"),
    }
    if device.startswith("cuda"):
        facts["device"] = torch.cuda.get_device_name()
        query = "clocks.sm,clocks.mem,driver_version"
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip().split(", ")
            facts.update(zip(("clock_sm", "clock_memory", "driver"), answer, strict=False))
        except (OSError, subprocess.TimeoutExpired):
            pass  # a machine may have the driver without the tool
    return facts


def write(rows: list[Row], out: Path, device: str) -> Path:
    """One CSV for each benchmark in `out`, replaced by each run."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{rows[0].benchmark}.csv"
    facts = machine(device)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f.name for f in dataclasses.fields(Row)), *facts])
        for r in rows:
            values = [f"{x:.6g}" if isinstance(x, float) else x for x in dataclasses.astuple(r)]
            writer.writerow([*values, *facts.values()])
    return path
