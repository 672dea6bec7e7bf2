"""When the planner takes a Hopper kernel, what it says where it does not, and what the launcher encodes for TMA."""

import re

import pytest

from flashtri import _C

FORWARD = [kernel for kernel in _C.kernels() if kernel["function"] == "fwd_hopper"]
pytestmark = pytest.mark.skipif(not FORWARD, reason="built without sm_90")


def dense(batch=2, heads=16, seqlen=1000, head_dim=128):
    return (batch, heads, seqlen, head_dim), (heads * seqlen * head_dim, seqlen * head_dim, head_dim, 1)


def problem(**changes):
    return {name: dense() for name in ("q", "k", "v", "out")} | changes


def test_serves_a_problem_without_a_mask():
    plan = _C.plan(**problem())
    assert plan["launches"] == [{"kernel": "fwd_hopper_bf16_d128_m128_sm90", "grid": 132}]
    assert plan["args"]["heads_at_once"] == 1
    assert "another way serves, which comes first" in _C.explain(**problem())


@pytest.mark.parametrize(("head_dim", "head_dim_v", "block_d"), [(40, 8, 64), (64, 72, 128), (136, 40, 256)])
def test_pads_to_the_wider_head(head_dim, head_dim_v, block_d):
    q, v = dense(head_dim=head_dim), dense(head_dim=head_dim_v)
    block_m = 192 if block_d == 64 else 128
    plan = _C.plan(q=q, k=q, v=v, out=v, dtype="f16")
    assert plan["launches"][0]["kernel"] == f"fwd_hopper_f16_d{block_d}_m{block_m}_sm90"


def test_a_small_problem_gets_a_program_for_each_tile():
    q = dense(batch=1, heads=3, seqlen=300)
    assert _C.plan(q=q, k=q, v=q, out=q)["launches"][0]["grid"] == 9
    assert _C.plan(q=q, k=q, v=q, out=q, sm_count=4)["launches"][0]["grid"] == 4


def test_under_causality_pairs_of_tiles_where_they_fill_the_rounds():
    q = dense(heads=16, seqlen=8192)  # 1,024 pairs over 132 programs: 7.8 rounds
    plan = _C.plan(q=q, k=q, v=q, out=q, is_causal=True)
    assert (plan["launches"][0]["grid"], plan["args"]["tiles_per_turn"]) == (132, 2)


def test_under_causality_else_a_program_for_each_tile_and_the_open_heads_fit_in_l2():
    def planned(seqlen_k, heads_k=16):
        q, k = dense(batch=1, seqlen=2000), dense(batch=1, heads=heads_k, seqlen=seqlen_k)
        plan = _C.plan(q=q, k=k, v=k, out=q, is_causal=True, sm_count=100)
        assert plan["launches"][0]["grid"] == 256 and plan["args"]["tiles_per_turn"] == 1
        return plan["args"]["heads_at_once"]

    assert planned(seqlen_k=8192) == 8  # 4 MiB of keys and values a head
    assert planned(seqlen_k=2000) == 16
    assert planned(seqlen_k=32768, heads_k=4) == 2 * 4
    assert planned(seqlen_k=1 << 20) == 1


@pytest.mark.parametrize(
    ("seqlen", "is_causal", "block_m"), [(511, 0, 128), (512, 0, 192), (4095, 1, 128), (4096, 1, 192)]
)
def test_short_problems_get_short_tiles(seqlen, is_causal, block_m):
    q = dense(head_dim=64, seqlen=seqlen)
    problem = {"q": q, "k": q, "v": q, "out": q, "is_causal": is_causal}
    assert _C.plan(**problem)["launches"][0]["kernel"] == f"fwd_hopper_bf16_d64_m{block_m}_sm90"
    (line,) = [line for line in _C.explain(**problem).splitlines() if f"fwd_hopper_bf16_d64_m{320 - block_m}" in line]
    assert ("its tiles of 192 queries pay" if block_m == 128 else "another tile of the same size of head") in line


