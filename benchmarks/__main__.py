"""Measures flashtri beside its peers, in one run: `python -m benchmarks [NAME ...]`.

speed       forward and backward TFLOP/s, steady state, with and without masks
decode      few queries over many keys: GB/s of keys and values
host_time   host time of a forward call in inference mode
first_call  the first forward and backward of a fresh process
size        bytes of the wheel, its libraries and cubins
build       seconds to compile each architecture's kernels (only where named)
tune        tiles compiled in beside today's (only where named; aot/tune.py)
"""

import argparse
import importlib
import re
import sys
import time
from pathlib import Path

import torch

from . import cases, report

DEFAULT = ["size", "first_call", "host_time", "speed", "decode"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the CSV files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=11, help="timings of each implementation and case")
    parser.add_argument("--only", default="", metavar="REGEX", help="only the cases whose name it is found in")
    parser.add_argument("--peers", default="", metavar="REGEX", help="only the peers whose name it is found in")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs; no figure counts")
    parser.add_argument("--wheel", type=Path, help="for size; default the newest in dist/")
    parser.add_argument("--archs", help='for build, as "80 90"; default FLASHTRI_ARCHS, else all')
    args = parser.parse_args()
    unknown = set(args.names) - {*DEFAULT, "build", "tune"}
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    needs_device = bool(set(args.names or DEFAULT) - {"size", "build"})
    if needs_device and args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; name size or build, or try --device cpu --smoke")
    args.rounds = 2 if args.smoke else args.rounds
    args.select = lambda table: [case for case in table if re.search(args.only, cases.name(case))]
    return args


def main() -> int:
    args = arguments()
    written = []
    for name in args.names or DEFAULT:
        start = time.perf_counter()
        print(f"== {name}", flush=True)
        rows = importlib.import_module(f"benchmarks.{name}").run(args)
        if not rows:
            print(f"  no case of {name} matches {args.only!r}")
            continue
        device = args.device if torch.cuda.is_available() else "cpu"
        path = report.write(rows, args.out, device)
        written.append(f"  {path}: {len(rows)} rows, {time.perf_counter() - start:.0f} s")
    print("== written", *written, sep="\n")
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
