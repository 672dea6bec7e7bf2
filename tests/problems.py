"""The one table of problems: CPU tests, GPU tests and benchmarks take theirs from here.

    for problem in PROBLEMS: inputs = problem.inputs("cuda"); attention(inputs.q, inputs.k, inputs.v, ...)

All values are zero-mean, and memory around a tensor (layouts "sliced" and "misaligned") is NaN: reading a padded key,
or past a row, shows.
"""

import dataclasses
import itertools
import math

import torch
from torch import Tensor

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "bool": torch.bool}


@dataclasses.dataclass(frozen=True)
class Inputs:
    q: Tensor  # [B, Hq, Sq, D]
    k: Tensor  # [B, Hk, Sk, D]
    v: Tensor  # [B, Hk, Sk, Dv]
    mask: Tensor | None
    is_causal: bool
    scale: float | None
    bottom_right: bool
    dout: Tensor | None  # [B, Hq, Sq, Dv], dtype of q; None: the forward alone
    dlse: Tensor | None  # [B, Hq, Sq], fp32
    # What the op takes by keyword, by its names there, where it is not the default.
    options: dict = dataclasses.field(default_factory=dict)
    # Where sequences have lengths of their own: each as a problem without those, for the reference.
    parts: tuple["Inputs", ...] = ()


