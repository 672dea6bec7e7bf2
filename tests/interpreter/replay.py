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
        "BLOCK_M": kernel["block_m"],
        "BLOCK_N": kernel["block_n"],
        "BLOCK_D": kernel["block_d"],
    }
    return {name: known[name] for name in function.arg_names if name not in kernel["params"]}


def _run(plan, tensors):
    for launch in plan["launches"]:
        kernel = KERNELS[launch["kernel"]]
        function = getattr(triton_src, kernel["function"])
        arguments = {}
        for name in kernel["params"]:
            arguments[name] = tensors[name] if name in tensors else plan["args"][name]
        function[(launch["grid"],)](**arguments, **_constexprs(function, kernel))


def _forward(problem, tensors):
    _run(_C.plan(**problem), tensors)


def _backward(problem, tensors, needs_dmask, has_dlse):
    gradients = {name: _describe(tensors[name]) for name in ("dout", "dq", "dk", "dv")}
    plan = _C.plan(**problem, backward=True, needs_dmask=needs_dmask, has_dlse=has_dlse, **gradients)
    tensors["delta"] = torch.full((plan["scratch"]["delta"],), math.nan)
    tensors["dmask"] = torch.full((plan["scratch"]["dmask"],), math.nan)
    _run(plan, tensors)
    return plan["scratch"]["dmask_splits"]


class Attention(torch.autograd.Function):
    """(q, k, v, mask, arch, options) -> (out, lse), every value of which a planned kernel has written over NaN."""

    @staticmethod
    def forward(ctx, q, k, v, mask, arch, options):
        rows, ctx.mask_dtype = q.shape[:3], None if mask is None else mask.dtype
        tensors = {
            "q": q,
            "k": k,
            "v": v,
            "mask": torch.zeros(1) if mask is None else mask,
            "out": torch.full((*rows, v.shape[-1]), math.nan, dtype=q.dtype),
            "lse": torch.full(rows, math.nan),
            "row_stats": torch.full((2, *rows), math.nan),
        }
        problem = {name: _describe(tensors[name]) for name in ("q", "k", "v", "out")}
        # Gluon has no interpreter: what is replayed is the general kernel, which serves where TMA cannot.
        problem |= {"dtype": DTYPE_NAMES[q.dtype], "arch": arch, "has_tensor_maps": False, **options}
        if mask is not None:
            if {q.dtype, mask.dtype} == {torch.float16, torch.bfloat16}:
                mask = tensors["mask"] = mask.float()  # as the op does before it plans
            # Fewer dimensions than four are the last ones.
            problem |= {"mask": _describe(mask[(None,) * (4 - mask.dim())]), "mask_dtype": DTYPE_NAMES[mask.dtype]}
        _forward(problem, tensors)
        ctx.problem, ctx.tensors, ctx.mask = problem, tensors, mask
        ctx.set_materialize_grads(False)
        return tensors["out"], tensors["lse"]

    @staticmethod
    def backward(ctx, dout, dlse):
        tensors, mask = ctx.tensors, ctx.mask
        tensors |= {"dout": dout, "dlse": torch.zeros(1) if dlse is None else dlse}
        tensors |= {f"d{name}": torch.full(tensors[name].shape, math.nan, dtype=dout.dtype) for name in "qkv"}
        needs_dmask = ctx.needs_input_grad[3]
        splits = _backward(ctx.problem, tensors, needs_dmask, dlse is not None)
        dmask = tensors["dmask"].view(splits, *mask.shape).sum(0).to(ctx.mask_dtype) if needs_dmask else None
        return tensors["dq"], tensors["dk"], tensors["dv"], dmask, None, None


def attention_function(arch):
    """A function for reference.run that launches what the planner plans for `arch`."""

    def attention(q, k, v, mask, is_causal, scale, bottom_right):
        options = {"is_causal": is_causal, "bottom_right": bottom_right}
        if scale is not None:
            options["scale"] = scale
        return Attention.apply(q, k, v, mask, arch, options)

    return attention
