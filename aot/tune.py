"""Tiles measured against their neighbours: `python -m aot tune CSV` keeps the fastest in tuned.csv.

    FLASHTRI_ARCHS=90 FLASHTRI_TUNE='fwd_bf16|bwd_dq_bf16' make wheel    # anywhere: compiles the candidates in
    python -m benchmarks tune --out results                             # on the GPU: checks and times each
    python -m aot tune results/tune.csv                                 # keeps what was faster

A candidate differs from the tile of today in one number, so tuning again goes on from where it ended.
"""

import csv
import dataclasses
import os
import pathlib
import re

from . import tiles

# How much faster a candidate must be to be kept: below, two runs of one tile differ as much.
LEAST_GAIN = 1.01
COLUMNS = ("arch", "function", "kind", *(f.name for f in dataclasses.fields(tiles.Tile)), "tflops", "before", "device",
           "date")  # fmt: skip


def is_wanted(name: str) -> bool:
    """Whether FLASHTRI_TUNE, a regular expression over kernels' names, asks for candidates beside this kernel."""
    pattern = os.environ.get("FLASHTRI_TUNE")
    return bool(pattern and re.search(pattern, name))


def label(tile: tiles.Tile) -> str:
    return f"m{tile.block_m}_n{tile.block_n}_w{tile.num_warps}_s{tile.num_stages}"


def neighbours(tile: tiles.Tile) -> list[tiles.Tile]:
    """The tiles that differ in one number: half or twice a block, the other number of warps, a stage more or less."""
    changes = [{name: size} for name in ("block_m", "block_n") for old in (getattr(tile, name),)
               for size in (old // 2, old * 2) if 16 <= size <= 256]  # fmt: skip
    changes += [{"num_warps": warps} for warps in (4, 8) if warps != tile.num_warps]
    changes += [{"num_stages": stages} for stages in (tile.num_stages - 1, tile.num_stages + 1) if 1 <= stages <= 5]
    return [dataclasses.replace(tile, **change) for change in changes]


def keep_fastest(measured: pathlib.Path, target: pathlib.Path = tiles.TUNED) -> list[dict[str, str]]:
    """Writes what the CSV of `benchmarks tune` shows to be faster into `target`; returns those rows."""
    with measured.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["p50"]]
    kept = {}
    if target.exists():
        with target.open(newline="") as file:
            kept = {(r["arch"], r["function"], r["kind"], r["block_d"]): r for r in csv.DictReader(file)}
    changed = []
    for case in dict.fromkeys(r["case"] for r in rows):
        found = [r for r in rows if r["case"] == case]
        today = float(next(r for r in found if not r["note"])["p50"])
        best = max(found, key=lambda r: float(r["p50"]))
        if float(best["p50"]) < LEAST_GAIN * today:
            continue
        function, kind, block_d, arch = case.split()
        row = dict(zip(COLUMNS[3:-4], re.findall(r"\d+", best["note"]), strict=True))
        row |= {"arch": arch, "function": function, "kind": kind, "block_d": block_d, "tflops": best["p50"]}
        row |= {"before": f"{today:.6g}", "device": best["device"], "date": best["date"][:10]}
        kept[arch, function, kind, block_d] = row
        changed.append(row)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept[key] for key in sorted(kept))
    return changed
