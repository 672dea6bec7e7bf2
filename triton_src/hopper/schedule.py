"""Which query tiles a program computes, in which order, and which key blocks a tile sees."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.aggregate
class Schedule:
    """A static schedule of tiles over the programs of the grid, however many; it needs no memory and repeats exactly.

    Tiles stand in one order, and programs take them in turns, `tiles_per_turn` neighbours at a time.
    1: heads are taken `heads_at_once` at a time, so that their keys and values stay in L2; among those the last block
    of queries of every head comes first, as it sees most keys under causality. Good for a grid of as many programs as
    tiles, which the GPU starts in order as others end, and, one head at a time, for a persistent one without causality.
    2: each head's last, first, second last, second block of queries and so on, and for every other head the reverse, so
    that the middle blocks of two heads meet; heads_at_once is 1. Under causality the two tiles of a turn see about the
    same number of keys together, whichever they are: all programs of a persistent grid get the same work.
    """

    num_tiles: gl.tensor
    blocks_m: gl.tensor  # query blocks of a head
    heads_at_once: gl.tensor
    tiles_per_turn: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    band_hi: gl.tensor
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr

    @gluon.jit
    def own_tiles(self):
        """How many tiles this program computes."""
        a_round = gl.num_programs(0) * self.tiles_per_turn
        rounds = self.num_tiles // a_round
        left = self.num_tiles - rounds * a_round - gl.program_id(0) * self.tiles_per_turn
        return rounds * self.tiles_per_turn + gl.minimum(gl.maximum(left, 0), self.tiles_per_turn)

    @gluon.jit
    def tile(self, i):
        """(first query row, index of batch and head) of this program's i-th tile."""
        turn = i // self.tiles_per_turn
        place = (turn * gl.num_programs(0) + gl.program_id(0)) * self.tiles_per_turn + i - turn * self.tiles_per_turn
        first_head = place // (self.heads_at_once * self.blocks_m) * self.heads_at_once
        within = place - first_head * self.blocks_m
        heads = gl.minimum(self.heads_at_once, self.num_tiles // self.blocks_m - first_head)
        rank = within // heads
        block = self.blocks_m - 1 - rank
        if self.tiles_per_turn == 2:
            if first_head % 2 == 1:
                rank = self.blocks_m - 1 - rank
            block = gl.where(rank % 2 == 1, rank // 2, self.blocks_m - 1 - rank // 2)
        return block * self.BLOCK_M, first_head + within % heads

    @gluon.jit
    def key_blocks(self, start_m):
        """(blocks the tile sees, how many of them, from the first on, lie wholly inside the band and the tensor).

        Row i sees keys j <= min(i + band_hi, seqlen_k - 1). At least one block, so that a tile without keys needs no
        path of its own: all of its scores are masked.
        """
        end_m = gl.minimum(start_m + self.BLOCK_M, self.seqlen_q)
        seen = gl.maximum(gl.minimum(end_m + self.band_hi, self.seqlen_k), 1)
        seen_by_all = gl.maximum(gl.minimum(start_m + 1 + self.band_hi, self.seqlen_k), 0)
        return (seen + self.BLOCK_N - 1) // self.BLOCK_N, seen_by_all // self.BLOCK_N
