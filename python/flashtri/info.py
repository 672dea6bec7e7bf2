"""What is compiled in, what this machine has, and whether they fit; printed by `python -m flashtri info`."""

import torch

from flashtri import _C, _load
from flashtri._version import __version__


def info() -> str:
    """The report as text. Never raises for want of a GPU: the op then runs its CPU implementation."""
    kernels = _C.kernels()
    lines = [f"flashtri {__version__} in {_load.PACKAGE}", *_compiled_in(kernels), "", "this machine"]
    lines.append(_row("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}"))
    count = _C.device_count()
    lines += [_row(f"device {index}", _device(kernels, index)) for index in range(count)]
    if count == 0:
        lines.append(_row("device", "no CUDA device: tensors on the CPU run the op's C++ implementation"))
    return "\n".join(lines)


def unserved(kernels: list[dict], device: dict) -> dict[str, str]:
    """What is compiled in for some architecture but that the planner refuses on this device, with its reason.

    device is as `_C.device` gives it: arch, sm_count, shared_memory. Keys read "bf16, mask f32, head_dim 128".
    """
    # A mask of keys is no dtype of its own: mask_keys makes it from each of the others.
    with_scores = [kernel for kernel in kernels if kernel["block_n"] and kernel["mask"] != "keys"]
    combinations = {(kernel["dtype"], kernel["mask"], kernel["block_d"]) for kernel in with_scores}
    refused = {}
    for dtype, mask, head_dim in sorted(combinations):
        problem = _problem(dtype, mask, head_dim)
        try:
            for backward in (False, True):
                _C.plan(**problem, **device, backward=backward)
        except (NotImplementedError, ValueError) as error:
            refused[f"{dtype}, mask {mask}, head_dim {head_dim}"] = str(error)
    return refused


def _compiled_in(kernels: list[dict]) -> list[str]:
    def size(some: list[dict]) -> str:
        return f"{len(some)} kernels, {sum(kernel['image_size'] for kernel in some) / 1e6:.1f} MB"

    def values(name: str, some: list[dict]) -> str:
        return ", ".join(map(str, dict.fromkeys(kernel[name] for kernel in some)))

    with_scores = sorted((kernel for kernel in kernels if kernel["block_n"]), key=lambda kernel: kernel["block_d"])
    rows = [
        _row("op library", f"for torch {', '.join(_load.carried())}"),
        _row("cubins", size(kernels)),
        _row("functions", values("function", kernels)),
        _row("dtypes", values("dtype", with_scores)),
        _row("masks", values("mask", with_scores)),
        _row("head_dim", f"multiples of 8, padded to {values('block_d', with_scores)}"),
    ]
    for arch in sorted({kernel["arch"] for kernel in kernels}):
        rows.append(_row(f"compute {_dotted(arch)}", size([kernel for kernel in kernels if kernel["arch"] == arch])))
    return rows


def _device(kernels: list[dict], index: int) -> str:
    device = _C.device(index)
    name = torch.cuda.get_device_name(index) if torch.cuda.is_available() else "CUDA device"
    facts = f"{name}, compute capability {_dotted(device['arch'])}, {device['sm_count']} multiprocessors"
    refused = unserved(kernels, device)
    if not refused:
        return f"{facts}: every compiled combination fits"
    combination, reason = next(iter(refused.items()))
    return f"{facts}: {len(refused)} combinations do not fit, the first being {combination}: {reason}"


def _problem(dtype: str, mask: str, head_dim: int) -> dict:
    """A small problem with everything that a forward and a backward of the combination need, as `plan` takes it."""
    length = 128
    tensor = ((1, 1, length, head_dim), (length * head_dim, length * head_dim, head_dim, 1))
    problem = dict.fromkeys(("q", "k", "v", "out", "dout", "dq", "dk", "dv"), tensor)
    problem["dtype"] = dtype
    if mask != "none":
        problem |= {"mask": ((1, 1, length, length), (length**2, length**2, length, 1)), "mask_dtype": mask}
        problem["needs_dmask"] = mask != "boolean"
    return problem


def _dotted(arch: int) -> str:
    return f"{arch // 10}.{arch % 10}"


def _row(name: str, text: str) -> str:
    return f"  {name:14}{text}"
