"""One step of the online softmax, in a warpgroup's registers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .masks import ADDITIVE, BOOLEAN, KEYS

LOG2E = gl.constexpr(1.4426950408889634)
# A row maximum beyond it (finfo.min) would overflow as it is turned to base 2; scores there are 2^100 apart or equal.
HUGE = gl.constexpr(1e38)


@gluon.constexpr_function
def in_natural_units(mask):
    """Whether the row's maximum is kept so, or in units of q k^T."""
    return mask in (ADDITIVE.value, KEYS.value)


@gluon.jit
def mask_scores(s, start_n, seen, BLOCK_N: gl.constexpr):
    """-inf where a row does not see the key; row r sees keys below seen[r]. This also masks keys past the end."""
    columns = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s.type.layout))
    return gl.where(columns[None, :] < seen[:, None], s, float("-inf"))


@gluon.jit
def finite(row_max):
    """What to subtract: 0 for a row that has seen no key, as -inf - (-inf) is NaN and exp2(-inf) the 0 wanted."""
    return gl.where(row_max == float("-inf"), 0.0, row_max)


@gluon.jit
def online_softmax(s, row_max, scale, MASKED: gl.constexpr, MASK: gl.constexpr):
    """P of one key block: (row_max with this block, its ratio to the one before, P).

    Without an additive mask row_max is in units of q k^T and one FMA takes a score to base 2. With one it is in natural
    units, and so are scores, except those of a block without bias. row_max = -inf: no key seen so far.
    """
    scale2 = scale * LOG2E
    if in_natural_units(MASK):
        if MASK == KEYS and not MASKED:
            new_max = gl.maximum(row_max, gl.max(s, 1) * scale)
        else:
            new_max = gl.maximum(row_max, gl.max(s, 1))
        top = finite(new_max)
        to_base_2 = gl.where(gl.abs(top) > HUGE, 1.0, LOG2E)
        shift = top * to_base_2
        alpha = gl.exp2(row_max * to_base_2 - shift)
        if MASK == KEYS and not MASKED:
            p = gl.exp2(s * scale2 - shift[:, None])
        else:
            p = gl.exp2(s * to_base_2[:, None] - shift[:, None])
    else:
        new_max = gl.maximum(row_max, gl.max(s, 1))
        if MASKED or MASK == BOOLEAN:
            shift = finite(new_max) * scale2
        else:
            shift = new_max * scale2
        alpha = gl.exp2(row_max * scale2 - shift)
        p = gl.exp2(s * scale2 - shift[:, None])
    return new_max, alpha, p
