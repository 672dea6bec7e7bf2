"""What the backward kernels share: which keys a program computes, P of a tile, and the sums for dq."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LOG2E = gl.constexpr(1.4426950408889634)
# Keys of a tile and queries of a block: the M of a wgmma.
ROWS = gl.constexpr(64)


@gluon.aggregate
class Task:
    """The keys from start_n on of key head h_k in batch b, and the blocks of queries that they meet."""

    b: gl.tensor
    h_k: gl.tensor
    start_n: gl.tensor
    first: gl.tensor  # blocks [first, end) see some of the keys, [full_first, full_end) all of them
    full_first: gl.tensor
    full_end: gl.tensor
    end: gl.tensor
    shift: gl.tensor  # where SHIFTED the program begins at first + shift and goes around
    SHIFTED: gl.constexpr

    @gluon.jit
    def query_block(self, step):
        """The block of step [first, end)."""
        i = step
        if self.SHIFTED:
            i = step + self.shift
            i = gl.where(i < self.end, i, i - (self.end - self.first))
        return i


@gluon.jit
def task_of(
    batch, heads_k, heads_at_once, seqlen_q, seqlen_k, band_lo, band_hi, BLOCK_N: gl.constexpr, SHIFTED: gl.constexpr
):
    """Heads are taken heads_at_once at a time, so that what they read and add to stays in L2; of those, the first block
    of keys of every head comes first: under causality it meets the most queries.
    """
    blocks_n = (seqlen_k + BLOCK_N - 1) // BLOCK_N
    place = gl.program_id(0)
    first_head = place // (heads_at_once * blocks_n) * heads_at_once
    within = place - first_head * blocks_n
    heads = gl.minimum(heads_at_once, batch * heads_k - first_head)
    start_n = within // heads * BLOCK_N
    head = first_head + within % heads
    # Row i sees key j where i + band_lo <= j <= i + band_hi.
    stop_n = gl.minimum(start_n + BLOCK_N, seqlen_k)
    first = gl.maximum(start_n - band_hi, 0) // ROWS
    end = (gl.maximum(gl.minimum(stop_n - band_lo, seqlen_q), 0) + ROWS - 1) // ROWS
    end = gl.maximum(end, first)
    full_first = (gl.maximum(stop_n - 1 - band_hi, 0) + ROWS - 1) // ROWS
    # Rows past the end of q have P = 0 from their LSE: the last block is no edge.
    full_end = gl.where(start_n - band_lo + 1 >= seqlen_q, end, gl.maximum(start_n - band_lo + 1, 0) // ROWS)
    # Keys past the end are masked everywhere: their P is exp2(-lse), which may be inf, and inf * 0 in dq is NaN.
    full_first = gl.where(start_n + BLOCK_N > seqlen_k, end, full_first)
    full_first = gl.minimum(gl.maximum(full_first, first), end)
    full_end = gl.minimum(gl.maximum(full_end, full_first), end)
    # So that programs of one head, which run at the same time, add to dq at different places; where they begin at
    # different blocks, they do so anyway. 64-bit, as a product of two lengths.
    shift = gl.where(first == 0, (start_n.to(gl.int64) * end // seqlen_k).to(gl.int32), 0)
    return Task(head // heads_k, head % heads_k, start_n, first, full_first, full_end, end, shift, SHIFTED)


@gluon.constexpr_function
def terms_layout():
    """[4, 8, 2] numbers, of which a thread reads the 16 that its columns of a wgmma's 64 x 64 result need."""
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        lane_bases=[[1, 0, 0], [2, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
        warp_bases=[[0, 0, 0], [0, 0, 0]],
        block_bases=[],
        shape=[4, 8, 2],
    )


@gluon.jit
def load_terms(row_terms, TERM: gl.constexpr, s_layout: gl.constexpr):
    """One number a query, [1, ROWS]; bwd_terms has put those of a thread together: it reads 16 bytes at a time."""
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    t = row_terms.reinterpret(gl.float32, [2, 4, 8, 2], plain).index(TERM).load(terms_layout())
    t = t.permute((1, 0, 2)).reshape([ROWS])
    return gl.convert_layout(t, gl.SliceLayout(0, s_layout), assert_trivial=True)[None, :]


@gluon.jit
def probabilities(s, lse2, scale2, i, keys, task, seqlen_k, band_lo, band_hi):
    """P^T [keys, queries] of query block i from products k q^T; masked only in blocks that see part of the keys."""
    p = gl.exp2(s * scale2 - lse2)
    if (i < task.full_first) | (i >= task.full_end):
        rows = i * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, s.type.layout))
        ahead = keys[:, None] - rows[None, :]
        p = gl.where((ahead >= band_lo) & (ahead <= band_hi) & (keys < seqlen_k)[:, None], p, 0.0)
    return p


@gluon.jit
def in_order_of_sums(dq):
    """[ROWS, columns] as a row of numbers, in the order in which threads hold a wgmma's result: 16 bytes a thread."""
    # Rows are 4 warps x 2 registers x 8 lanes, columns registers x 4 lanes x 2 registers.
    dq = dq.reshape([4, 2, 8, dq.shape[1] // 8, 4, 2]).permute((3, 0, 2, 4, 1, 5))
    return dq.reshape([ROWS * dq.shape[0] * 8])


@gluon.jit
def add_to_dq(acc, dq):
    """Adds [ROWS, columns] to the fp32 sums, from registers."""
    dq = in_order_of_sums(dq)
    gl.atomic_add(acc + gl.arange(0, dq.shape[0], dq.type.layout), dq, sem="relaxed")
