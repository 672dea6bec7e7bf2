"""The kernels, in plain Triton: they compile ahead of time through aot/ and run in Triton's interpreter on CPU tensors.

Those of hopper/ are apart: they are in Gluon, which has no interpreter.

Every run-time parameter is named in csrc/core/arguments.def, which also gives its type and what it is a multiple of.
"""

from .bwd_dbias import bwd_dbias
from .bwd_delta import bwd_delta
from .bwd_dkdv import bwd_dkdv
from .bwd_dmask import bwd_dmask
from .bwd_dq import bwd_dq
from .bwd_dq_cast import bwd_dq_cast
from .bwd_terms import bwd_terms
from .fwd import fwd
from .fwd_combine import fwd_combine
from .fwd_decode import fwd_decode
from .fwd_paged import fwd_paged
from .mask_keys import mask_keys

_ALL = (
    fwd, fwd_decode, fwd_paged, fwd_combine, bwd_delta, bwd_dkdv, bwd_dq, bwd_dmask, bwd_dbias, bwd_terms, bwd_dq_cast,
    mask_keys,
)  # fmt: skip
FUNCTIONS = {kernel.__name__: kernel for kernel in _ALL}

__all__ = ["FUNCTIONS", *FUNCTIONS]
