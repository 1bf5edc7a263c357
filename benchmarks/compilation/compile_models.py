"""Models in the shapes of BERT, GPT and ResNet, small enough for one core; imported by training processes only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, NUM_CLASSES, EDGE = 2048, 10, 32
WIDTH, HEADS, LAYERS, LENGTH, ROWS = 256, 4, 4, 64, 8
QUICK_LAYERS = 1
DROPOUT = 0.1


class Layer(nn.Module):
    """A transformer layer; norms after the parts as in BERT, or before them as in GPT."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return hidden states like `x` [N, S, W]."""
        if self.is_causal:
            x = x + self.drop(self._attend(self.norm_1(x)))
            return x + self.drop(self.down(functional.gelu(self.up(self.norm_2(x)))))
        x = self.norm_1(x + self.drop(self._attend(x)))
        return self.norm_2(x + self.drop(self.down(functional.gelu(self.up(x)))))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        out: torch.Tensor = self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return out


class Transformer(nn.Module):
    """Embeddings, layers, and scores over the vocabulary."""

    def __init__(self, *, is_causal: bool, num_layers: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(is_causal=is_causal) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores [N, S, V] of tokens [N, S]."""
        x = self.embed(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


class Bottleneck(nn.Module):
    """A residual block of three convolutions, each with its batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = channels // 4
        shapes = ((channels, inner, 1), (inner, inner, 3), (inner, channels, 1))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, k, padding=k // 2, bias=False) for a, b, k in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _ in shapes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return maps like `x` [N, C, H, W]."""
        inner = x
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            inner = norm(convolution(inner))
            if number < len(self.norms) - 1:
                inner = functional.relu(inner)
        return functional.relu(x + inner)


class Residual(nn.Module):
    """Bottlenecks at two resolutions, and scores of classes."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.first = nn.Sequential(*(Bottleneck(64) for _ in range(num_blocks)))
        self.widen = nn.Conv2d(64, 128, 1, stride=2, bias=False)
        self.second = nn.Sequential(*(Bottleneck(128) for _ in range(num_blocks)))
        self.head = nn.Linear(128, NUM_CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores [N, classes] of images [N, 3, H, W]."""
        x = self.second(self.widen(self.first(self.stem(images))))
        scores: torch.Tensor = self.head(x.mean(dim=(2, 3)))
        return scores


def make(name: str, *, quick: bool) -> tuple[nn.Module, Callable[[int], tuple[torch.Tensor, torch.Tensor]]]:
    """Return a model, and a function from a step to its inputs and targets.

    Args:
        name: bert, gpt or resnet.
        quick: a quarter of the layers.
    """
    num_layers = QUICK_LAYERS if quick else LAYERS
    torch.manual_seed(1)
    if name == "resnet":
        return Residual(num_layers), _images
    return Transformer(is_causal=name == "gpt", num_layers=num_layers), _tokens if name == "bert" else _next_tokens


def _images(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(ROWS, 3, EDGE, EDGE, generator=generator)
    return images, images.mean(dim=(1, 2, 3)).mul(1000).long().remainder(NUM_CLASSES)


def _tokens(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))
    return tokens, tokens


def _next_tokens(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, _ = _tokens(step)
    return tokens, tokens.roll(-1, dims=1)
