"""Ours and the peers, each as one function of the same inputs."""

import contextlib
import dataclasses
import importlib
import re
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .cases import Inputs

OURS = "flashtri"


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    module: str  # what must be importable for it
    call: Callable[[Inputs], Tensor]
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def reason_missing(self) -> str | None:
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            return str(error)
        return None

    def reason_refused(self, inputs: Inputs) -> str | None:
        """Calls it once, forward and where asked backward; what it says where it does not take the inputs."""
        try:
            with self.context():
                out = self.call(inputs)
                if inputs.differentiable() and torch.is_grad_enabled():
                    torch.autograd.grad(out, inputs.differentiable(), inputs.dout)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            return str(error).splitlines()[0]
        return None


def call_flashtri(inputs: Inputs) -> Tensor:
    return torch.ops.flashtri.fwd.default(inputs.q, inputs.k, inputs.v, inputs.mask, 0.0, inputs.is_causal)[0]


def call_flashtri_attention(inputs: Inputs) -> Tensor:
    import flashtri

    return flashtri.attention(inputs.q, inputs.k, inputs.v, attn_mask=inputs.mask, is_causal=inputs.is_causal)


def call_sdpa(inputs: Inputs) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.mask,
        0.0,
        inputs.is_causal,
        enable_gqa=inputs.q.shape[1] != inputs.k.shape[1],
    )


def call_flash(function: Callable, inputs: Inputs) -> Tensor:
    """The packages of FlashAttention take [B, S, H, D]: a view of the same memory."""
    if inputs.mask is not None:
        raise NotImplementedError("FlashAttention takes no mask")
    q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
    out = function(q, k, v, causal=inputs.is_causal)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def call_fa3(inputs: Inputs) -> Tensor:
    from fa3_fwd_interface import flash_attn_func

    return call_flash(flash_attn_func, inputs)


def call_fa4(inputs: Inputs) -> Tensor:
    from flash_attn.cute import flash_attn_func

    return call_flash(flash_attn_func, inputs)


def sdpa(name: str, backend: SDPBackend) -> Peer:
    return Peer(name, "torch", call_sdpa, lambda: sdpa_kernel(backend))


PEERS = [
    Peer(OURS, "flashtri", call_flashtri),
    sdpa("sdpa-flash", SDPBackend.FLASH_ATTENTION),
    sdpa("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION),
    sdpa("sdpa-efficient", SDPBackend.EFFICIENT_ATTENTION),
    Peer("fa3", "fa3_fwd_interface", call_fa3),  # PyPI's fa3-fwd: the forward alone
    Peer("fa4", "flash_attn.cute", call_fa4),  # PyPI's flash-attn-4
]
# The Python function over the op, where the time of a call is all that matters.
ATTENTION = Peer("flashtri.attention", "flashtri", call_flashtri_attention)


def in_order(rows: list) -> list:
    """Report rows by metric, as they first came, and then as PEERS stands."""
    metrics = list(dict.fromkeys(r.metric for r in rows))
    names = [p.name for p in [*PEERS, ATTENTION]]
    return sorted(rows, key=lambda r: (metrics.index(r.metric), names.index(r.implementation)))


def available(pattern: str = "", peers: list[Peer] = PEERS) -> list[Peer]:
    """Ours, and the peers whose name `pattern` is found in and whose package is here.

    Says which packages are not, and raises where flashtri itself is not.
    """
    found = []
    for peer in peers:
        if peer.module != "flashtri" and not re.search(pattern, peer.name):
            continue
        reason = peer.reason_missing()
        if reason and peer.module == "flashtri":
            raise SystemExit(f"benchmarks need flashtri: {reason}")
        if reason:
            print(f"  {peer.name} is not here: {reason}")
        else:
            found.append(peer)
    return found
