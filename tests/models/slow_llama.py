"""The parts of a Llama layer written out row by row in float64, from their definitions: a slow reference."""

import math

import torch


def normed(rows, weight, eps):
    """RMS norm of rows (K, H)."""
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotated(vector, position, theta):
    """Half-rotation of one head's vector (d,)."""
    half = len(vector) // 2
    angles = position / theta ** (torch.arange(half, dtype=torch.float64) * 2 / len(vector))
    first, second = vector[:half], vector[half:]
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    )


def attended(config, weights, read, positions, visible):
    """What attention adds to rows (K, H) that read (K, I). weights: by their names within `self_attn`."""
    width = config.hidden_size // config.num_attention_heads
    groups = config.num_attention_heads // config.num_key_value_heads
    heads = {}
    for kind in "qkv":
        rows = (read @ weights[f"{kind}_proj.weight"].T).view(len(read), -1, width)
        turned = [
            torch.stack([rotated(head, int(at), 10_000.0) for head in row])
            for row, at in zip(rows, positions, strict=True)
        ]
        heads[kind] = rows if kind == "v" else torch.stack(turned)
    mixed = torch.zeros(len(read), config.num_attention_heads, width, dtype=torch.float64)
    for row in range(len(read)):
        seen = visible[row].nonzero()[:, 0]
        for head in range(config.num_attention_heads):
            keys, values = heads["k"][seen, head // groups], heads["v"][seen, head // groups]
            mixed[row, head] = torch.softmax(keys @ heads["q"][row, head] / math.sqrt(width), 0) @ values
    return mixed.flatten(1) @ weights["o_proj.weight"].T


def fed_forward(weights, read):
    """What the feed-forward part adds to rows that read (K, H). weights: by their names within `mlp`."""
    gate, up = (read @ weights[f"{kind}_proj.weight"].T for kind in ("gate", "up"))
    return (gate * torch.sigmoid(gate) * up) @ weights["down_proj.weight"].T


def within(weights, prefix):
    """The weights of one part, by their names within it, in float64."""
    return {
        name.removeprefix(prefix): weight.detach().double()
        for name, weight in weights.items()
        if name.startswith(prefix)
    }
