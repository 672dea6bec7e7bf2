"""Run what the C++ planner plans in Triton's interpreter, on CPU tensors.

The plan is the one the op would launch: the same kernels, grids and argument values. Only the pointers differ, so this
checks the host side and the kernels together without a GPU.
"""

import math

import torch

import triton_src
from flashtri import _C

# Tile sizes and the mask's kind are compile-time in a kernel; the registry says what each cubin was compiled with.
MASK_KINDS = {"none": 0, "boolean": 1, "f16": 2, "bf16": 2, "f32": 2}
DTYPE_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.bool: "boolean"}
KERNELS = {kernel["name"]: kernel for kernel in _C.kernels()}


def _describe(tensor):
    return tuple(tensor.shape), tuple(tensor.stride())


def _constexprs(function, kernel):
    known = {
        "MASK": MASK_KINDS[kernel["mask"]],
        "FEATURES": int(kernel["features"]),
        "BLOCK_M": kernel["block_m"],
        "BLOCK_N": kernel["block_n"],
        "BLOCK_D": kernel["block_d"],
    }
    return {name: known[name] for name in function.arg_names if name not in kernel["params"]}


def _run(plan, tensors):
    """Each planned launch, in order. A pointer that is null on the device is some tensor here, and never read."""
    for launch in plan["launches"]:
        kernel = KERNELS[launch["kernel"]]
        function = getattr(triton_src, kernel["function"])
        arguments = {}
        for name in kernel["params"]:
            arguments[name] = tensors[name] if name in tensors else plan["args"][name]
        function[(launch["grid"],)](**arguments, **_constexprs(function, kernel))


def _forward(problem, tensors):
    plan = _C.plan(**problem)
    for name in ("partial_out", "partial_lse"):
        tensors[name] = torch.full((max(plan["scratch"][name], 1),), math.nan)
    _run(plan, tensors)


def _backward(problem, tensors, **needs):
    gradients = {name: _describe(tensors[name]) for name in ("dout", "dq", "dk", "dv")}
    plan = _C.plan(**problem, backward=True, **needs, **gradients)
    scratch = plan["scratch"]
    for name in ("delta", "dmask"):
        tensors[name] = torch.full((scratch[name],), math.nan)
    tensors["dbias"] = torch.full(scratch["dbias"], math.nan)
    _run(plan, tensors)
    return scratch


def _diagonal_sums(dbias, scratch, length):
    """The relative bias' gradient from what bwd_dbias wrote, as csrc/core/plan.h says."""
    sums, block = dbias.sum(0), scratch["dbias_block"]
    pad = torch.nn.functional.pad
    moved = pad(sums[:, 0], (block, 0)) + pad(sums[:, 1], (0, block))
    return moved[:, scratch["dbias_offset"] :][:, :length]


def _draw(dropout_p):
    """Seed and offset, as the op draws them from torch's generator."""
    q = torch.empty(1, 1, 1, 8, dtype=torch.float16)
    return torch.ops.flashtri.fwd(q, q, q, None, dropout_p)[3]


