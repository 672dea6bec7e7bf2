"""python -m aot --out DIR [--archs "90"] [--jobs N]: compiles the kernels and writes what csrc/core links."""

import argparse
import os
import pathlib
import sys
import time

from . import build, embed, limits, variants


def main() -> int:
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
