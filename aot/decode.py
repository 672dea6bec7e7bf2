"""Decoding's kernels (triton_src/fwd_decode.py, fwd_paged.py, fwd_combine.py): their tiles."""

from .tiles import ARCH_CLASS, Tile

FUNCTIONS = ("fwd_decode", "fwd_paged", "fwd_combine")

# {class: {block_m: {block_d: (block_n, num_warps, num_stages)}}}; block_m counts packed rows, queries times the query
# heads that share a key head. The planner takes the first block_m that holds all
# rows. What counts is bytes on their way: 128 KB a multiprocessor in one block beat the same in two or three, as each
# further share of the keys costs a start and a merge (H200, GB/s at 16 rows, D 128, 128 programs: 4,323, 4,305, 4,145).
TILES = {
    "hopper": {
        16: {64: (128, 4, 5), 128: (128, 4, 3), 256: (64, 4, 3)},
        # 64 keys at d128: 3,996 GB/s of keys and values at 64 rows where 128 reached 2,856.
        64: {64: (64, 4, 5), 128: (64, 4, 3), 256: (32, 8, 3)},
    },
    "blackwell": {
        16: {64: (128, 4, 5), 128: (128, 4, 3), 256: (64, 4, 3)},
        # 8 warps at d256: with 4 it spills.
        64: {64: (64, 4, 5), 128: (64, 4, 3), 256: (32, 8, 3)},
    },
    "ampere": {
        16: {64: (128, 4, 5), 128: (128, 4, 3), 256: (64, 4, 3)},
        # 8 warps from d128 on: with 4 it spills.
        64: {64: (64, 4, 4), 128: (64, 8, 3), 256: (32, 8, 3)},
    },
    # One block takes most of the 100 KB.
    "small": {
        16: {64: (128, 4, 3), 128: (64, 4, 3), 256: (32, 4, 3)},
        64: {64: (64, 4, 3), 128: (64, 8, 2), 256: (32, 8, 2)},
    },
}


def tiles_of(function: str, block_d: int, arch: int) -> tuple[Tile, ...]:
    if function == "fwd_combine":
        # block_m: shares of the keys merged at a time. Most problems have fewer.
        return (Tile(16, 0, block_d, 4, 1),)
    # Pages have the 16-row tile alone: with 64 rows the look-ups no longer fit in the registers.
    return tuple(
        Tile(block_m, by_dim[block_d][0], block_d, *by_dim[block_d][1:])
        for block_m, by_dim in TILES[ARCH_CLASS[arch]].items()
        if block_m == 16 or function == "fwd_decode"
    )
