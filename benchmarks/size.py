"""What is shipped: the wheel's bytes, the installed libraries', and the kernels of each architecture. Needs no GPU."""

import collections
from pathlib import Path

from . import report
from .peers import OURS


def run(args) -> list[report.Row]:
    import flashtri

    def row(case: str, metric: str, unit: str, figure: float, note: str = "") -> report.Row:
        return report.row("size", case, metric, OURS, unit, [figure], note)

    rows = []
    wheel = args.wheel or max(Path("dist").glob("flashtri-*.whl"), key=lambda p: p.stat().st_mtime, default=None)
    if wheel:
        rows.append(row("wheel", "file", "MB", wheel.stat().st_size / 1e6, wheel.name))
    else:
        print("  no wheel in dist/ (`make wheel` builds one); give --wheel FILE")
    package = Path(flashtri.__file__).parent
    for library in sorted(package.rglob("*.so")):
        rows.append(row(str(library.relative_to(package)), "file", "MB", library.stat().st_size / 1e6))
    kernels = collections.defaultdict(list)
    for kernel in flashtri.kernels():
        kernels[kernel["arch"]].append(kernel["image_size"])
    for arch, sizes in sorted(kernels.items()):
        rows.append(row(f"sm{arch}", "cubins", "MB", sum(sizes) / 1e6, f"{len(sizes)} cubins"))
    total = [size for sizes in kernels.values() for size in sizes]
    rows.append(row("all", "cubins", "MB", sum(total) / 1e6, f"{len(total)} cubins"))
    report.show(rows)
    return rows
