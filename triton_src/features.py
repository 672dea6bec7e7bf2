"""Softcap and dropout, for the kernels compiled with FEATURES = 1; each is switched off by its own number.

`features` is (rng_state, softcap, dropout_threshold, dropout_scale), as named in csrc/core/arguments.def.
"""

import triton
import triton.language as tl

from .common import LOG2E

# Keys of a row that share one draw of 128 random bits, 16 each. Of 32 neighbours, draw t serves those that lie 2t or
# 2t + 1 after a multiple of 8, as one thread holds them in the tensor cores' output: no thread draws for another.
KEYS_A_DRAW = tl.constexpr(8)


@triton.jit
def capped(s, scale, features):
    """(softcap * tanh(scale * s / softcap), its derivative by scale * s); (scale * s, 1) where softcap is 0."""
    softcap = features[1]
    # tanh(x) = 1 - 2 / (e^2x + 1), right at both infinities; its error of 1e-7 is that of a score of softcap * 1e-7.
    tanh = 1.0 - 2.0 / (tl.math.exp2(s * (scale / tl.where(softcap > 0.0, softcap, 1.0) * (2.0 * LOG2E))) + 1.0)
    is_on = softcap > 0.0
    return tl.where(is_on, softcap * tanh, s * scale), tl.where(is_on, 1.0 - tanh * tanh, 1.0)


@triton.jit
def dropout_factor(head_index, rows, start_n, features, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """What dropout multiplies P of a tile by, [BLOCK_M, BLOCK_N]: 0 or dropout_scale; 1 without dropout.

    Philox 4x32-10 (Salmon et al., 2011) by (draw, row, head, offset), so that every kernel, whatever its tiles, and
    the CPU (csrc/torch/philox.h) draw the same bits.
    """
    rng_state = features[0]
    threshold = features[2]
    factor = tl.full((BLOCK_M, BLOCK_N), 1.0, tl.float32)
    if threshold > 0:
        seed = tl.load(rng_state)
        offset = tl.load(rng_state + 1).to(tl.int32)
        zeros = tl.zeros((BLOCK_M, BLOCK_N // KEYS_A_DRAW), tl.int32)
        draws = start_n // KEYS_A_DRAW + tl.arange(0, BLOCK_N // KEYS_A_DRAW)
        w0, w1, w2, w3 = tl.philox(
            seed, zeros + draws[None, :], zeros + rows[:, None], zeros + head_index, zeros + offset
        )
        kept = (
            is_kept(w0, threshold)
            | is_kept(w1, threshold) << 2
            | is_kept(w2, threshold) << 4
            | is_kept(w3, threshold) << 6
        )
        # [BLOCK_M, BLOCK_N / 8] bytes of eight keys -> [BLOCK_M, BLOCK_N].
        kept = tl.reshape(kept, (BLOCK_M, BLOCK_N // 32, 1, 4, 1))
        kept = tl.reshape(tl.broadcast_to(kept, (BLOCK_M, BLOCK_N // 32, 4, 4, 2)), (BLOCK_M, BLOCK_N))
        columns = tl.arange(0, BLOCK_N)
        kept = kept >> (columns % 32 // 8 * 2 + columns % 2)[None, :]
        factor = (kept & 1).to(tl.float32) * features[3]
    return factor


@triton.jit
def is_kept(word, threshold):
    """Bit 0 for the lower half of the word, bit 1 for the upper: whether it reaches the threshold."""
    lower = (word & 0xFFFF).to(tl.int32) >= threshold
    upper = (word >> 16).to(tl.int32) >= threshold
    return lower.to(tl.int32) | upper.to(tl.int32) << 1
