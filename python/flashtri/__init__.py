"""Attention with masks, forward and backward, from Triton kernels compiled ahead of time.

`attention` is the function; `torch.ops.flashtri.fwd` and `.bwd` are the ops behind it, for TorchScript, torch.export
and C++ (`library` is the file they are in). `kernels`, `plan` and `explain` tell what is compiled in and what would be
launched. Nothing is compiled, cached or written at run time.
"""

from flashtri import _load
from flashtri._version import __version__

library = _load.load()  # before anything that names torch.ops.flashtri

from flashtri._C import explain, kernels, plan  # noqa: E402
from flashtri.attention import attention  # noqa: E402

__all__ = ["__version__", "attention", "explain", "kernels", "library", "plan"]
