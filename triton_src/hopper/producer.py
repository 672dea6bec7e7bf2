"""What the forward's programs keep in shared memory, and the warp that loads it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Query rows of a consumer warpgroup: the M of a wgmma.
ROWS = gl.constexpr(64)


@gluon.aggregate
class Shared:
    """Tiles in shared memory and their barriers: `full` when TMA has filled a tile, `free` when it has been read."""

    q: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, BLOCK_D]
    out: gl.shared_memory_descriptor  # as q, and the same memory unless OUT_APART
    k: gl.shared_memory_descriptor  # [STAGES, 1, 1, BLOCK_N, BLOCK_D]
    v: gl.shared_memory_descriptor  # [STAGES, 1, 1, BLOCK_N, BLOCK_D]
    q_full: gl.shared_memory_descriptor  # [CONSUMERS, 1]
    q_free: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor  # [STAGES, 1]
    k_free: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_free: gl.shared_memory_descriptor
    BLOCK_N: gl.constexpr
    BLOCK_D: gl.constexpr
    STAGES: gl.constexpr
    CONSUMERS: gl.constexpr
    OUT_APART: gl.constexpr

    @gluon.jit
    def stage(self, block):
        """(stage, parity of its barriers) of the block-th key block that the program meets."""
        return block % self.STAGES, (block // self.STAGES) & 1

    @gluon.jit
    def keys_transposed(self, stage):
        return self.k.index(stage).reshape([self.BLOCK_N, self.BLOCK_D]).permute((1, 0))

    @gluon.jit
    def values(self, stage):
        return self.v.index(stage).reshape([self.BLOCK_N, self.BLOCK_D])


@gluon.jit
def load(map, coordinates, full, tile):
    mbarrier.expect(full, tile.nbytes_per_cta)
    tma.async_load(map, coordinates, full, tile)


@gluon.jit
def producer(q_map, k_map, v_map, shared, schedule, mask, heads_q, group_size):
    """One warp: the q tiles of every query tile, and the key blocks that it visits."""
    block = 0
    for i in range(schedule.own_tiles()):
        start_m, head_index = schedule.tile(i)
        b = head_index // heads_q
        h = head_index % heads_q
        h_k = h // group_size
        blocks = mask.blocks(schedule, start_m, b, h)
        for w in gl.static_range(shared.CONSUMERS):
            mbarrier.wait(shared.q_free.index(w), (i & 1) ^ 1)
            load(q_map, [b, h, start_m + w * ROWS, 0], shared.q_full.index(w), shared.q.index(w))
        for j in range(blocks.count):
            start_n = blocks.block(j) * shared.BLOCK_N
            stage, parity = shared.stage(block)
            k_full, k_tile = shared.k_full.index(stage), shared.k.index(stage)
            mbarrier.wait(shared.k_free.index(stage), parity ^ 1)
            mask.expect(k_full, k_tile.nbytes_per_cta, j < blocks.masked)
            tma.async_load(k_map, [b, h_k, start_n, 0], k_full, k_tile)
            mask.load(b, h, start_m, start_n, j < blocks.masked, block, stage, k_full)
            mbarrier.wait(shared.v_free.index(stage), parity ^ 1)
            load(v_map, [b, h_k, start_n, 0], shared.v_full.index(stage), shared.v.index(stage))
            block += 1
