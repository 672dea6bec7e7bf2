"""How the planner meets masks on Hopper: as a vector, as a matrix through TMA, or with the general kernels."""

import math
import re

import pytest
import torch

from flashtri import _C

pytestmark = pytest.mark.skipif(
    not any(kernel["function"] == "fwd_hopper_mask" for kernel in _C.kernels()), reason="built without sm_90"
)


def dense(batch=2, heads=16, seqlen=1000, head_dim=128):
    return (batch, heads, seqlen, head_dim), (heads * seqlen * head_dim, seqlen * head_dim, head_dim, 1)


def problem(mask, mask_dtype="bf16", head_dim=128, **changes):
    tensors = {name: dense(head_dim=head_dim) for name in ("q", "k", "v", "out")}
    return {**tensors, "mask": mask, "mask_dtype": mask_dtype, **changes}


def kernels(asked):
    return [launch["kernel"] for launch in _C.plan(**asked)["launches"]]


def described(size, stride=None):
    """(sizes, strides) of a contiguous mask, or of one with these strides."""
    return size, stride or tuple(math.prod(size[i + 1 :]) if n > 1 else 0 for i, n in enumerate(size))


@pytest.mark.parametrize("mask_dtype", ["boolean", "bf16", "f32"])
@pytest.mark.parametrize(
    "mask",
    [
        described((2, 1, 1, 1000)),
        described((1, 16, 1, 1000)),
        described((2, 16, 1, 1000), (16001, 1000, 0, 1)),
        described((2, 1, 1, 1000), (2, 0, 0, 4)),
        described((2, 16, 1000, 1000), (1000, 0, 0, 1)),
    ],
)
def test_a_mask_of_keys_is_read_once(mask, mask_dtype):
    plan = _C.plan(**problem(mask, mask_dtype))
    vectors = math.prod(n for n, stride in zip(*mask, strict=True) if stride and n != 1000)
    assert plan["launches"] == [
        {"kernel": f"mask_keys_bf16_d128_mask_{mask_dtype}_sm90", "grid": vectors},
        {"kernel": "fwd_hopper_mask_bf16_d128_m128_mask_keys_sm90", "grid": 132},
    ]
    assert plan["scratch"]["mask_bias"] == vectors * 1024
    assert plan["scratch"]["mask_table"] == vectors * 4 * (8 + 1)


@pytest.mark.parametrize(("head_dim", "block_n"), [(64, 128), (128, 128), (200, 64)])
def test_both_kernels_have_the_same_blocks(head_dim, block_n):
    registry = {kernel["name"]: kernel for kernel in _C.kernels()}
    made, read = kernels(problem(described((2, 1, 1, 1000)), head_dim=head_dim))
    assert registry[made]["block_n"] == registry[read]["block_n"] == block_n


@pytest.mark.parametrize("mask_dtype", ["boolean", "bf16", "f32"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_matrix_goes_through_tma(mask_dtype, head_dim):
    keys = 1000 if mask_dtype != "boolean" else 1008
    mask = described((2, 16, 1000, keys))
    asked = problem(mask, mask_dtype, head_dim, k=dense(seqlen=keys, head_dim=head_dim))
    asked["v"] = asked["k"]
    (kernel,) = kernels(asked)
    assert re.fullmatch(rf"fwd_hopper_mask_bf16_d{head_dim}_m(128|192)_mask_{mask_dtype}_sm90", kernel)


def test_an_expanded_matrix_is_the_small_one():
    plan = _C.plan(**problem(described((2, 16, 1000, 1000), (0, 1000 * 1000, 1000, 1))))
    assert plan["launches"][0]["kernel"].startswith("fwd_hopper_mask")
    assert (plan["args"]["mask_batch"], plan["args"]["mask_heads"]) == (1, 16)


GENERAL = {
    "an odd row stride": (described((1, 1, 1000, 1000), (0, 0, 1001, 1)), "a stride of the mask is no multiple of 16"),
    "transposed": (described((1, 1, 1000, 1000), (0, 0, 1, 1000)), "keys of the mask do not lie side by side"),
    "a column": (described((1, 1, 1000, 1)), "the mask has one column for all keys"),
    "from the last row on": (described((1, 1, 1000, 1000), (0, 0, -1000, 1)), "a stride of the mask is negative"),
}


@pytest.mark.parametrize("name", GENERAL)
def test_what_tma_cannot_describe(name):
    mask, reason = GENERAL[name]
    asked = problem(mask)
    assert kernels(asked) == ["fwd_bf16_d128_mask_bf16_sm90"]
    lines = [line for line in _C.explain(**asked).splitlines() if "fwd_hopper_mask_bf16_d128_m128_mask_bf16" in line]
    assert len(lines) == 1 and reason in lines[0]


def test_explain_says_why_not_the_other_way():
    text = _C.explain(**problem(described((2, 1, 1, 1000))))
    assert re.search("not fwd_hopper_mask_bf16_d128_m128_mask_bf16_sm90: a mask that is the same for every query", text)
    text = _C.explain(**problem(described((2, 1, 1000, 1000))))
    assert re.search("mask_keys_sm90: it reads masks that are the same for every query", text)


def test_strides_of_a_mask_beyond_tma():
    far = torch.iinfo(torch.int64).max // 4 // 8 * 8
    assert kernels(problem(described((2, 1, 1000, 1000), (far, 0, 1000, 1)))) == ["fwd_bf16_d128_mask_bf16_sm90"]
