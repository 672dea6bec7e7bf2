"""Tile configurations as data: per function, block_d, kind of mask and class of architecture."""

import dataclasses

# Bytes of shared memory a block may use (CUDA C++ Programming Guide, compute capabilities).
SHARED_MEMORY = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10, 120: 99 << 10}

# Bytes of spilled registers a thread. A few touch only prologue and epilogue; more means spills in the loop.
MAX_SPILL_BYTES = 2048


@dataclasses.dataclass(frozen=True)
class Tile:
    """block_m query rows x block_n keys x block_d of the head dimension; block_n is 0 where there are no keys."""

    block_m: int
    block_n: int
    block_d: int
    num_warps: int
    num_stages: int


def arch_class(arch: int) -> str:
    return {80: "ampere", 86: "small", 89: "small", 120: "small", 90: "hopper", 100: "blackwell", 103: "blackwell"}[arch]


# {class: {function: {block_d: (block_m, block_n, num_warps, num_stages)}}}
TILES = {
    "hopper": {
        "fwd": {32: (128, 64, 4, 3), 64: (128, 64, 4, 3), 128: (128, 64, 4, 2), 256: (128, 64, 8, 2)},
        "bwd_dkdv": {32: (64, 128, 8, 2), 64: (64, 128, 8, 2), 128: (64, 128, 8, 2), 256: (32, 64, 8, 1)},
        "bwd_dq": {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (128, 64, 8, 2), 256: (64, 32, 8, 1)},
        "bwd_dmask": {32: (64, 64, 4, 1), 64: (64, 64, 4, 1), 128: (64, 64, 4, 1), 256: (64, 64, 8, 1)},
    },
}


def tile(function: str, block_d: int, mask: str, arch: int) -> Tile:
    if function == "bwd_delta":
        return Tile(64, 0, block_d, 4, 1)
    table = TILES.get(arch_class(arch), TILES["hopper"])
    block_m, block_n, num_warps, num_stages = table[function][block_d]
    return Tile(block_m, block_n, block_d, num_warps, num_stages)
