"""The README's "Equivalent to" says what the reference says, and every file it points to exists."""

import re
from pathlib import Path

import torch
from problems import Problem
from reference import attention

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_equivalent_lines():
    code = re.search(r"Equivalent to\n\n```python\n(.*?)```", README, re.S)[1]
    inputs = Problem(heads_k=2, mask="f32", mask_axes="1hqk", causal="top_left", mask_values="dead").inputs()
    q, k, v = inputs.q, inputs.k, inputs.v
    names = {"q": q, "k": k, "v": v, "attn_mask": inputs.mask, "scale": q.shape[-1] ** -0.5, "inf": float("inf")}
    names["ones_like"] = torch.ones_like
    exec(code, names)
    out, lse = attention(q.float(), k.float(), v.float(), inputs.mask, True)
    assert lse.isneginf().any(), "a row with nothing to attend to belongs to what is compared"
    torch.testing.assert_close((names["out"], names["lse"]), (out, lse))


def test_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert targets and not missing
