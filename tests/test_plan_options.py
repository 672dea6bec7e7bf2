"""What windows, sinks, biases, softcap and dropout change in a plan, and why kernels that lack them do not serve."""

import re

import pytest

from flashtri import _C

ARCHS = sorted({kernel["arch"] for kernel in _C.kernels()})


def dense(batch=2, heads=4, seqlen=1000, head_dim=128):
    return (batch, heads, seqlen, head_dim), (heads * seqlen * head_dim, seqlen * head_dim, head_dim, 1)


def problem(**changes):
    return {name: dense() for name in ("q", "k", "v", "out")} | {"arch": ARCHS[0]} | changes


def band(**options):
    args = _C.plan(**problem(k=dense(seqlen=1500), v=dense(seqlen=1500), **options))["args"]
    return args["band_lo"], args["band_hi"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (-1000, 1500)),
        ({"is_causal": True}, (-1000, 0)),
        ({"window_left": 3, "window_right": 5}, (-3, 5)),
        ({"window_left": 3, "window_right": 5, "is_causal": True}, (-3, 0)),
        ({"window_left": 3, "window_right": 5, "bottom_right": True}, (497, 505)),
        ({"window_left": 1 << 40, "window_right": 1 << 40}, (-1000, 1500)),
        ({"window_right": 0}, (-1000, 0)),
    ],
    ids=str,
)
def test_the_band_of_a_window(options, expected):
    assert band(**options) == expected


def test_a_relative_bias_is_a_mask_along_diagonals():
    bias = (1, 4, 1, 1999), (0, 1999, 0, 1)
    args = _C.plan(**problem(relative_bias=bias))["args"]
    assert [args[f"mask_stride_{dim}"] for dim in "bhqk"] == [0, 1999, -1, 1]
    with pytest.raises(ValueError, match=r"1999 columns, got 2000"):
        _C.plan(**problem(relative_bias=((1, 4, 1, 2000), (0, 2000, 0, 1))))


def test_only_the_sinks_gradient_costs_no_more_than_delta():
    plan = _C.plan(**problem(dout=dense(), has_sinks=True), backward=True, needs_delta=True)
    assert [launch["kernel"].split("_bf16")[0] for launch in plan["launches"]] == ["bwd_delta"]


@pytest.mark.parametrize("options", [{"softcap": 5.0}, {"dropout_p": 0.1}])
def test_softcap_and_dropout_take_kernels_of_their_own(options):
    (launch,) = _C.plan(**problem(**options))["launches"]
    assert launch["kernel"] == f"fwd_bf16_d128_features_sm{ARCHS[0]}"
    explained = _C.explain(**problem(**options))
    assert f"not fwd_bf16_d128_sm{ARCHS[0]}: it computes neither softcap nor dropout" in explained
    assert "it is for softcap and dropout" in _C.explain(**problem(has_tensor_maps=False))


def test_the_threshold_and_scale_of_dropout():
    args = _C.plan(**problem(dropout_p=0.25))["args"]
    assert args["dropout_threshold"] == 16384 and args["dropout_scale"] == pytest.approx(4 / 3)


@pytest.mark.skipif(90 not in ARCHS, reason="built without sm_90")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window_left": 9}, "its band has no left edge"),
        ({"has_sinks": True}, "it takes no sinks"),
        ({"softcap": 9.0}, "neither softcap nor dropout"),
    ],
    ids=str,
)
def test_what_hoppers_forward_refuses(options, reason):
    asked = problem(**options) | {"arch": 90}
    assert _C.plan(**asked)["launches"][0]["kernel"].startswith("fwd_bf16_d128")
    lines = [line for line in _C.explain(**asked).splitlines() if "fwd_hopper_bf16_d128" in line]
    assert lines and all(re.search(reason, line) for line in lines)
