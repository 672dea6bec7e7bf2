"""What compiling Hopper's warp-specialised kernels, which are in Gluon, asks for."""

from .hopper_tiles import ARCH, FUNCTIONS, PASSES, ROWS, TILES, HopperTile

__all__ = ["ARCH", "FUNCTIONS", "PASSES", "ROWS", "TILES", "HopperTile"]


def constexprs(tile: HopperTile) -> dict[str, int]:
    return {
        "CONSUMERS": tile.block_m // ROWS,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": tile.block_d,
        "STAGES": tile.num_stages,
        "OUT_APART": tile.out_apart,
        "MASK_STAGES": tile.mask_stages,
        "CONSUMER_REGISTERS": tile.consumer_registers,
        "PRODUCER_REGISTERS": tile.producer_registers,
    }


# TMA copies bytes: a boolean mask's are read as what they are. mask_keys writes fp32.
_MASK_TYPES = {"boolean": "i8", "f16": "fp16", "bf16": "bf16", "f32": "fp32", "keys": "fp32"}


def map_type(name: str, dtype: str, tile: HopperTile) -> str:
    """A TMA descriptor's type in Triton's notation, `dtype` likewise. The tile of one copy is [1, 1, rows, columns]."""
    from triton.experimental.gluon import language as gl

    types = {"i8": gl.int8, "fp16": gl.float16, "bf16": gl.bfloat16, "fp32": gl.float32}
    if name == "row_terms_map":
        dtype, rows, columns = "fp32", 2 if tile.mask == "none" else 4, ROWS
    elif name == "dq_acc_map":
        dtype, rows, columns = "fp32", 128, 32
    elif name == "mask_map":
        dtype, rows, columns = _MASK_TYPES[tile.mask], 1 if tile.mask == "keys" else ROWS, tile.copied_keys
    else:
        rows, columns = tile.copied_keys if name in ("k_map", "v_map") else ROWS, tile.block_d
    block = [1, 1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, types[dtype])
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
        if ones != [1, 1] or map["is_im2col"]:
            raise ValueError(f"{metadata.name}: csrc/core/tensor_map.cpp does not encode such a descriptor: {map}")
        found.append([rows, columns, map["swizzle"]])
    return found