class Attention(torch.autograd.Function):
    """(q, k, v, mask, sinks, relative_bias, arch, options, lengths) -> (out, lse), which planned kernels write."""

    @staticmethod
    def forward(ctx, q, k, v, mask, sinks, relative_bias, arch, options, lengths):
        rows = q.shape[:3]
        ctx.dtypes = [None if t is None else t.dtype for t in (mask, sinks, relative_bias)]
        tensors = {
            "q": q,
            "k": k,
            "v": v,
            "mask": torch.zeros(1) if mask is None else mask,
            "sinks": torch.zeros(1) if sinks is None else sinks.float(),
            "rng_state": _draw(options.get("dropout_p", 0.0)),
            "out": torch.full((*rows, v.shape[-1]), math.nan, dtype=q.dtype),
            "lse": torch.full(rows, math.nan),
            "row_stats": torch.full((2, *rows), math.nan),
            **dict.fromkeys(("seqused_k", "cu_seqlens_q", "cu_seqlens_k"), torch.zeros(1, dtype=torch.int32)),
            **lengths,
        }
        problem = {name: _describe(tensors[name]) for name in ("q", "k", "v", "out")}
        # Gluon has no interpreter: what is replayed is the general kernel, which serves where TMA cannot.
        problem |= {"dtype": DTYPE_NAMES[q.dtype], "arch": arch, "has_tensor_maps": False, **options}
        problem["has_sinks"] = sinks is not None
        problem["has_seqused_k"] = "seqused_k" in lengths
        if "block_table" in lengths:
            problem["max_pages"] = problem["table_stride_b"] = lengths["block_table"].shape[1]
        if mask is not None:
            # As the op does before it plans.
            has_features = "softcap" in options or "dropout_p" in options
            if has_features or {q.dtype, mask.dtype} == {torch.float16, torch.bfloat16}:
                mask = tensors["mask"] = mask.float().log() if mask.dtype == torch.bool else mask.float()
            # Fewer dimensions than four are the last ones.
            problem |= {"mask": _describe(mask[(None,) * (4 - mask.dim())]), "mask_dtype": DTYPE_NAMES[mask.dtype]}
        if relative_bias is not None:
            bias = relative_bias.float().contiguous()
            problem["relative_bias"] = _describe(bias[None, :, None])
            # The planner's pointer: the bias of row 0 and key 0, from which later rows go back.
            tensors["mask"] = bias.flatten()[q.shape[2] - 1 :]
        _forward(problem, tensors)
        ctx.problem, ctx.tensors, ctx.mask, ctx.bias = problem, tensors, mask, relative_bias
        ctx.set_materialize_grads(False)
        return tensors["out"], tensors["lse"]

    @staticmethod
    def backward(ctx, dout, dlse):
        tensors = ctx.tensors
        tensors |= {"dout": dout, "dlse": torch.zeros(1) if dlse is None else dlse}
        tensors |= {f"d{name}": torch.full(tensors[name].shape, math.nan, dtype=dout.dtype) for name in "qkv"}
        needs_dmask, needs_dsinks, needs_dbias = ctx.needs_input_grad[3:6]
        scratch = _backward(
            ctx.problem, tensors, needs_dmask=needs_dmask, needs_drelative_bias=needs_dbias, has_dlse=dlse is not None
        )
        dmask = dsinks = dbias = None
        if needs_dmask:
            dmask = tensors["dmask"].view(scratch["dmask_splits"], *ctx.mask.shape).sum(0).to(ctx.dtypes[0])
        if needs_dsinks:
            share = (tensors["sinks"][:, None] - tensors["lse"]).exp()
            dsinks = -(share * tensors["delta"].view(share.shape)).sum((0, 2)).to(ctx.dtypes[1])
        if needs_dbias:
            dbias = _diagonal_sums(tensors["dbias"], scratch, ctx.bias.shape[1]).to(ctx.dtypes[2])
        return tensors["dq"], tensors["dk"], tensors["dv"], dmask, dsinks, dbias, None, None, None


def attention_function(arch):
    """A function for reference.run that launches what the planner plans for `arch`."""

    def attention(q, k, v, mask, is_causal, scale, bottom_right, sinks=None, relative_bias=None, **options):
        names = ("seqused_k", "block_table", "cu_seqlens_q", "cu_seqlens_k")
        lengths = {name: options.pop(name) for name in names if name in options}
        if "cu_seqlens_q" in lengths:
            # As the op shows packed tensors to the planner: one batch.
            options["sequences"] = lengths["cu_seqlens_q"].numel() - 1
            q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        options |= {"is_causal": is_causal, "bottom_right": bottom_right}
        if scale is not None:
            options["scale"] = scale
        out, lse = Attention.apply(q, k, v, mask, sinks, relative_bias, arch, options, lengths)
        return (out[0].transpose(0, 1), lse[0]) if "cu_seqlens_q" in lengths else (out, lse)

    return attention
