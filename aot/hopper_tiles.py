"""Hopper's warp-specialised kernels and their tiles, as data: cubins depend on the values, not on this text."""

import dataclasses

from .tiles import Tile

ARCH = 90
FUNCTIONS = ("fwd_hopper", "fwd_hopper_mask", "bwd_hopper")
# In plain Triton, but of use only beside those.
PASSES = ("bwd_terms", "bwd_dq_cast", "mask_keys")
# Query rows of one consumer warpgroup: the M of a wgmma.
ROWS = 64


@dataclasses.dataclass(frozen=True)
class HopperTile(Tile):
    """num_warps is that of one warpgroup. Each consumer warpgroup takes 64 rows: of block_m in the forward, of block_n
    in the backward (at block_d 256 both take the same ones).
    """

    registers_at_entry: int  # a thread's, as launched; the warpgroups then divide them anew
    consumer_registers: int
    producer_registers: int
    copied_keys: int  # keys of one copy through TMA
    out_apart: bool  # out has shared memory of its own, so the next q tile loads while out is stored
    mask: str = "none"  # a key of aot/variants.py's MASKS
    mask_stages: int = 0  # tiles of the mask that each consumer warpgroup has in flight


def _forward(consumers, block_n, block_d, stages, entry, consumer, out_apart, mask="none", mask_stages=0):
    # 24: the producer only counts and issues copies.
    return HopperTile(
        consumers * ROWS, block_n, block_d, 4, stages, entry, consumer, 24, block_n, out_apart, mask, mask_stages
    )


def _backward(block_n: int, block_d: int, stages: int):
    # Of 240 registers, accumulators of 64 x block_d for dk and dv take block_d / 2 each, s and dp 32 each.
    return HopperTile(ROWS, block_n, block_d, 4, stages, 168, 240, 24, ROWS, False)


# {function: {block_d: tiles}}. A block has 65,536 registers: threads * entry and the sum over the warps after the
# division both stay below. Where several tiles serve the planner takes the first that csrc/core/select.cpp does not
# refuse.
TILES = {
    "fwd_hopper": {
        64: (
            # A softmax of 128 keys takes longer than its products with 64 columns: while one warpgroup computes it, two
            # others multiply. On an H200 505 TFLOP/s at S 16384, with two consumers 431.
            _forward(3, 128, 64, 3, 128, 160, True),
            # For short problems, where rows and keys beyond the band cost more: causal S 1024 303 against 224.
            _forward(2, 128, 64, 3, 168, 240, True),
        ),
        128: (_forward(2, 128, 128, 2, 168, 240, True),),
        # 64 keys: an accumulator of 256 columns takes 128 registers. out lies in q's memory: its own would be too much.
        256: (_forward(2, 64, 256, 2, 168, 240, False),),
    },
    # Of a matrix shared memory holds two tiles where it can: with an fp32 mask, or fewer keys, or one.
    "fwd_hopper_mask": {
        64: (
            _forward(3, 128, 64, 3, 128, 160, True, "keys"),
            _forward(2, 128, 64, 3, 168, 240, True, "keys"),
            # With a matrix two warpgroups are as fast as three, or faster: 160 registers are too few for it.
            *(_forward(2, 128, 64, 2, 168, 240, True, mask, 2) for mask in ("boolean", "f16", "bf16", "f32")),
        ),
        128: (
            _forward(2, 128, 128, 2, 168, 240, True, "keys"),
            *(_forward(2, 128, 128, 2, 168, 240, False, mask, 2) for mask in ("boolean", "f16", "bf16")),
            _forward(2, 128, 128, 2, 168, 240, False, "f32", 1),
        ),
        256: (
            _forward(2, 64, 256, 2, 168, 240, False, "keys"),
            *(_forward(2, 64, 256, 2, 168, 240, False, mask, 2) for mask in ("boolean", "f16", "bf16")),
            _forward(2, 64, 256, 2, 168, 240, False, "f32", 1),
        ),
    },
    "bwd_hopper": {
        64: (_backward(128, 64, 3),),
        128: (_backward(128, 128, 2),),
        # dk and dv in a warpgroup each, so 64 keys in all; two stages are what shared memory holds.
        256: (_backward(64, 256, 2),),
    },
}
