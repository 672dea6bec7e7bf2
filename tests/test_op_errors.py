"""Every bad input raises before anything runs, and the message names the rule, the value and the remedy."""

import re

import pytest
import torch

import flashtri

fwd, bwd = torch.ops.flashtri.fwd, torch.ops.flashtri.bwd


def tensors(device, q=(2, 4, 16, 32), k=(2, 2, 24, 32), v=(2, 2, 24, 32), dtype=torch.float16):
    return [torch.randn(size, device=device).to(dtype) for size in (q, k, v)]


# Sizes of q, k, v (None: those above), then the exception and what its message must say: value and remedy.
BAD_SIZES = {
    "q has three dimensions": ((4, 16, 32), None, None, ValueError, r"q must have 4 dim.*\[4, 16, 32\].*unsqueeze"),
    "v has five dimensions": (None, None, (1, 2, 2, 24, 32), ValueError, r"v must have 4 dim.*got 5"),
    "batches differ": (None, (3, 2, 24, 32), (3, 2, 24, 32), ValueError, r"same batch size.*\[3, 2, 24, 32\].*expand"),
    "heads do not divide": (
        None,
        (2, 3, 24, 32),
        (2, 3, 24, 32),
        ValueError,
        r"multiple of the heads.*4 and 3; repeat",
    ),
    "no key heads": (None, (2, 0, 24, 32), (2, 0, 24, 32), ValueError, r"q has 4 heads but k has none.*at least one"),
    "heads of k and v differ": (None, None, (2, 4, 24, 32), ValueError, r"k and v must have the same number of heads"),
    "lengths of k and v differ": (None, None, (2, 2, 25, 32), ValueError, r"same sequence length.*\[2, 2, 25, 32\]"),
    "head_dims of q and k differ": ((2, 4, 16, 40), None, None, ValueError, r"q and k must have the same head_dim"),
    "head_dim is no multiple of 8": (
        (2, 4, 16, 36),
        (2, 2, 24, 36),
        None,
        NotImplementedError,
        r"last dimension of q must be a multiple of 8 from 8 to 256; got 36; pad",
    ),
    "head_dim is 0": ((2, 4, 16, 0), (2, 2, 24, 0), None, NotImplementedError, r"from 8 to 256; got 0; pad"),
    "head_dim is too large": ((2, 4, 16, 264), (2, 2, 24, 264), None, NotImplementedError, r"got 264"),
    "head_dim of v is too large": (None, None, (2, 2, 24, 512), NotImplementedError, r"dimension of v .*got 512"),
}


@pytest.mark.parametrize("where", ["device", "meta"])
@pytest.mark.parametrize("case", BAD_SIZES)
def test_sizes(case, where, device):
    *sizes, error, message = BAD_SIZES[case]
    given = {name: size for name, size in zip("qkv", sizes, strict=True) if size is not None}
    with pytest.raises(error, match=message):
        flashtri.attention(*tensors("meta" if where == "meta" else device, **given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.complex64], ids=str)
def test_dtype(dtype, device):
    with pytest.raises(NotImplementedError, match=r"q must be float16 or bfloat16; got .*; cast it"):
        flashtri.attention(*tensors(device, dtype=dtype))


@pytest.mark.parametrize("name", ["k", "v"])
def test_dtypes_differ(name, device):
    given = dict(zip("qkv", tensors(device), strict=True))
    given[name] = given[name].bfloat16()
    with pytest.raises(ValueError, match=rf"{name} must have the dtype of q, Half; got BFloat16; cast"):
        flashtri.attention(**given)


# The mask's sizes, where [2, 4, 16, 24] is wanted.
@pytest.mark.parametrize(
    "size", [(2, 4, 16, 23), (2, 4, 15, 24), (2, 2, 16, 24), (3, 1, 1, 24), (16, 1, 24), (25,), (0, 4, 16, 24)], ids=str
)
def test_mask_does_not_broadcast(size, device):
    expected = re.escape("must broadcast to [batch, heads, query, key] = [2, 4, 16, 24]; got sizes " + str(list(size)))
    with pytest.raises(ValueError, match=expected + r".*where dimension \d should be \d+ or 1"):
        flashtri.attention(*tensors(device), attn_mask=torch.zeros(size, device=device))


def test_mask_has_five_dimensions(device):
    with pytest.raises(ValueError, match=r"attn_mask must have at most 4 dimensions; got 5 .*drop"):
        flashtri.attention(*tensors(device), attn_mask=torch.zeros(1, 2, 4, 16, 24, device=device))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8, torch.complex64], ids=str)
