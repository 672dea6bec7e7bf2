"""How Hopper's forward meets an attention mask: which key blocks a tile visits, what the producer loads with them, and
how the scores take the mask in.

One class for each way, with the same methods: `blocks` for both sides, `expect` and `load` for the producer, `apply`
for the consumers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

# Values of the constexpr MASK, as aot/variants.py gives them.
BOOLEAN = gl.constexpr(1)
ADDITIVE = gl.constexpr(2)
KEYS = gl.constexpr(3)


@gluon.aggregate
class BandBlocks:
    """The key blocks below the band's upper edge, from the last to the first."""

    count: gl.tensor
    masked: gl.tensor  # so many, those visited first, are not wholly seen by every row; at least one

    @gluon.jit
    def block(self, j):
        """Number of the j-th block visited."""
        return self.count - 1 - j


@gluon.jit
def band_blocks(schedule, start_m):
    count, full = schedule.key_blocks(start_m)
    return BandBlocks(count, gl.maximum(count - full, 1))


@gluon.aggregate
class ListedBlocks:
    """Key blocks from the two lists of mask_keys, which leave out those whose keys are all -inf."""

    count: gl.tensor
    masked: gl.tensor  # as in BandBlocks: plain ones on the band's edge, then biased ones
    edges: gl.tensor  # plain blocks on the band's edge
    full: gl.tensor  # plain blocks before those, which every row sees
    biased: gl.tensor  # *i32, blocks with a bias other than 0
    plain: gl.tensor  # *i32, the others; its first entry can always be read

    @gluon.jit
    def block(self, j):
        in_biased = j - self.edges
        is_biased = (in_biased >= 0) & (j < self.count - self.full)
        in_plain = gl.where(in_biased < 0, self.full + j, j - (self.count - self.full))
        return gl.load(gl.where(is_biased, self.biased + in_biased, self.plain + in_plain))


@gluon.aggregate
class NoMask:
    @gluon.jit
    def blocks(self, schedule, start_m, b, h):
        return band_blocks(schedule, start_m)

    @gluon.jit
    def expect(self, full, BYTES: gl.constexpr, is_masked):
        """Announces the copies that fill a tile of keys and what comes with it."""
        mbarrier.expect(full, BYTES)

    @gluon.jit
    def load(self, b, h, start_m, start_n, is_masked, block, stage, full):
        pass

    @gluon.jit
    def apply(self, s, scale, block, stage, MASKED: gl.constexpr, TURN: gl.constexpr):
        """Scores [ROWS, BLOCK_N] with the mask, in the units in which the row's maximum is kept."""
        return s


@gluon.aggregate
class KeyMask:
    """A mask without rows of its own, as mask_keys leaves it: a bias for each key, -inf past the last."""

    map: tma.tensor_descriptor  # [mask_batch, mask_heads, 1, keys], fp32
    table: gl.tensor  # *i32, [mask_batch, mask_heads, 4, key blocks + 1]
    tiles: gl.shared_memory_descriptor  # [STAGES, 1, 1, 1, BLOCK_N], full and free with the tiles of keys
    mask_batch: gl.tensor
    mask_heads: gl.tensor
    BLOCK_N: gl.constexpr

    @gluon.jit
    def blocks(self, schedule, start_m, b, h):
        limit, full_limit = schedule.key_blocks(start_m)
        width = (schedule.seqlen_k + self.BLOCK_N - 1) // self.BLOCK_N + 1
        row = gl.minimum(b, self.mask_batch - 1) * self.mask_heads + gl.minimum(h, self.mask_heads - 1)
        # 64-bit: batch * heads * blocks may pass 2^31.
        table = self.table + row.to(gl.int64) * (4 * width)
        plain = gl.load(table + limit)
        full = gl.load(table + full_limit)
        biased = gl.load(table + width + limit)
        edges = plain - full
        # A tile for which nothing is listed visits one block, whose keys are all masked.
        is_empty = plain + biased == 0
        full = gl.where(is_empty, 1, full)
        count = edges + biased + full
        return ListedBlocks(count, gl.maximum(edges + biased, 1), edges, full, table + 3 * width, table + 2 * width)

    @gluon.jit
    def expect(self, full, BYTES: gl.constexpr, is_masked):
        mbarrier.expect(full, BYTES, pred=is_masked == 0)
        mbarrier.expect(full, BYTES + 4 * self.BLOCK_N, pred=is_masked)

    @gluon.jit
    def load(self, b, h, start_m, start_n, is_masked, block, stage, full):
        at = [gl.minimum(b, self.mask_batch - 1), gl.minimum(h, self.mask_heads - 1), 0, start_n]
        tma.async_load(self.map, at, full, self.tiles.index(stage), pred=is_masked)

    @gluon.jit
    def apply(self, s, scale, block, stage, MASKED: gl.constexpr, TURN: gl.constexpr):
        if MASKED:
            # [1, BLOCK_N]: a row of the scores' layout
            bias = self.tiles.index(stage).reshape([1, self.BLOCK_N]).load(s.type.layout)
            s = s * scale + bias
            fence_async_shared()  # as in MatrixMask
        return s


