"""The workloads of `cohort bench step` in PyTorch: the same layers, shapes, batch and optimizer as Cohort's models of these names.

    mlp-small  784-128-128-10,   batch  16 a rank      mlp  784-1024-1024-10, batch 64 a rank
    cnn        2 convolutions,   batch  32 a rank      gpt  4 blocks of width 256, 8 x 128 bytes a rank
"""
import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention over (batch, length, width)."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Residual(nn.Module):
    """x + inner(layer_norm(x))."""

    def __init__(self, width, inner):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), inner

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Embedding(nn.Module):
    """Bytes to the sum of a token and a position vector."""

    def __init__(self, vocabulary, width, context):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)

    def forward(self, ids):
        return self.token(ids) + self.position.weight[:ids.shape[1]]


def block(width, num_heads):
    feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return nn.Sequential(Residual(width, Attention(width, num_heads)), Residual(width, feed_forward))


def gpt(num_blocks=4, width=256, num_heads=4, vocabulary=256, context=128):
    blocks = [block(width, num_heads) for _ in range(num_blocks)]
    return nn.Sequential(Embedding(vocabulary, width, context), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))


def mlp(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def cnn():
    def stage(channels_in, channels_out):
        return [nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*stage(1, 32), *stage(32, 64), nn.Flatten(), nn.Linear(64 * 7 * 7, 1024), nn.ReLU(), nn.Linear(1024, 10))


def pictures(batch, generator):
    return torch.randn(batch, 1, 28, 28, generator=generator), torch.randint(10, (batch,), generator=generator)


def text(batch, context, generator):
    ids = torch.randint(256, (batch, context + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


WORKLOADS = {
    "mlp-small": lambda generator: (mlp(128), *pictures(16, generator)),
    "mlp": lambda generator: (mlp(1024), *pictures(64, generator)),
    "cnn": lambda generator: (cnn(), *pictures(32, generator)),
    "gpt": lambda generator: (gpt(), *text(8, 128, generator)),
}


def workload(name, seed=1):
    """(model, inputs, targets): one rank's share of one step."""
    return WORKLOADS[name](torch.Generator().manual_seed(seed))


def loss_of(output, targets):
    """Mean cross-entropy over every position."""
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())
