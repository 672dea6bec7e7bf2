"""all-MiniLM-L6-v2 in plain torch modules, with `torch.ops.flashtri.fwd` as its attention.

Nothing here is written for TorchScript or torch.export: both take the op as they take torch's own.
"""

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)

    def split(self, x: Tensor) -> Tensor:
        # The op takes fp16 and bf16; fp16 has three more bits, and nothing here comes near its largest number.
        return x.unflatten(-1, [self.heads, -1]).transpose(1, 2).to(torch.float16)  # [B, H, S, D]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        out = torch.ops.flashtri.fwd(q, k, v, mask)[0]
        return out.transpose(1, 2).flatten(2).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, intermediate: int, eps: float):
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.attention_out = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps)
        self.up = nn.Linear(hidden, intermediate)
        self.down = nn.Linear(intermediate, hidden)
        self.norm = nn.LayerNorm(hidden, eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention_out(self.attention(x, mask)))
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """input_ids [B, S] int64, attention_mask [B, S] int64 (1: a token, 0: padding) -> unit vectors [B, hidden]."""

    def __init__(self, config: dict):
        super().__init__()
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.word = nn.Embedding(config["vocab_size"], hidden)
        self.position = nn.Embedding(config["max_position_embeddings"], hidden)
        self.token_type = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps)
        self.layers = nn.ModuleList(
            Layer(hidden, config["num_attention_heads"], config["intermediate_size"], eps)
            for _ in range(config["num_hidden_layers"])
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.norm(self.word(input_ids) + self.position(positions) + self.token_type.weight[0])
        # Additive key padding [B, 1, 1, S]: broadcast over heads and queries by the op, never materialised.
        mask = torch.zeros_like(attention_mask, dtype=torch.float16)
        mask = mask.masked_fill(attention_mask == 0, float("-inf"))[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        weight = attention_mask[:, :, None].to(x.dtype)
        return nn.functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)


# From the checkpoint's names to the ones above; the pooler is not used by this model.
RENAMES = (
    ("embeddings.word_embeddings", "word"),
    ("embeddings.position_embeddings", "position"),
    ("embeddings.token_type_embeddings", "token_type"),
    ("embeddings.LayerNorm", "norm"),
    ("encoder.layer", "layers"),
    ("attention.self", "attention"),
    ("attention.output.dense", "attention_out"),
    ("attention.output.LayerNorm", "attention_norm"),
    ("intermediate.dense", "up"),
    ("output.dense", "down"),
    ("output.LayerNorm", "norm"),
)


def load(config: dict, weights: dict[str, Tensor]) -> Encoder:
    """The encoder with a BERT checkpoint's weights; raises RuntimeError where a weight is missing or left over."""
    state = {}
    for name, weight in weights.items():
        if name.startswith("pooler.") or name.endswith("position_ids"):
            continue
        for old, new in RENAMES:
            name = name.replace(old, new)
        state[name] = weight.float()
    model = Encoder(config)
    model.load_state_dict(state)
    return model.eval()