@gluon.aggregate
class MatrixMask:
    """A mask that TMA can read as it is, a tile [ROWS, BLOCK_N] for each consumer."""

    map: tma.tensor_descriptor  # [mask_batch, mask_heads, seqlen_q, seqlen_k]
    tiles: gl.shared_memory_descriptor  # [MASK_STAGES * CONSUMERS, 1, 1, ROWS, BLOCK_N]
    full: gl.shared_memory_descriptor  # [MASK_STAGES * CONSUMERS, 1]
    free: gl.shared_memory_descriptor
    mask_batch: gl.tensor
    mask_heads: gl.tensor
    IS_BOOLEAN: gl.constexpr
    MASK_STAGES: gl.constexpr
    CONSUMERS: gl.constexpr
    ROWS: gl.constexpr
    BLOCK_N: gl.constexpr

    @gluon.jit
    def blocks(self, schedule, start_m, b, h):
        return band_blocks(schedule, start_m)

    @gluon.jit
    def expect(self, full, BYTES: gl.constexpr, is_masked):
        mbarrier.expect(full, BYTES)

    @gluon.jit
    def load(self, b, h, start_m, start_n, is_masked, block, stage, full):
        parity = (block // self.MASK_STAGES) & 1
        for w in gl.static_range(self.CONSUMERS):
            place = block % self.MASK_STAGES * self.CONSUMERS + w
            tile = self.tiles.index(place)
            mbarrier.wait(self.free.index(place), parity ^ 1)
            mbarrier.expect(self.full.index(place), tile.nbytes_per_cta)
            at = [
                gl.minimum(b, self.mask_batch - 1), gl.minimum(h, self.mask_heads - 1),
                start_m + w * self.ROWS, start_n,
            ]  # fmt: skip
            tma.async_load(self.map, at, self.full.index(place), tile)

    @gluon.jit
    def apply(self, s, scale, block, stage, MASKED: gl.constexpr, TURN: gl.constexpr):
        place = block % self.MASK_STAGES * self.CONSUMERS + TURN
        mbarrier.wait(self.full.index(place), (block // self.MASK_STAGES) & 1)
        tile = self.tiles.index(place).reshape([self.ROWS, self.BLOCK_N]).load(s.type.layout)
        if self.IS_BOOLEAN:
            s = gl.where(tile != 0, s, float("-inf"))
        else:
            s = s * scale + tile.to(gl.float32)
        # A load may still be waiting for its turn behind a wgmma when TMA writes the next tile: seen at head_dim 256.
        fence_async_shared()
        mbarrier.arrive(self.free.index(place), count=1)
        return s
