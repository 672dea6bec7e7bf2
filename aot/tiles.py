"""Tile configurations as data: per class of architecture, function, kind of mask and block_d.

What `python -m aot tune` has found to be faster stands in tuned.csv and comes before the tables here.
"""

import csv
import dataclasses
import functools
import pathlib

# Bytes of shared memory a block may use (CUDA C++ Programming Guide, table of compute capabilities).
SHARED_MEMORY = {
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    103: 227 << 10,
    120: 99 << 10,
}
# Bytes of spilled registers a thread. Up to here they are nearly all loop invariants, read back by one instruction in
# twenty of the loop; a tile small enough to avoid that costs more. Beyond, the loop writes them too.
MAX_SPILL_BYTES = 704

# sm_86, 89 and 120 have the least shared memory and the same mma.sync; sm_100 and 103 share tcgen05.
ARCH_CLASS = {80: "ampere", 86: "small", 89: "small", 120: "small", 90: "hopper", 100: "blackwell", 103: "blackwell"}


@dataclasses.dataclass(frozen=True)
class Tile:
    """block_m query rows x block_n keys x block_d of the head dimension; block_n is 0 where there are no keys."""

    block_m: int
    block_n: int
    block_d: int
    num_warps: int
    num_stages: int


# {class: {function: {kind: {block_d: (block_m, block_n, num_warps, num_stages)}}}}, kind "masked" for any mask,
# "features" for softcap and dropout with any mask or none, where "masked" does not do for them.
# A mask costs an address and a value for each score a thread holds, 32 to 64 registers: hence its own, smaller tiles.
# bwd_dkdv holds two accumulators of block_n x block_d, which sets its limit; the others hold one of block_m x block_d.
# From hopper on that first dimension is at least 64: below, Triton falls back from wgmma or tcgen05 to mma.sync.
TILES = {
    # Measured on an H200 (docs/gpu-results.md), the fastest of three to five each. Where 4 warps win over 8 it is by
    # running two blocks a multiprocessor: one computes while the other waits at its barriers.
    "hopper": {
        "fwd": {
            # 8 warps at d128: with 4, the accumulators alone take 96 of 255 registers and the loop spills.
            "plain": {32: (128, 64, 4, 3), 64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (128, 64, 8, 2)},
            # 32 keys at d256: 64 hit the limit of shared memory with an fp32 mask.
            "masked": {32: (64, 64, 4, 2), 64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
            # 8 warps at d64 too: a thread's share of tanh and random bits halves, which spilled 488 bytes.
            "features": {64: (128, 64, 8, 3), 128: (128, 64, 8, 2), 256: (128, 32, 8, 2)},
        },
        "bwd_dkdv": {
            # d256 spills the most: 640 bytes when 32 queries or keys were slower, 696 since it takes packed ones.
            "plain": {32: (64, 64, 4, 3), 64: (64, 64, 4, 3), 128: (64, 128, 8, 3), 256: (64, 64, 8, 2)},
            "masked": {32: (64, 64, 4, 2), 64: (64, 64, 4, 2), 128: (32, 64, 4, 3), 256: (32, 64, 8, 2)},
            "features": {64: (32, 64, 4, 2), 128: (32, 64, 4, 2), 256: (32, 64, 8, 1)},
        },
        "bwd_dq": {
            "plain": {32: (64, 64, 4, 3), 64: (64, 64, 4, 3), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
            "masked": {32: (64, 64, 4, 2), 64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (128, 32, 8, 1)},
            "features": {64: (64, 64, 4, 2), 128: (64, 32, 4, 2), 256: (128, 32, 8, 1)},
        },
        # One stage: its loop runs once unless the mask is broadcast, so there is nothing to overlap.
        "bwd_dmask": {"masked": {32: (64, 64, 4, 1), 64: (128, 64, 8, 1), 128: (64, 64, 8, 1), 256: (64, 64, 8, 1)}},
        "bwd_dbias": {"masked": {64: (64, 64, 8, 1), 128: (64, 64, 8, 1), 256: (64, 64, 8, 1)}},
    },
    "blackwell": {
        "fwd": {
            "plain": {32: (128, 64, 4, 3), 64: (128, 128, 8, 2), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
            "masked": {32: (128, 64, 8, 3), 64: (128, 64, 8, 3), 128: (128, 32, 8, 2), 256: (64, 32, 8, 2)},
        },
        "bwd_dkdv": {
            # One stage at d256: a second takes the spills from 168 to 832 bytes.
            "plain": {32: (64, 128, 8, 2), 64: (64, 128, 8, 2), 128: (64, 128, 8, 2), 256: (32, 64, 8, 1)},
            "masked": {32: (32, 128, 8, 2), 64: (32, 128, 8, 2), 128: (32, 128, 8, 2), 256: (32, 64, 8, 1)},
        },
        "bwd_dq": {
            "plain": {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (128, 64, 8, 2), 256: (128, 32, 8, 2)},
            "masked": {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (64, 64, 8, 2), 256: (64, 32, 8, 1)},
        },
        "bwd_dmask": {"masked": {32: (64, 64, 8, 1), 64: (64, 64, 8, 1), 128: (64, 64, 8, 1), 256: (64, 64, 8, 1)}},
        "bwd_dbias": {"masked": {64: (64, 64, 8, 1), 128: (64, 64, 8, 1), 256: (64, 64, 8, 1)}},
    },
    "ampere": {
        "fwd": {
            "plain": {32: (128, 64, 4, 3), 64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (64, 64, 8, 2)},
            "masked": {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (64, 32, 8, 2)},
        },
        # mma.sync takes its left operand from registers: k and v tiles stay there too, so tiles are smaller than on 90.
        "bwd_dkdv": {
            "plain": {32: (64, 64, 4, 2), 64: (64, 64, 4, 2), 128: (32, 64, 8, 2), 256: (32, 64, 8, 1)},
            "masked": {32: (32, 64, 4, 2), 64: (32, 64, 4, 2), 128: (32, 64, 8, 2), 256: (32, 64, 8, 1)},
        },
        "bwd_dq": {
            "plain": {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (64, 64, 8, 2), 256: (64, 32, 8, 1)},
            "masked": {32: (128, 64, 8, 2), 64: (128, 32, 8, 2), 128: (64, 32, 8, 2), 256: (64, 32, 8, 1)},
        },
        "bwd_dmask": {"masked": {32: (64, 64, 4, 1), 64: (64, 64, 8, 1), 128: (64, 64, 8, 1), 256: (64, 32, 8, 1)}},
        "bwd_dbias": {"masked": {64: (64, 64, 8, 1), 128: (64, 64, 8, 1), 256: (32, 32, 4, 1)}},
    },
    "small": {
        "fwd": {
            # One stage at d256: a second takes the tile to 104 KB, over the limit of 99.
            "plain": {32: (128, 64, 4, 3), 64: (128, 64, 4, 3), 128: (128, 64, 8, 2), 256: (64, 64, 8, 1)},
            "masked": {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (64, 32, 8, 2)},
        },
        "bwd_dkdv": {
            # 32 keys at d256: 64 take 112 KB.
            "plain": {32: (64, 64, 4, 2), 64: (64, 64, 4, 2), 128: (32, 64, 8, 2), 256: (32, 32, 8, 1)},
            "masked": {32: (32, 64, 4, 2), 64: (32, 64, 4, 2), 128: (32, 64, 8, 2), 256: (32, 32, 8, 1)},
        },
        "bwd_dq": {
            "plain": {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (64, 32, 4, 2), 256: (64, 32, 8, 1)},
            "masked": {32: (128, 64, 8, 2), 64: (128, 32, 8, 2), 128: (64, 32, 8, 2), 256: (64, 32, 8, 1)},
        },
        "bwd_dmask": {"masked": {32: (64, 64, 4, 1), 64: (64, 64, 8, 1), 128: (64, 64, 8, 1), 256: (64, 32, 8, 1)}},
        "bwd_dbias": {"masked": {64: (64, 64, 8, 1), 128: (64, 64, 8, 1), 256: (32, 32, 4, 1)}},
    },
}


TUNED = pathlib.Path(__file__).with_name("tuned.csv")


def kind_of(mask: str) -> str:
    return "plain" if mask == "none" else "masked"


@functools.cache
def tuned() -> dict[tuple[int, str, str, int], Tile]:
    """{(arch, function, kind, block_d): the fastest tile}, each measured on a GPU that the file names."""
    if not TUNED.exists():
        return {}
    with TUNED.open(newline="") as file:
        return {
            (int(r["arch"]), r["function"], r["kind"], int(r["block_d"])): Tile(
                *(int(r[field.name]) for field in dataclasses.fields(Tile))
            )
            for r in csv.DictReader(file)
        }


def tile(function: str, block_d: int, mask: str, arch: int, features: bool = False) -> Tile:
    """The tile of a variant. Raises KeyError where the tables have none."""
    if function in ("bwd_delta", "bwd_terms", "bwd_dq_cast"):
        # Memory-bound: 64 rows give enough blocks at any length, and 16 bytes a thread each of out and dout.
        return Tile(64, 0, block_d, 4, 1)
    if function == "mask_keys":
        # Blocks of as many keys as Hopper's forward has for block_d, 16 at a time: 2,048 or 1,024 keys.
        return Tile(16, 64 if block_d == 256 else 128, block_d, 4, 1)
    kind = "features" if features else kind_of(mask)
    if found := tuned().get((arch, function, kind, block_d)):
        return found
    table = TILES[ARCH_CLASS[arch]][function]
    block_m, block_n, num_warps, num_stages = table.get(kind, table["masked"])[block_d]
    return Tile(block_m, block_n, block_d, num_warps, num_stages)
