"""A run's CSV files as Markdown tables, as in docs/gpu-results.md: `python -m benchmarks.tables FOLDER`."""

import csv
import sys
from pathlib import Path

from .peers import OURS


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]]) -> str:
    """A line for each case and metric; a column with the median of each implementation, and ours over the best peer."""
    names = list(dict.fromkeys(r["implementation"] for r in rows))
    lines = [f"| case | {rows[0]['unit']} | {' | '.join(names)} | ours better than the best by |"]
    lines.append("|---" * (len(names) + 3) + "|")
    for case, metric in dict.fromkeys((r["case"], r["metric"]) for r in rows):
        found = {r["implementation"]: r for r in rows if (r["case"], r["metric"]) == (case, metric)}
        medians = [found.get(name, {}).get("p50", "") for name in names]
        cells = [f"{float(median):.3g}" if median else "-" for median in medians]
        ratios = [float(r["ours_better_by"]) for r in found.values() if r["ours_better_by"]]
        best = f"{min(ratios):.2f}" if ratios else "-"
        lines.append(f"| {case} | {metric} | {' | '.join(cells)} | {best} |")
    return "\n".join(lines)


def main(folder: str) -> None:
    for path in sorted(Path(folder).glob("*.csv")):
        rows = read(path)
        facts = [rows[0][name] for name in ("date", "device", "driver", "torch", "cudnn", "flashtri", "clock_sm")]
        print(f"\n### {path.stem}\n{', '.join(filter(None, facts))}\n")
        print(table([r for r in rows if r["implementation"] != OURS + ".attention"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
