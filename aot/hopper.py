"""Hopper's warp-specialised kernels (triton_src/hopper): their tiles, and what compiling Gluon asks for."""

import dataclasses

from .tiles import Tile

ARCH = 90
FUNCTIONS = ("fwd_hopper", "bwd_hopper")
# In plain Triton, but of use only beside bwd_hopper.
PASSES = ("bwd_terms", "bwd_dq_cast")
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


def _forward(consumers: int, block_n: int, block_d: int, stages: int, entry: int, consumer: int, out_apart: bool):
    # 24: the producer only counts and issues copies.
    return HopperTile(consumers * ROWS, block_n, block_d, 4, stages, entry, consumer, 24, block_n, out_apart)


def _backward(block_n: int, block_d: int, stages: int):
    # Of 240 registers, accumulators of 64 x block_d for dk and dv take block_d / 2 each, s and dp 32 each.
    return HopperTile(ROWS, block_n, block_d, 4, stages, 168, 240, 24, ROWS, False)


# A block has 65,536 registers: threads * entry and the sum over the warps after the division both stay below.
# Where block_d has several tiles the planner takes the first that csrc/core/select.cpp does not refuse.
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
    "bwd_hopper": {
        64: (_backward(128, 64, 3),),
        128: (_backward(128, 128, 2),),
        # dk and dv in a warpgroup each, so 64 keys in all; two stages are what shared memory holds.
        256: (_backward(64, 256, 2),),
    },
}


def constexprs(tile: HopperTile) -> dict[str, int]:
    return {
        "CONSUMERS": tile.block_m // ROWS,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": tile.block_d,
        "STAGES": tile.num_stages,
        "OUT_APART": tile.out_apart,
        "CONSUMER_REGISTERS": tile.consumer_registers,
        "PRODUCER_REGISTERS": tile.producer_registers,
    }


def map_type(name: str, dtype: str, tile: HopperTile) -> str:
    """A TMA descriptor's type in Triton's notation; `dtype` likewise. The tile of one copy is [1, 1, rows, block_d]."""
    from triton.experimental.gluon import language as gl

    if name == "dq_acc_map":
        block = [1, 1, 128, 32]
        return f"tensordesc<fp32{block},{gl.NVMMASharedLayout.get_default_for(block, gl.float32)!r}>"
    if name == "row_terms_map":
        block = [1, 1, 2, ROWS]
        return f"tensordesc<fp32{block},{gl.NVMMASharedLayout(0, 32, rank=4)!r}>"
    block = [1, 1, tile.copied_keys if name in ("k_map", "v_map") else ROWS, tile.block_d]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float16)  # any 16-bit type has the same
    return f"tensordesc<{dtype}{block},{layout!r}>"


def source_class():
    """What reads a Gluon kernel; imported here because no general kernel needs it."""
    from triton.experimental.gluon import GluonASTSource

    return GluonASTSource


def boxes(metadata) -> list[list[int]]:
    """[rows, columns, swizzle] of each descriptor, as the driver is to encode it; a tile may take several boxes."""
    found = []
    for map in metadata.tensordesc_meta or ():
        *ones, rows, columns = map["block_size"]
        if ones != [1, 1] or map["elem_size"] not in (2, 4) or map["is_im2col"]:
            raise ValueError(f"{metadata.name}: csrc/core/tensor_map.cpp does not encode such a descriptor: {map}")
        found.append([rows, columns, map["swizzle"]])
    return found
