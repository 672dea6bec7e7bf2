"""mask_keys in Triton's interpreter: the bias and the lists of blocks it makes of a mask."""

import math
import os

import pytest
import torch

assert os.environ.get("TRITON_INTERPRET") == "1", "run these with TRITON_INTERPRET=1, which Triton reads at import"

from triton_src import mask_keys  # noqa: E402

BLOCK_N = 16
KINDS = {torch.bool: 1, torch.float16: 2, torch.float32: 2}


def lists_of(bias):
    """[(plain blocks, biased blocks)] of bias [vectors, blocks * BLOCK_N], by definition."""
    found = []
    for vector in bias.view(len(bias), -1, BLOCK_N):
        plain = [i for i, block in enumerate(vector) if (block == 0).all()]
        absent = [i for i, block in enumerate(vector) if (block == -math.inf).all()]
        found.append((plain, [i for i in range(len(vector)) if i not in plain and i not in absent]))
    return found


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("seqlen", [1, 16, 100, 16 * 16, 601])
def test_bias_and_lists(seqlen, dtype):
    draw = torch.Generator().manual_seed(seqlen)
    blocks = -(-seqlen // BLOCK_N)
    # Three batch items, two heads, every second key; the last vector has no key at all, and one key is NaN.
    mask = torch.randn(3, 2, 1, 2 * seqlen, generator=draw)[..., ::2]
    mask[:2] = torch.where(torch.rand(2, 2, 1, seqlen, generator=draw) < 0.2, -math.inf, 0.0)
    for block in range(0, blocks, 3):
        mask[0, :, :, block * BLOCK_N : (block + 1) * BLOCK_N] = 0.0
        mask[0, 1, :, (block + 1) * BLOCK_N : (block + 2) * BLOCK_N] = -math.inf
    mask[2, 0, :, -1] = math.nan
    mask[2, 1] = -math.inf
    expected = mask if dtype != torch.bool else torch.where(mask != -math.inf, 0.0, -math.inf)
    mask = (mask != -math.inf) if dtype == torch.bool else mask.to(dtype)

    bias = torch.full((6, blocks * BLOCK_N), math.nan)
    table = torch.full((6, 4, blocks + 1), -1, dtype=torch.int32)
    mask_keys[(6,)](mask, bias, table, *mask.stride()[:2], mask.stride(3), 2, seqlen, KINDS[dtype], 16, BLOCK_N)

    wanted = torch.nn.functional.pad(expected.to(dtype).float() if dtype != torch.bool else expected, (0, 0))
    padded = torch.nn.functional.pad(wanted.view(6, seqlen), (0, blocks * BLOCK_N - seqlen), value=-math.inf)
    assert torch.equal(bias.nan_to_num(7.0, neginf=-9.0), padded.nan_to_num(7.0, neginf=-9.0))
    for row, lists in zip(table.tolist(), lists_of(padded), strict=True):
        for before, listed, blocks_of_kind in zip(row[:2], row[2:], lists, strict=True):
            assert before == [sum(i < block for i in blocks_of_kind) for block in range(blocks + 1)]
            assert listed[: len(blocks_of_kind)] == blocks_of_kind
        assert 0 <= row[2][0] < blocks, "a tile without keys reads the first entry"