def test_mask_dtype(dtype, device):
    with pytest.raises(NotImplementedError, match=r"attn_mask must be bool .* or float32 .*; got .*; convert"):
        flashtri.attention(*tensors(device), attn_mask=torch.zeros(16, 24, device=device, dtype=dtype))


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_scale(scale, device):
    with pytest.raises(ValueError, match=r"scale must be finite and >= 0; got .*negate q"):
        flashtri.attention(*tensors(device), scale=scale)


@pytest.mark.parametrize("name", ["window_left", "window_right"])
def test_window(name, device):
    with pytest.raises(ValueError, match=rf"{name} must be >= 0 keys; got -1; pass None"):
        flashtri.attention(*tensors(device), **{name: -1})


@pytest.mark.parametrize("softcap", [-1.0, float("nan"), float("inf")])
def test_softcap(softcap, device):
    with pytest.raises(ValueError, match=r"softcap must be finite and >= 0; got .*pass 0\.0"):
        flashtri.attention(*tensors(device), softcap=softcap)


# Sizes and dtype, and what the message must say.
BAD_SINKS = {
    "too few": ((3,), torch.float32, r"one logit for each of q's 4 heads; got 3; expand"),
    "two dimensions": ((4, 1), torch.float32, r"one dimension.*got sizes \[4, 1\]; flatten"),
    "another dtype": ((4,), torch.bfloat16, r"float32 or have the dtype of q, Half; got BFloat16; cast"),
}


@pytest.mark.parametrize("case", BAD_SINKS)
def test_sinks(case, device):
    size, dtype, message = BAD_SINKS[case]
    with pytest.raises(ValueError, match="sinks must.*" + message):
        flashtri.attention(*tensors(device), sinks=torch.zeros(size, dtype=dtype, device=device))


BAD_BIASES = {
    "too short": ((4, 38), ValueError, r"Sq \+ Sk - 1 = 39 columns.*got 38; its index"),
    "two heads": ((2, 39), ValueError, r"each of q's 4 heads, or one row; got 2; expand"),
    "one dimension": ((39,), ValueError, r"two dimensions.*got sizes \[39\]; reshape"),
}


@pytest.mark.parametrize("case", BAD_BIASES)
def test_relative_bias(case, device):
    size, error, message = BAD_BIASES[case]
    with pytest.raises(error, match="relative_bias must.*" + message):
        flashtri.attention(*tensors(device), relative_bias=torch.zeros(size, device=device))


def test_relative_bias_dtype(device):
    with pytest.raises(NotImplementedError, match=r"relative_bias must be float16.*got Double; convert"):
        flashtri.attention(*tensors(device), relative_bias=torch.zeros(4, 39, dtype=torch.float64, device=device))


def test_relative_bias_beside_a_mask(device):
    mask, bias = torch.zeros(16, 24, device=device), torch.zeros(4, 39, device=device)
    with pytest.raises(ValueError, match=r"cannot be given together; got .*\[16, 24\]; add the bias into.*seqused_k"):
        flashtri.attention(*tensors(device), attn_mask=mask, relative_bias=bias)


def test_bottom_right_without_causality(device):
    with pytest.raises(ValueError, match=r"needs is_causal=True or a window; got is_causal=False; set is_causal"):
        flashtri.attention(*tensors(device), bottom_right=True)


@pytest.mark.parametrize("dropout_p", [-0.1, 1.0, 2.0, float("nan")])
def test_dropout(dropout_p, device):
    with pytest.raises(ValueError, match=r"dropout_p must be in \[0, 1\); got .*pass 0\.0"):
        flashtri.attention(*tensors(device), dropout_p=dropout_p)


def used(*lengths, dtype=torch.int32):
    return torch.tensor(lengths, dtype=dtype)


