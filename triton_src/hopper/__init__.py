"""Warp-specialised kernels for Hopper (sm_90) in Gluon, Triton's lower layer: TMA, mbarriers and wgmma by name.

They compile ahead of time only (Gluon has no interpreter) and need the pinned Triton, since Gluon's names change
between versions; that is why nothing outside aot/ imports this package. One warp loads tiles through TMA descriptors,
which fill what lies outside a tensor with zeros; warpgroups of four warps compute.
"""

from .bwd import bwd_hopper
from .fwd import fwd_hopper, fwd_hopper_mask

FUNCTIONS = {kernel.__name__: kernel for kernel in (fwd_hopper, fwd_hopper_mask, bwd_hopper)}

__all__ = ["FUNCTIONS", "bwd_hopper", "fwd_hopper", "fwd_hopper_mask"]
