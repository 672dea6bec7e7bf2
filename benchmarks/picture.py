"""Draws a run of `speed` for the README: `python -m benchmarks.picture docs/results/speed.csv docs/speed.svg`.

Needs matplotlib. One row of bars for each direction, a group for each case, a bar for each implementation.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from . import cases
from .peers import OURS
from .tables import read

# The same picture from the same figures: without these, ids are random and the file holds its date.
matplotlib.rcParams["svg.hashsalt"] = "flashtri"
NO_DATE = {"Date": None}

COLOURS = {OURS: "#c44e52", "sdpa-cudnn": "#4c72b0", "fa3": "#55a868", "fa4": "#8172b2"}
OTHERS = ("#8c8c8c", "#b5b5b5", "#d9d9d9")


def short_name(problem: cases.Problem) -> str:
    parts = [f"D {problem.head_dim}", f"S {problem.seqlen_q}"]
    parts += ["causal"] if problem.causal else []
    parts += [{"b11k": "padding", "1hqk": "bias"}.get(problem.mask_axes, problem.mask_axes)] if problem.mask else []
    return "\n".join(parts)


def draw(rows: list[dict[str, str]], problems: list[cases.Problem], axes, direction: str) -> None:
    speeds = {(r["case"], r["implementation"]): float(r["p50"]) for r in rows if r["metric"] == direction and r["p50"]}
    shown = [p for p in problems if (cases.name(p), OURS) in speeds]
    names = [n for n in dict.fromkeys(r["implementation"] for r in rows) if any(name == n for _, name in speeds)]
    others = iter(OTHERS)
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        found = [(x, speeds[cases.name(p), name]) for x, p in enumerate(shown) if (cases.name(p), name) in speeds]
        places = [x + (i - (len(names) - 1) / 2) * width for x, _ in found]
        colour = COLOURS.get(name) or next(others)
        axes.bar(places, [speed for _, speed in found], width, label=name, color=colour)
    axes.set_xticks(range(len(shown)), [short_name(p) for p in shown], fontsize=8)
    axes.set_ylabel(f"{direction}, TFLOP/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, ncols=len(names), loc="upper left")
    axes.set_ylim(0, 1.15 * max(speeds.values()))


def main(source: str, target: str) -> None:
    rows = read(Path(source))
    tables = cases.LARGE, cases.MASKED
    figure, axes = plt.subplots(2, 2, figsize=(16, 7), width_ratios=[len(t) for t in tables], layout="constrained")
    for line, direction in zip(axes, ("forward", "backward"), strict=True):
        for place, problems in zip(line, tables, strict=True):
            draw(rows, problems, place, direction)
    facts = rows[0]
    figure.suptitle(f"{facts['device']}, torch {facts['torch']}, {facts['date'][:10]}, bf16, steady state", fontsize=10)
    figure.savefig(target, metadata=NO_DATE)


if __name__ == "__main__":
    main(*sys.argv[1:])