# Keywords, then the exception and what its message must say. k and v have 24 keys, or 3 pages of 16.
BAD_LENGTHS = {
    "seqused_k is int64": ({"seqused_k": used(1, 2, dtype=torch.int64)}, ValueError, r"must be int32; got Long; cast"),
    "seqused_k has two dimensions": (
        {"seqused_k": used(1, 2)[:, None]},
        ValueError,
        r"must be \[batch\]; got .*\[2, 1\]",
    ),
    "seqused_k is of another batch": (
        {"seqused_k": used(1, 2, 3)},
        ValueError,
        r"each of the 2 sequences .*got sizes \[3\]",
    ),
    "block_table is of another batch": (
        {"block_table": torch.zeros(1, 1, dtype=torch.int32)},
        ValueError,
        r"block_table must have a row for each of the 2 sequences",
    ),
    "pages of 24 keys": (
        {"block_table": torch.zeros(2, 1, dtype=torch.int32)},
        ValueError,
        r"page_size that is a multiple of 16; got k \[2, 2, 24, 32\]",
    ),
    "seqused_k beside dropout": (
        {"seqused_k": used(1, 2), "dropout_p": 0.5},
        NotImplementedError,
        r"dropout_p together with seqused_k is not implemented",
    ),
    "seqused_k beside a bias": (
        {"seqused_k": used(1, 2), "relative_bias": torch.zeros(4, 39)},
        NotImplementedError,
        r"relative_bias together with seqused_k is not implemented",
    ),
    "seqused_k beside a mask": (
        {"seqused_k": used(1, 2), "attn_mask": torch.zeros(24)},
        NotImplementedError,
        r"attn_mask together with seqused_k is not implemented.*set the mask to False",
    ),
}


@pytest.mark.parametrize("case", BAD_LENGTHS)
def test_lengths(case, device):
    keywords, error, message = BAD_LENGTHS[case]
    with pytest.raises(error, match=message):
        flashtri.attention(
            *tensors(device),
            **{name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in keywords.items()},
        )


@pytest.mark.parametrize("name", ["seqused_k", "block_table"])
def test_lengths_have_no_gradient(name, device):
    q, k, v = tensors(device, k=(4, 2, 16, 32), v=(4, 2, 16, 32), q=(4, 4, 16, 32))
    lengths = {"seqused_k": used(3, 4, 5, 6), "block_table": torch.zeros(4, 1, dtype=torch.int32)}[name].to(device)
    with pytest.raises(
        NotImplementedError, match=f"{name} has no gradient; got an input that requires one; call under"
    ):
        flashtri.attention(q.requires_grad_(), k, v, **{name: lengths})


@pytest.mark.parametrize("name", ["k", "v", "attn_mask"])
def test_devices_differ(name, device):
    given = dict(zip("qkv", tensors(device), strict=True), attn_mask=torch.zeros(16, 24, device=device))
    given[name] = given[name].to("meta")
    with pytest.raises(RuntimeError, match=rf"same device: .*{name} (on|is on) meta|q is on .*{name} on meta"):
        flashtri.attention(**given)


def saved(device, mask=None):
    """grad_out, None, q, k, v, out, lse, row_stats, rng_state by name."""
    q, k, v = tensors(device)
    out, lse, row_stats, rng_state = fwd(q, k, v, mask)
    names = ("grad_out", "grad_lse", "q", "k", "v", "out", "lse", "row_stats", "rng_state", "attn_mask")
    return dict(zip(names, (out.clone(), None, q, k, v, out, lse, row_stats, rng_state, mask), strict=True))


@pytest.mark.parametrize("name", ["grad_out", "grad_lse", "out", "lse", "row_stats"])
@pytest.mark.parametrize("change", ["size", "rank", "dtype"])
def test_bwd_checks_what_the_forward_gave(name, change, device):
    given = saved(device, torch.zeros(16, 24, device=device))
    given["grad_lse"] = given["lse"]
    changes = {"size": lambda t: t[:, :1], "rank": lambda t: t[0], "dtype": lambda t: t.double()}
    given[name] = changes[change](given[name])
    with pytest.raises(ValueError, match=rf"{name} must .*; got .*; pass what"):
        bwd(**given)


def test_bwd_checks_the_forwards_arguments(device):
    with pytest.raises(ValueError, match="scale must be finite"):
        bwd(**saved(device), scale=-1.0)


def test_what_needs_a_gradient_is_checked_at_the_forward(device):
    q, k, v = (t.requires_grad_() for t in tensors(device))
    with pytest.raises(NotImplementedError, match="attn_mask must be bool"):
        flashtri.attention(q, k, v, attn_mask=torch.zeros(16, 24, device=device, dtype=torch.float64).requires_grad_())
    with pytest.raises(NotImplementedError, match="block_table has no gradient"):
        flashtri.attention(q, k, v, block_table=torch.zeros(2, 1, dtype=torch.int32, device=device))


def test_sparse_tensor(device):
    q, k, v = tensors(device)
    with pytest.raises(NotImplementedError, match="flashtri::fwd"):
        flashtri.attention(q.to_sparse(), k, v)
