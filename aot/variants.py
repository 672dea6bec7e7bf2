"""Which kernels are compiled: functions x dtype x mask x block_d, less the exclusions named here."""

import dataclasses
import os

from . import decode, hopper, tiles, tune

ARCHS = (80, 86, 89, 90, 100, 103, 120)
DTYPES = ("f16", "bf16")
# The value of the constexpr MASK for each mask dtype. One of 16 bits comes with q of the same dtype alone: beside q of
# the other, the op reads it as fp32 (csrc/core/plan.h), as a fifth of all kernels would otherwise serve that rare pair.
# `keys`: a mask of any dtype that is the same for every query, as mask_keys leaves it.
MASKS = {"none": 0, "boolean": 1, "f16": 2, "bf16": 2, "f32": 2, "keys": 3}
# head_dim is padded up to one of these; Triton's tiles are powers of two.
BLOCK_DS = (32, 64, 128, 256)

FUNCTIONS = (
    "fwd", "bwd_delta", "bwd_dkdv", "bwd_dq", "bwd_dmask", "bwd_dbias", *decode.FUNCTIONS, *hopper.PASSES,
    *hopper.FUNCTIONS,
)  # fmt: skip
ONLY_HOPPER = (*hopper.PASSES, *hopper.FUNCTIONS)

# (functions, masks, block_ds, reason): a combination that is not compiled.
EXCLUSIONS = (
    (("bwd_delta",), ("boolean", "f16", "bf16", "f32"), BLOCK_DS, "delta is sum(out * dout): no mask enters it"),
    (("fwd", "bwd_delta", "bwd_dkdv", "bwd_dq", "bwd_dmask"), ("keys",), BLOCK_DS, "they read the mask itself"),
    (("bwd_delta",), ("none",), (32,), "memory-bound: predicated-off columns of the 64-wide tile cost nothing"),
    (("bwd_terms", "bwd_dq_cast"), ("boolean", "f16", "bf16", "f32", "keys"), BLOCK_DS, "no mask enters them"),
    (hopper.PASSES, tuple(MASKS), (32,), "Hopper's own kernels pad to 64"),
    (("bwd_dmask",), ("none", "boolean"), BLOCK_DS, "only an additive mask has a gradient"),
    (
        ("bwd_dbias",),
        ("none", "boolean", "f16", "bf16", "keys"),
        BLOCK_DS,
        "the op reads a relative bias, a short row, as fp32",
    ),
    (("bwd_dbias",), ("f32",), (32,), "few need it: 64 columns do as well"),
    (
        decode.FUNCTIONS,
        ("boolean", "f16", "bf16", "f32", "keys"),
        BLOCK_DS,
        "the general kernels serve few queries with a mask",
    ),
    (("fwd_decode", "fwd_paged"), ("none",), (32,), "as for the 64-wide tile of bwd_delta"),
    (("fwd_combine",), ("none",), (32, 64, 128), "as for the 64-wide tile of bwd_delta: it moves little"),
    (("mask_keys",), ("none", "keys"), BLOCK_DS, "keys is what it makes"),
    (("bwd_hopper",), ("boolean", "f16", "bf16", "f32", "keys"), BLOCK_DS, "the Hopper backward takes no mask"),
    (("fwd_hopper",), ("boolean", "f16", "bf16", "f32", "keys"), BLOCK_DS, "fwd_hopper_mask has the mask's descriptor"),
    (("fwd_hopper_mask",), ("none",), BLOCK_DS, "fwd_hopper serves"),
    (hopper.FUNCTIONS, tuple(MASKS), (32,), "a row of 64 elements is what TMA's widest swizzle takes"),
)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One kernel to compile."""

    function: str
    dtype: str
    mask: str
    arch: int
    tile: tiles.Tile
    features: bool = False  # softcap and dropout, each switched on at run time
    is_candidate: bool = False  # compiled in to be tuned: it is left out where it does not fit

    @property
    def name(self) -> str:
        mask = "" if self.mask == "none" else f"_mask_{self.mask}"
        several = self.function in (*hopper.FUNCTIONS, *decode.FUNCTIONS)
        rows = f"_m{self.tile.block_m}" if several else ""
        features = "_features" if self.features else ""
        name = f"{self.function}_{self.dtype}_d{self.tile.block_d}{rows}{mask}{features}_sm{self.arch}"
        return f"{name}_{tune.label(self.tile)}" if self.is_candidate else name


# What is compiled a second time with softcap and dropout: what reads scores, beside no mask or one that the op turns to
# fp32, and no own kernels for the narrowest heads. All masks and heads would be 56 kernels more an architecture.
FEATURED = (("fwd", "bwd_dkdv", "bwd_dq", "bwd_dmask", "bwd_dbias"), ("none", "f32"), (64, 128, 256))


def has_features(function: str, mask: str, block_d: int) -> bool:
    return function in FEATURED[0] and mask in FEATURED[1] and block_d in FEATURED[2]


def is_excluded(function: str, mask: str, block_d: int) -> bool:
    return any(function in rule[0] and mask in rule[1] and block_d in rule[2] for rule in EXCLUSIONS)


def tiles_of(function: str, block_d: int, mask: str, arch: int, features: bool) -> tuple[tiles.Tile, ...]:
    if function in hopper.FUNCTIONS:
        return tuple(tile for tile in hopper.TILES[function][block_d] if tile.mask == mask)
    if function in decode.FUNCTIONS:
        return decode.tiles_of(function, block_d, arch)
    return (tiles.tile(function, block_d, mask, arch, features),)


def variants(archs=ARCHS) -> list[Variant]:
    """The whole table for these architectures, in the order in which the planner meets it."""
    table = [
        Variant(function, dtype, mask, arch, tile, features)
        for arch in archs
        for function in FUNCTIONS
        for dtype in DTYPES
        for block_d in BLOCK_DS
        for mask in MASKS
        if mask in ("none", "boolean", dtype, "f32", "keys")
        if not is_excluded(function, mask, block_d) and (arch == hopper.ARCH or function not in ONLY_HOPPER)
        for features in ((False, True) if has_features(function, mask, block_d) else (False,))
        for tile in tiles_of(function, block_d, mask, arch, features)
    ]
    apart = (*ONLY_HOPPER, *decode.FUNCTIONS)
    tuned = [v for v in table if v.function not in apart and tune.is_wanted(v.name)]
    others = [dataclasses.replace(v, tile=tile, is_candidate=True) for v in tuned for tile in tune.neighbours(v.tile)]
    return table + others


def parse_archs(text: str | None = None) -> tuple[int, ...]:
    """Architectures from `text`, else from FLASHTRI_ARCHS, else all: numbers with spaces, commas or semicolons between.

    Raises ValueError for one that is not in ARCHS.
    """
    text = text or os.environ.get("FLASHTRI_ARCHS", "")
    words = text.replace(",", " ").replace(";", " ").split()
    wrong = [word for word in words if not word.isdigit() or int(word) not in ARCHS]
    if wrong:
        raise ValueError(f"unknown architecture {wrong[0]!r}: FLASHTRI_ARCHS takes any of {' '.join(map(str, ARCHS))}")
    return tuple(sorted({int(word) for word in words})) or ARCHS
