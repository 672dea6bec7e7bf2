"""The plan for each compiled architecture, run in Triton's interpreter and judged as the op is.

fp16 only: the interpreter's tl.dot reads bf16 operands as integers.
"""

import itertools
import os

import pytest
from problems import Problem
from reference import check, run

import flashtri

assert os.environ.get("TRITON_INTERPRET") == "1", "run these with TRITON_INTERPRET=1, which Triton reads at import"

from replay import attention_function  # noqa: E402

ARCHS = sorted({kernel["arch"] for kernel in flashtri.kernels()})
MASKS = {
    None: {},
    "bool": {"mask_axes": "b1qk", "mask_values": "dead"},
    "f16": {"mask_axes": "1hqk", "mask_values": "holes"},
    "bf16": {"mask_axes": "bhqk", "mask_values": "lowest"},
    "f32": {"mask_axes": "b11k", "mask_values": "lowest"},
}


def _features():
    """Every mask with every causality and grouping, over lengths that leave blocks partly filled."""
    lengths = itertools.cycle(((65, 130), (130, 65), (33, 150)))
    dims = itertools.cycle(((40, None), (24, None), (72, 40), (64, 128)))
    for mask, causal, heads_k in itertools.product(MASKS, (None, "top_left", "bottom_right"), (2, 1)):
        (seqlen_q, seqlen_k), (head_dim, head_dim_v) = next(lengths), next(dims)
        yield Problem(
            heads_q=2, heads_k=heads_k, seqlen_q=seqlen_q, seqlen_k=seqlen_k, head_dim=head_dim,
            head_dim_v=head_dim_v, causal=causal, mask=mask, has_dlse=heads_k == 1, **MASKS[mask],
        )  # fmt: skip


def _masks_gradient():
    """Each way in which a mask's gradient is summed: over batch, heads, rows and columns."""
    for axes in ("1111", "b1q1", "1h1k", "bhq1", "111k", "qk"):
        yield Problem(batch=3, heads_q=2, heads_k=2, seqlen_q=70, seqlen_k=67, head_dim=16, mask="f32", mask_axes=axes)


def _windows_sinks_and_biases():
    # Four heads, as a sink's gradient is one number a head: the norm of fewer is a matter of luck.
    small = {"heads_q": 4, "heads_k": 2, "head_dim": 24}
    yield Problem(**small, seqlen_q=65, seqlen_k=130, window=(20, 7), causal="bottom_right_window")
    yield Problem(
        **small, seqlen_q=130, seqlen_k=65, window=(10, None), causal="top_left", mask="f32", mask_axes="b11k"
    )
    yield Problem(**small, seqlen_q=65, seqlen_k=130, sinks="f32")
    yield Problem(
        **small, seqlen_q=130, seqlen_k=65, sinks="f16", causal="bottom_right", window=(16, 0), has_dlse=False
    )
    yield Problem(**small, seqlen_q=65, seqlen_k=130, sinks="f32", mask="f32", mask_axes="b1qk", mask_values="dead")
    yield Problem(**small, seqlen_q=65, seqlen_k=130, bias="f32")
    yield Problem(**small, seqlen_q=130, seqlen_k=65, bias="f16", bias_heads=1, causal="top_left", sinks="f32")
    yield Problem(batch=1, heads_q=1, heads_k=1, seqlen_q=33, seqlen_k=70, head_dim=200, bias="f32", window=(9, 9))


def _softcap_and_dropout():
    small = {"heads_q": 4, "heads_k": 2}
    both = {"softcap": 2.0, "dropout": 0.2}
    yield Problem(**small, seqlen_q=65, seqlen_k=130, softcap=3.0)
    yield Problem(**small, seqlen_q=65, seqlen_k=130, dropout=0.4, causal="bottom_right")
    yield Problem(**small, seqlen_q=130, seqlen_k=65, mask="bool", mask_axes="b1qk", mask_values="dead", **both)
    yield Problem(**small, seqlen_q=65, seqlen_k=130, mask="f32", mask_axes="1hqk", mask_values="holes", **both)
    yield Problem(**small, seqlen_q=65, seqlen_k=130, bias="f32", sinks="f32", window=(40, 0), **both)


def _layouts():
    for layout in ("bshd", "sliced"):
        yield Problem(layout=layout, seqlen_q=66, seqlen_k=131, head_dim=40, mask="f16", causal="top_left")
    yield Problem(batch=1, heads_q=1, heads_k=1, seqlen_q=66, seqlen_k=70, head_dim=200, scale=0.0)


def _decoding():
    """Both tiles, shared keys and not, every causality, lengths of their own and pages."""
    small = {"batch": 1, "heads_q": 4, "heads_k": 2, "has_dlse": False}
    yield Problem(**small, seqlen_q=3, seqlen_k=500, causal="bottom_right", window=(200, None), sinks="f32")
    for causal in (None, "top_left", "bottom_right"):
        yield Problem(**small, seqlen_q=3, seqlen_k=500, head_dim=40, head_dim_v=24, causal=causal)
        yield Problem(**small, seqlen_q=35, seqlen_k=200, head_dim=72, causal=causal)
        for page_size in (None, 16, 80):
            yield Problem(**{**small, "batch": 3}, seqlen_q=3, seqlen_k=320, head_dim=40, used=(290, 0, 17),
                          page_size=page_size, causal=causal)  # fmt: skip


def _packed():
    for causal, has_dlse in ((None, True), ("top_left", False), ("bottom_right", True)):
        yield Problem(packed=((70, 33), (0, 20), (5, 150), (20, 0)), causal=causal, has_dlse=has_dlse, heads_q=2,
                      heads_k=1, head_dim=40, head_dim_v=24)  # fmt: skip
    yield Problem(
        packed=((70, 33), (5, 150)), causal="bottom_right", window=(40, None), sinks="f32", heads_q=2, heads_k=2
    )


# The tiles differ between architectures: each has its turn.
CASES = list(
    zip(
        [
            *_features(),
            *_masks_gradient(),
            *_windows_sinks_and_biases(),
            *_softcap_and_dropout(),
            *_layouts(),
            *_decoding(),
            *_packed(),
        ],
        itertools.cycle(ARCHS),
        strict=False,
    )
)


@pytest.mark.parametrize(("problem", "arch"), CASES, ids=str)
def test_plan_in_the_interpreter(problem, arch):
    inputs = problem.inputs()
    check(run(attention_function(arch), inputs), inputs)
