"""python -m aot --out DIR [--archs "90"] [--jobs N]: compiles the kernels and writes what csrc/core links.

python -m aot tune CSV: keeps the tiles that `python -m benchmarks tune` has measured to be faster.
python -m aot facts DIR: what the compiler made of each kernel in DIR, as Markdown.
"""

import argparse
import os
import pathlib
import sys
import time

from . import build, embed, facts, limits, tune, variants


def keep_tuned(measured: str) -> int:
    changed = tune.keep_fastest(pathlib.Path(measured))
    for row in changed:
        print(f"{row['function']} {row['kind']} d{row['block_d']}: {row['before']} -> {row['tflops']} TFLOP/s")
    print(f"{len(changed)} tiles changed in aot/tuned.csv")
    return 0


def main() -> int:
    if sys.argv[1:2] == ["tune"] and len(sys.argv) == 3:
        return keep_tuned(sys.argv[2])
    if sys.argv[1:2] == ["facts"] and len(sys.argv) == 3:
        print(facts.tables(pathlib.Path(sys.argv[2])))
        return 0
    parser = argparse.ArgumentParser(prog="python -m aot", description="Compile flashtri's kernels ahead of time.")
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="folder for the cubins and the generated sources"
    )
    parser.add_argument("--archs", help='architectures, as in "80 90"; default FLASHTRI_ARCHS, else all')
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations (default: all cores)")
    options = parser.parse_args()
    start = time.monotonic()
    try:
        results = build.build(variants.variants(variants.parse_archs(options.archs)), options.jobs)
    except (limits.BuildError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    embed.embed(results, options.out)
    size = sum(facts["image_size"] for facts, _ in results)
    print(
        f"{len(results)} kernels, {size / 2**20:.1f} MiB, {time.monotonic() - start:.1f}s -> {options.out}",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