@dataclasses.dataclass(frozen=True)
class Problem:
    """One call of the op, as data."""

    batch: int = 2
    heads_q: int = 4
    heads_k: int = 4
    seqlen_q: int = 65
    seqlen_k: int = 130
    head_dim: int = 32
    head_dim_v: int | None = None  # None: head_dim
    dtype: str = "f16"
    mask: str | None = None  # a key of DTYPES
    # Axes the mask has, of "bhqk"; "1" is an axis of size 1. Fewer than four letters: a mask of lower rank.
    mask_axes: str = "bhqk"
    # random | holes (a fifth is -inf or False) | dead (holes, and a third of the rows are all -inf or False)
    # | lowest (a third of the rows are all finfo.min) | padding (each sequence's last keys are finfo.min or False)
    # | one_dead, one_lowest (one row) | left, left_lowest (the first `masked_keys` keys)
    # | distance (-|i - j|, a slope for each head)
    mask_values: str = "random"
    masked_keys: int = 0
    causal: str | None = None  # top_left | bottom_right | bottom_right_window: that alignment without causality
    scale: float | None = None
    # dense | bshd | transposed (last dimension not contiguous) | expanded | sliced | misaligned | shifted (x[..., 1:])
    layout: str = "dense"
    has_dlse: bool = True
    window: tuple[int | None, int | None] = (None, None)  # left, right
    sinks: str | None = None  # a key of DTYPES
    bias: str | None = None  # a key of DTYPES: a relative bias
    bias_heads: int | None = None  # None: heads_q
    softcap: float = 0.0
    dropout: float = 0.0
    # How many keys of each sequence exist (seqused_k), the forward alone; what lies past them is NaN.
    used: tuple[int, ...] | None = None
    page_size: int | None = None  # keys a page: k and v in pages, in random order
    # (rows, keys) of each sequence, packed one after the other; the other lengths and the batch are not used.
    packed: tuple[tuple[int, int], ...] | None = None

    def __str__(self) -> str:
        def pair(letter, a, b):
            return f"{letter}{a}" if a == b else f"{letter}{a}x{b}"

        parts = [
            f"B{self.batch}",
            pair("H", self.heads_q, self.heads_k),
            pair("S", self.seqlen_q, self.seqlen_k),
            pair("D", self.head_dim, self.head_dim_v or self.head_dim),
            self.dtype,
        ]
        if self.causal:
            names = {"top_left": "causal", "bottom_right": "causal_bottom_right", "bottom_right_window": "bottom_right"}
            parts.append(names[self.causal])
        if self.mask:
            parts.append(f"mask_{self.mask}_{self.mask_axes or 'scalar'}")
            values = self.mask_values + (str(self.masked_keys) if self.masked_keys else "")
            parts += [values] if values != "random" else []
        parts += [self.layout] if self.layout != "dense" else []
        parts += [f"scale{self.scale}"] if self.scale is not None else []
        parts += [] if self.has_dlse else ["no_dlse"]
        if self.window != (None, None):
            parts.append("window{}_{}".format(*("all" if side is None else side for side in self.window)))
        parts += [f"sinks_{self.sinks}"] if self.sinks else []
        parts += [f"bias_{self.bias}" + (f"_H{self.bias_heads}" if self.bias_heads else "")] if self.bias else []
        parts += [f"softcap{self.softcap:g}"] if self.softcap else []
        parts += [f"dropout{self.dropout:g}"] if self.dropout else []
        parts += [f"used{'_'.join(map(str, self.used))}"] if self.used else []
        parts += [f"pages{self.page_size}"] if self.page_size else []
        parts += ["packed_" + "_".join(f"{q}x{k}" for q, k in self.packed)] if self.packed else []
        return "-".join(parts)

    def inputs(self, device: str | torch.device = "cpu") -> Inputs:
        """The same values for every run and device."""
        if self.packed:
            return self._packed(device)
        draw = torch.Generator().manual_seed(hash_of(str(self)))
        dtype, dim_v = DTYPES[self.dtype], self.head_dim_v or self.head_dim

        def tensor(heads, rows, columns, expanded_dim):
            size = [self.batch, heads, rows, columns]
            if self.layout == "expanded" and size[expanded_dim] > 0:
                small = [1 if dim == expanded_dim else n for dim, n in enumerate(size)]
                return torch.randn(small, generator=draw).to(device, dtype).expand(size)
            return in_layout(torch.randn(size, generator=draw).to(device, dtype), self.layout)

        inputs = Inputs(
            q=tensor(self.heads_q, self.seqlen_q, self.head_dim, 0),
            k=tensor(self.heads_k, self.seqlen_k, self.head_dim, 1),
            v=tensor(self.heads_k, self.seqlen_k, dim_v, 1),
            mask=self._mask(draw, device),
            is_causal=self.causal in ("top_left", "bottom_right"),
            scale=self.scale,
            bottom_right=self.bottom_right,
            dout=tensor(self.heads_q, self.seqlen_q, dim_v, 2),
            dlse=self._dlse(draw, device),
            options=self._options(draw, device),
        )
        return self._with_lengths(inputs, draw) if self.used or self.page_size else inputs

    def _with_lengths(self, dense: Inputs, draw: torch.Generator) -> Inputs:
        used = self.used or (self.seqlen_k,) * self.batch
        k, v, options, parts = dense.k, dense.v, dict(dense.options), []
        for i, keys in enumerate(used):
            part = {"q": dense.q[i : i + 1], "k": k[i : i + 1, :, :keys].clone(), "v": v[i : i + 1, :, :keys].clone()}
            parts.append(dataclasses.replace(dense, **part, dout=None, dlse=None))
            k[i, :, keys:], v[i, :, keys:] = math.nan, math.nan
        if self.used:
            options["seqused_k"] = torch.tensor(used, dtype=torch.int32, device=k.device)
        if self.page_size:
            # Pages that no sequence needs are NaN, as is one more; what a table does not need names that one.
            pages = -(-self.seqlen_k // self.page_size)
            order = torch.randperm(self.batch * pages + 1, generator=draw)
            tables = order[:-1].view(self.batch, pages).clone()
            k, v = (self._paged(t, order) for t in (k, v))
            for i, keys in enumerate(used):
                tables[i, -(-keys // self.page_size) :] = order[-1]
            options["block_table"] = tables.to(k.device, torch.int32)
        return dataclasses.replace(dense, k=k, v=v, dout=None, dlse=None, options=options, parts=tuple(parts))

    def _packed(self, device) -> Inputs:
        totals = [sum(lengths) for lengths in zip(*self.packed, strict=True)]
        whole = dataclasses.replace(self, packed=None, batch=1, seqlen_q=totals[0], seqlen_k=totals[1]).inputs(device)
        starts = [[0, *itertools.accumulate(lengths)] for lengths in zip(*self.packed, strict=True)]
        parts = []
        for i, (rows, keys) in enumerate(self.packed):
            of_rows, of_keys = (slice(start[i], start[i] + n) for start, n in zip(starts, (rows, keys), strict=True))
            part = {"q": whole.q[:, :, of_rows], "k": whole.k[:, :, of_keys], "v": whole.v[:, :, of_keys]}
            dlse = None if whole.dlse is None else whole.dlse[:, :, of_rows]
            parts.append(dataclasses.replace(whole, **part, dout=whole.dout[:, :, of_rows], dlse=dlse))
        options = dict(whole.options)
        for name, start, lengths in zip("qk", starts, zip(*self.packed, strict=True), strict=True):
            options[f"cu_seqlens_{name}"] = torch.tensor(start, dtype=torch.int32, device=device)
            options[f"max_seqlen_{name}"] = max(lengths)
        flat = {name: getattr(whole, name)[0].transpose(0, 1) for name in ("q", "k", "v", "dout")}
        dlse = None if whole.dlse is None else whole.dlse[0]
        return dataclasses.replace(whole, **flat, dlse=dlse, options=options, parts=tuple(parts))

    def _paged(self, dense: Tensor, order: Tensor) -> Tensor:
        """[num_blocks, Hk, page_size, *], page order[i] being the i-th of the dense tensor, the last one NaN."""
        batch, heads, keys, dim = dense.shape
        pages = -(-keys // self.page_size)
        whole = dense.new_full((batch, heads, pages * self.page_size, dim), math.nan)
        whole[:, :, :keys] = dense
        whole = whole.unflatten(2, (pages, self.page_size)).transpose(1, 2).flatten(0, 1)
        paged = whole.new_full((order.numel(), *whole.shape[1:]), math.nan)
        paged[order[:-1].to(dense.device)] = whole
        return in_layout(paged, self.layout)

    @property
    def bottom_right(self) -> bool:
        return self.causal is not None and self.causal.startswith("bottom_right")

    def _options(self, draw: torch.Generator, device) -> dict:
        given = {}
        for name, side in zip(("window_left", "window_right"), self.window, strict=True):
            given |= {name: side} if side is not None else {}
        if self.sinks:
            # Some sinks lie far above and below the scores.
            sinks = 3 * torch.randn(self.heads_q, generator=draw)
            given["sinks"] = sinks.to(device, DTYPES[self.sinks])
        if self.bias:
            size = (self.bias_heads or self.heads_q, max(self.seqlen_q + self.seqlen_k - 1, 0))
            given["relative_bias"] = in_layout(
                torch.randn(size, generator=draw).to(device, DTYPES[self.bias]), self.layout
            )
        given |= {"softcap": self.softcap} if self.softcap else {}
        given |= {"dropout_p": self.dropout} if self.dropout else {}
        return given

    def _dlse(self, draw: torch.Generator, device) -> Tensor | None:
        size = (self.batch, self.heads_q, self.seqlen_q)
        return torch.randn(size, generator=draw).to(device) if self.has_dlse else None

    def _mask(self, draw: torch.Generator, device) -> Tensor | None:
        if self.mask is None:
            return None
        sizes = {"b": self.batch, "h": self.heads_q, "q": self.seqlen_q, "k": self.seqlen_k, "1": 1}
        size = [sizes[axis] for axis in self.mask_axes]
        dtype = DTYPES[self.mask]
        is_bool = dtype == torch.bool
        lowest = 0.0 if is_bool else torch.finfo(dtype).min
        nothing = 0.0 if is_bool else -math.inf
        values = torch.ones(size) if is_bool else torch.randn(size, generator=draw)
        if self.mask_values in ("holes", "dead") or is_bool:
            values = values.masked_fill(torch.rand(size, generator=draw) < 0.2, nothing)
        rows = values.flatten(0, -2) if len(size) > 1 else values.view(1, -1)
        if self.mask_values == "dead":
            rows[1::3] = nothing
        elif self.mask_values == "lowest":
            rows[1::3] = lowest
        elif self.mask_values == "padding":
            for i, row in enumerate(rows):
                row[-(1 + 7 * (i % 3)) :] = lowest
        elif self.mask_values in ("one_dead", "one_lowest"):
            rows[len(rows) // 2] = nothing if self.mask_values == "one_dead" else lowest
        elif self.mask_values in ("left", "left_lowest"):
            rows[:, : self.masked_keys] = nothing if self.mask_values == "left" else lowest
        elif self.mask_values == "distance":
            distance = torch.arange(self.seqlen_q)[:, None] - torch.arange(self.seqlen_k)[None, :]
            slopes = 0.5 ** torch.arange(1, size[-3] + 1)
            values = -distance.abs() * slopes[:, None, None].expand(size[:-2] + [1, 1])
        values = values.to(dtype).to(device)
        if self.layout == "expanded" and size and size[0] > 1:
            return values[:1].expand(size)
        return in_layout(values, self.layout if size else "dense")


def hash_of(text: str) -> int:
    """Python's own hash of a string differs between processes."""
    return sum((i + 1) * byte for i, byte in enumerate(text.encode()))


def in_layout(dense: Tensor, layout: str) -> Tensor:
    """The same values in another layout of memory."""
    if layout == "bshd" and dense.dim() == 4:
        return dense.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "transposed" and dense.dim() >= 2:
        return dense.transpose(-2, -1).contiguous().transpose(-2, -1)
    if layout in ("sliced", "misaligned"):
        # Eight elements of padding keep rows at multiples of 16 bytes, three do not.
        pad = 8 if layout == "sliced" else 3
        fill = True if dense.dtype == torch.bool else math.nan
        around = dense.new_full([n + 2 * pad for n in dense.shape], fill)
        inner = around[tuple(slice(pad, pad + n) for n in dense.shape)]
        return inner.copy_(dense)
    if layout == "shifted" and dense.dim() >= 1:
        fill = True if dense.dtype == torch.bool else math.nan
        around = dense.new_full([*dense.shape[:-1], dense.shape[-1] + 1], fill)
        return around[..., 1:].copy_(dense)
    return dense


def _dimensions():
    for i, dim in enumerate((8, 16, 24, 40, 56, 64, 72, 96, 128, 136, 192, 256)):
        yield Problem(head_dim=dim, dtype=("f16", "bf16")[i % 2], causal=(None, "bottom_right", "top_left")[i % 3])
    for dim, dim_v in ((64, 128), (128, 64), (192, 128), (40, 8), (8, 256)):
        yield Problem(head_dim=dim, head_dim_v=dim_v, dtype="bf16", mask="f32", mask_axes="1hqk")


def _lengths():
    lengths = ((1, 1), (1, 257), (257, 2), (16, 16), (63, 65), (128, 128), (129, 64), (200, 300), (300, 200), (65, 257))
    for i, (seqlen_q, seqlen_k) in enumerate(lengths):
        for causal in (None, "top_left", "bottom_right"):
            dtype = ("f16", "bf16")[i % 2]
            yield Problem(
                batch=1, heads_q=2, heads_k=2, seqlen_q=seqlen_q, seqlen_k=seqlen_k, dtype=dtype, causal=causal
            )


def _masks():
    axes = ("bhqk", "b11k", "1hqk", "11qk", "b1qk", "bhq1", "11q1", "1h1k", "b111", "1111", "hqk", "qk", "k", "")
    masks = itertools.cycle(("f32", "bool", "f16", "bf16"))
    for i, (mask_axes, mask) in enumerate(zip(axes, masks, strict=False)):
        # A boolean mask without keys of its own is all or nothing, so it goes with values that say which.
        values = "dead" if mask == "bool" and mask_axes[-1:] != "k" else "random"
        dtype = ("f16", "bf16")[i // 2 % 2]
        yield Problem(dtype=dtype, mask=mask, mask_axes=mask_axes, mask_values=values, causal=(None, "top_left")[i % 2])
    for mask, dtype in itertools.product(("bool", "f16", "bf16", "f32"), ("f16", "bf16")):
        yield Problem(seqlen_q=130, seqlen_k=65, dtype=dtype, mask=mask, mask_axes="b1qk", mask_values="dead")
        yield Problem(dtype=dtype, mask=mask, mask_values="dead", causal="bottom_right", has_dlse=False)
        yield Problem(seqlen_k=257, dtype=dtype, mask=mask, mask_axes="b11k", mask_values="padding", causal="top_left")
    for mask, dtype in itertools.product(("f16", "bf16", "f32"), ("f16", "bf16")):
        yield Problem(dtype=dtype, mask=mask, mask_axes="1hqk", mask_values="lowest")
        yield Problem(seqlen_q=129, dtype=dtype, mask=mask, mask_values="lowest", causal="top_left")
        yield Problem(batch=3, dtype=dtype, mask=mask, mask_axes="b11k", mask_values="lowest")
        yield Problem(dtype=dtype, mask=mask, mask_values="holes", causal="top_left", head_dim=72)


def _groups():
    for i, (heads_q, heads_k) in enumerate(((4, 1), (6, 2), (8, 4), (5, 1))):
        dtype = ("f16", "bf16")[i % 2]
        yield Problem(heads_q=heads_q, heads_k=heads_k, dtype=dtype, causal=("top_left", None)[i % 2])
        yield Problem(heads_q=heads_q, heads_k=heads_k, dtype=dtype, mask="f32", mask_axes="1hqk", head_dim_v=64)
        yield Problem(heads_q=heads_q, heads_k=heads_k, dtype=dtype, mask="bool", mask_axes="bhqk", mask_values="dead")


def _layouts():
    for layout in ("bshd", "transposed", "expanded", "sliced", "misaligned"):
        yield Problem(layout=layout, dtype="bf16", seqlen_q=66, seqlen_k=131, head_dim=40)
        yield Problem(layout=layout, heads_k=2, causal="bottom_right", mask="f32", mask_axes="b1qk", mask_values="dead")
        yield Problem(layout=layout, seqlen_q=257, seqlen_k=65, causal="top_left", mask="f16", mask_axes="bhqk")
        yield Problem(layout=layout, dtype="bf16", mask="bool", mask_axes="1hqk", has_dlse=False)


def _scales():
    for scale in (0.0, 0.3, 2.0):
        yield Problem(scale=scale, causal="top_left", mask="bf16", mask_axes="b1qk", dtype="bf16")


def _empty():
    for sizes in ({"batch": 0}, {"seqlen_q": 0}, {"seqlen_k": 0}, {"heads_q": 0, "heads_k": 0}):
        yield Problem(**sizes)
        yield Problem(**sizes, mask="f32", causal="bottom_right")


def _windows():
    lengths = itertools.cycle(((65, 130), (130, 65), (129, 129), (40, 300), (300, 40)))
    sides = ((10, None), (None, 3), (0, 0), (20, 7), (64, 64), (1 << 40, 1 << 40), (100, 1))
    for i, (window, causal) in enumerate(
        itertools.product(sides, (None, "top_left", "bottom_right", "bottom_right_window"))
    ):
        seqlen_q, seqlen_k = next(lengths)
        mask = (None, None, "bool", "f32")[i % 4]
        yield Problem(
            heads_k=2, seqlen_q=seqlen_q, seqlen_k=seqlen_k, dtype=("f16", "bf16")[i % 2], causal=causal, window=window,
            mask=mask, mask_axes="b1qk" if mask == "f32" else "b11k", mask_values="holes" if mask else "random",
        )  # fmt: skip


# A sink has one gradient a head, and whether the norm of few numbers is within the bound is a matter of luck.
EIGHT_HEADS = {"heads_q": 8, "heads_k": 8}


def _sinks():
    for i, sinks in enumerate(("f32", "f16", "f32", "bf16")):
        more = {**EIGHT_HEADS, "dtype": ("f16", "f16", "bf16", "bf16")[i], "sinks": sinks}
        yield Problem(**more | {"heads_k": 2}, causal=(None, "bottom_right")[i % 2])
        yield Problem(**more, mask="f32", mask_axes="b1qk", mask_values="dead", has_dlse=i % 2 == 0)
        yield Problem(**more, mask="f32", mask_axes="1hq1")
        yield Problem(**more, mask="bool", mask_axes="b11k", mask_values="dead", window=(16, 0))
        yield Problem(**more, mask="f32", mask_axes="1hqk", mask_values="lowest")
    yield Problem(**EIGHT_HEADS, seqlen_q=300, seqlen_k=40, causal="bottom_right", sinks="f32")


def _relative_biases():
    for i, (bias, heads) in enumerate(itertools.product(("f32", "f16", "bf16"), (None, 1))):
        dtype = ("f16", "bf16")[i % 2]
        yield Problem(heads_k=2, dtype=dtype, bias=bias, bias_heads=heads)
        yield Problem(
            seqlen_q=130, seqlen_k=65, dtype=dtype, bias=bias, bias_heads=heads, causal="top_left", sinks="f32"
        )
        yield Problem(dtype=dtype, bias=bias, bias_heads=heads, causal="bottom_right", window=(30, 0), head_dim=72)
        yield Problem(heads_q=8, heads_k=2, dtype=dtype, bias=bias, bias_heads=heads, sinks="f32")
    for seqlen_q, seqlen_k in ((1, 1), (1, 257), (257, 1), (64, 64), (63, 65), (200, 300), (300, 200)):
        yield Problem(batch=3, heads_q=2, heads_k=2, seqlen_q=seqlen_q, seqlen_k=seqlen_k, bias="f32", head_dim=200)
    yield Problem(bias="f32", layout="misaligned")
    yield Problem(bias="f16", layout="transposed", dtype="bf16")


def _softcaps_and_dropout():
    for i, more in enumerate(({"softcap": 5.0}, {"dropout": 0.3}, {"softcap": 2.0, "dropout": 0.1})):
        dtype = ("f16", "bf16")[i % 2]
        yield Problem(heads_k=2, dtype=dtype, **more)
        yield Problem(dtype=dtype, causal="bottom_right", head_dim=96, **more)
        yield Problem(dtype=dtype, mask="f32", mask_axes="1hqk", mask_values="dead", causal="top_left", **more)
        masked = {"mask": "bool", "mask_axes": "b11k", "mask_values": "dead"}
        yield Problem(**EIGHT_HEADS, dtype=dtype, **masked, sinks="f32", **more)
        yield Problem(dtype=dtype, mask=dtype, mask_axes="b1qk", mask_values="lowest", head_dim=128, **more)
        yield Problem(seqlen_q=130, dtype=dtype, bias="f32", head_dim=200, **more)
        yield Problem(heads_q=8, heads_k=1, dtype=dtype, window=(40, 5), sinks=dtype, head_dim_v=64, **more)
    for sizes in ({"seqlen_k": 0}, {"batch": 0}):
        yield Problem(**sizes, sinks="f32", dropout=0.5, mask="f32")
        yield Problem(**sizes, sinks="f16", bias="f32", softcap=3.0)


def _decoding():
    """Few queries over many keys, alone and with what the op composes it with."""
    for i, (seqlen_q, group) in enumerate(((1, 1), (1, 4), (1, 16), (3, 5), (16, 4), (17, 4), (40, 8), (64, 1))):
        dtype, causal = ("f16", "bf16")[i % 2], (None, "bottom_right", "top_left")[i % 3]
        sizes = {"heads_q": 2 * group, "heads_k": 2, "seqlen_q": seqlen_q, "head_dim": (64, 128, 40)[i % 3]}
        yield Problem(**sizes, seqlen_k=700, dtype=dtype, causal=causal, layout=("dense", "bshd", "sliced")[i % 3])
    yield Problem(heads_k=1, seqlen_q=2, seqlen_k=900, causal="bottom_right", window=(300, None), sinks="f32")
    yield Problem(batch=1, heads_q=4, heads_k=1, seqlen_q=1, seqlen_k=5000, dtype="bf16", head_dim=256, head_dim_v=72)


def _lengths_of_keys():
    cases = itertools.product((None, 16, 48, 256), (None, "top_left", "bottom_right"), (1, 5, 70))
    for i, (page_size, causal, seqlen_q) in enumerate(cases):
        yield Problem(
            batch=4, heads_k=(4, 1)[i % 2], seqlen_q=seqlen_q, seqlen_k=300, dtype=("f16", "bf16")[i % 2],
            head_dim=(64, 128, 40, 136)[i % 4], head_dim_v=(None, 72)[i % 2], causal=causal, has_dlse=False,
            used=(300, 0, 1, 257), page_size=page_size, layout=("dense", "bshd", "sliced")[i % 3],
        )  # fmt: skip
    yield Problem(seqlen_q=1, seqlen_k=192, has_dlse=False, page_size=64)
    for page_size, causal in itertools.product((None, 32), ("bottom_right", "bottom_right_window", "top_left")):
        yield Problem(
            batch=4, heads_k=2, seqlen_q=3, seqlen_k=300, dtype="bf16", causal=causal, has_dlse=False, sinks="f32",
            window=(70, 1), used=(300, 2, 0, 150), page_size=page_size,
        )  # fmt: skip


def _reported():
    """Masks with which other implementations have failed their users."""
    for i, values in enumerate(("one_dead", "one_lowest")):
        yield Problem(heads_q=3, heads_k=3, seqlen_q=65, seqlen_k=65, head_dim=64, mask="f32", mask_values=values)
        dtype = ("f16", "bf16")[i]
        for masked_keys in (1, 127, 128, 129, 256):
            yield Problem(
                heads_q=2, heads_k=2, seqlen_q=70, seqlen_k=441, head_dim=64, dtype=dtype, mask=("bool", "f32")[i],
                mask_axes="b11k", mask_values=("left", "left_lowest")[i], masked_keys=masked_keys,
            )  # fmt: skip
    for axes in ("b1qk", "1hqk", "bh1k", "111k"):
        yield Problem(seqlen_q=7, seqlen_k=7, head_dim=64, mask="f16", mask_axes=axes, mask_values="holes")
    for i, seqlen in enumerate((43, 361, 510, 511, 513)):
        dtype = ("f16", "bf16")[i % 2]
        for axes in ("11qk", "b11k"):
            yield Problem(
                batch=2, heads_q=2, heads_k=2, seqlen_q=seqlen, seqlen_k=seqlen, head_dim=64, dtype=dtype, mask=dtype,
                mask_axes=axes, mask_values="holes", layout=("dense", "shifted")[i % 2],
            )  # fmt: skip
    yield Problem(
        batch=1, heads_q=2, heads_k=2, seqlen_q=1025, seqlen_k=1025, head_dim=64, dtype="bf16", causal="top_left",
        mask="f32", mask_axes="1hqk", mask_values="distance",
    )  # fmt: skip


def _packed():
    lengths = (
        ((65, 65), (1, 1), (130, 130)),
        ((40, 300), (0, 20), (70, 0), (1, 130), (200, 31)),
        ((0, 0), (33, 64), (0, 0)),
        ((128, 128), (64, 64), (256, 256), (3, 3)),
    )
    causality = (None, "top_left", "bottom_right", "bottom_right_window")
    for i, (packed, causal) in enumerate(itertools.product(lengths, causality)):
        yield Problem(
            packed=packed, causal=causal, heads_k=(4, 2, 1)[i % 3], head_dim=(40, 64, 128, 200)[(i + i // 4) % 4],
            head_dim_v=(None, 72)[i % 2], dtype=("f16", "bf16")[i % 2], has_dlse=i % 3 != 0,
            layout=("bshd", "dense", "sliced")[i % 3], sinks="f32" if i % 5 == 4 else None,
            window=(50, 2) if causal == "bottom_right_window" else (None, None),
        )  # fmt: skip


PROBLEMS = list(
    dict.fromkeys(
        [
            *_dimensions(),
            *_lengths(),
            *_masks(),
            *_groups(),
            *_layouts(),
            *_scales(),
            *_empty(),
            *_windows(),
            *_sinks(),
            *_relative_biases(),
            *_softcaps_and_dropout(),
            *_decoding(),
            *_reported(),
            *_packed(),
        ]
    )
)
# The forward alone: neither has a gradient.
FORWARD_PROBLEMS = list(_lengths_of_keys())
