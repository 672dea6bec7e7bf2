"""Attention with masks, forward and backward, from Triton kernels compiled ahead of time.

`attention` is the function; `torch.ops.flashtri.fwd` and `.bwd` are the ops behind it, for TorchScript, torch.export
and C++ (`library` is the file they are in). `alibi` and `t5_bias` make biases by distance, `merge` joins attention over
split keys. `kernels`, `plan` and `explain` tell what is compiled in and what would be launched. Nothing is compiled,
cached or written at run time.
"""

from flashtri import _load
from flashtri._version import __version__

library = _load.load()  # before anything that names torch.ops.flashtri

from flashtri._C import explain, kernels, plan  # noqa: E402
from flashtri.attention import attention  # noqa: E402
from flashtri.biases import alibi, t5_bias  # noqa: E402
from flashtri.merge import merge  # noqa: E402

__all__ = ["__version__", "alibi", "attention", "explain", "kernels", "library", "merge", "plan", "t5_bias"]
