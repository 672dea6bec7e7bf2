"""Which query tiles a program computes, in which order, and which key blocks a tile sees."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.aggregate
class Schedule:
    """A static schedule of tiles over the programs of a persistent grid; it needs no memory and repeats exactly.

    Heads are taken `heads_at_once` at a time, so that their keys and values stay in L2; among those, the last block of
    queries of every head comes first, as it sees most keys under causality. Programs take tiles in rounds, every other
    round in reverse order, so that under causality all get about the same work (a plain stride would always give
    program 0 the longest tile of a round).
    """

    num_heads: gl.tensor  # batch * heads_q
    heads_at_once: gl.tensor
    blocks_m: gl.tensor  # query blocks of a head
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    band_hi: gl.tensor
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr

    @gluon.jit
    def place(self, round):
        programs = gl.num_programs(0)
        place = gl.program_id(0)
        if round % 2 == 1:
            place = programs - 1 - place
        return round * programs + place

    @gluon.jit
    def num_tiles(self):
        """How many tiles this program computes."""
        programs = gl.num_programs(0)
        tiles = self.num_heads * self.blocks_m
        whole_rounds = tiles // programs
        return whole_rounds + (self.place(whole_rounds) < tiles).to(gl.int32)

    @gluon.jit
    def tile(self, i):
        """(first query row, index of batch and head) of this program's i-th tile."""
        place = self.place(i)
        group = place // (self.heads_at_once * self.blocks_m)
        first_head = group * self.heads_at_once
        heads = gl.minimum(self.heads_at_once, self.num_heads - first_head)
        within = place - first_head * self.blocks_m
        return (self.blocks_m - 1 - within // heads) * self.BLOCK_M, first_head + within % heads

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