BROADCAST = dense()[0], (0, *dense()[1][1:])
FAR = dense()[0], (1 << 39, *dense()[1][1:])
REFUSED = {
    "narrow heads": (
        {name: dense(head_dim=32) for name in ("q", "k", "v", "out")},
        "half of its work would be padding",
    ),
    "a scale of 0": ({"scale": 0.0}, "it masks scores before it scales them"),
    "a denormal scale": ({"scale": 1e-42}, "it masks scores before it scales them"),
    "broadcast keys": ({"k": BROADCAST}, "k is broadcast"),
    "broadcast values": ({"v": BROADCAST}, "v is broadcast"),
    "a far batch": ({"q": FAR}, "a stride is 2.40 bytes or more"),
    "an old driver": ({"has_tensor_maps": False}, "the driver encodes no TMA descriptors"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_it_refuses_goes_to_the_general_kernel(change):
    changes, reason = REFUSED[change]
    (launch,) = _C.plan(**problem(**changes))["launches"]
    assert launch["kernel"].startswith("fwd_bf16_d")
    (line,) = [line for line in _C.explain(**problem(**changes)).splitlines() if "fwd_hopper_bf16_d128" in line]
    assert re.search(reason, line)


def test_a_dimension_of_size_1_may_have_any_stride():
    shape = (1, 16, 1000, 128)
    q = shape, (0, *dense()[1][1:])
    assert _C.plan(q=q, k=q, v=q, out=q)["launches"][0]["kernel"].startswith("fwd_hopper")


def backward(q=None, k=None, v=None, **changes):
    q = q or dense()
    k = k or q
    v = v or k
    out = (*q[0][:3], v[0][3]), q[1]
    return {"q": q, "k": k, "v": v, "out": out, "dout": out, "dq": q, "dk": k, "dv": v, "backward": True} | changes


@pytest.mark.parametrize(("head_dim", "block_d"), [(40, 64), (64, 64), (72, 128), (128, 128), (136, 256), (256, 256)])
@pytest.mark.parametrize("heads_k", [16, 4])
def test_the_backward_is_three_launches(head_dim, block_d, heads_k):
    q, k = dense(head_dim=head_dim), dense(heads=heads_k, head_dim=head_dim, seqlen=300)
    plan = _C.plan(**backward(q=q, k=k, dtype="f16"))
    rows = 2 * 16 * 16  # blocks of 64 of 1,000 queries
    blocks_n = 5 if block_d == 256 else 3  # of 64 or 128 of 300 keys
    assert plan["launches"] == [
        {"kernel": f"bwd_terms_f16_d{block_d}_sm90", "grid": rows},
        {"kernel": f"bwd_hopper_f16_d{block_d}_m64_sm90", "grid": blocks_n * 2 * heads_k},
        {"kernel": f"bwd_dq_cast_f16_d{block_d}_sm90", "grid": rows},
    ]
    assert plan["scratch"]["row_terms"] == rows * 2 * 64
    assert plan["scratch"]["dq_acc"] == rows * 64 * block_d
    assert plan["scratch"]["delta"] == 0


def test_without_dq_its_last_pass_is_left_out():
    kernels = [launch["kernel"] for launch in _C.plan(**backward(dq=None))["launches"]]
    assert kernels == ["bwd_terms_bf16_d128_sm90", "bwd_hopper_bf16_d128_m64_sm90"]


def test_under_causality_the_backward_takes_the_heads_that_fit_in_l2():
    def planned(**changes):
        return _C.plan(**backward(**changes))["args"]["heads_at_once"]

    assert planned() == 1
    assert planned(is_causal=True) == 32
    assert planned(q=dense(seqlen=8192), is_causal=True) == 4  # 8 MiB of q, dout and fp32 dq a head
    assert planned(q=dense(seqlen=8192), k=dense(heads=4), is_causal=True) == 1


BACKWARD_REFUSED = {
    "a mask": ({"mask": ((1, 1, 1, 1000), (0, 0, 0, 1)), "mask_dtype": "boolean"}, "its mask is none, .* is boolean"),
    "determinism": ({"deterministic": True}, "it adds up dq in no fixed order"),
    "a scale of 0": ({"scale": 0.0}, "it masks scores before it scales them"),
    "a broadcast dout": ({"dout": BROADCAST}, "dout is broadcast"),
    "a far dk": ({"dk": FAR}, "a stride is 2.40 bytes or more"),
}


@pytest.mark.parametrize("change", BACKWARD_REFUSED)
def test_what_the_backward_refuses_goes_to_the_general_kernels(change):
    changes, reason = BACKWARD_REFUSED[change]
    kernels = [launch["kernel"].split("_bf16")[0] for launch in _C.plan(**backward(**changes))["launches"]]
    assert kernels == ["bwd_delta", "bwd_dkdv", "bwd_dq"]
    explained = _C.explain(**backward(**changes)).splitlines()
    assert any(re.search(reason, line) for line in explained if "bwd_hopper_bf16_d128" in line)


def test_the_backward_serves_windows():
    plan = _C.plan(**backward(window_left=100, window_right=20))
    assert plan["launches"][1]["kernel"].startswith("bwd_hopper")
    assert (plan["args"]["band_lo"], plan["args"]["band_hi"]) == (-100, 20)


def test_dq_alone_is_the_general_kernels():
    kernels = [launch["kernel"] for launch in _C.plan(**backward(dk=None, dv=None))["launches"]]
    assert kernels == ["bwd_delta_bf16_d128_sm90", "bwd_dq_bf16_d128_sm90"]


def test_a_block_of_registers_is_enough():
    """A block has 65,536 registers, at launch as well as after the warpgroups have divided them."""
    for kernel in (kernel for kernel in _C.kernels() if "_hopper" in kernel["name"]):
        assert 32 * kernel["num_warps"] * kernel["registers"] <= 65536
