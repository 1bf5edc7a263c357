"""Rotary position embeddings: queries and keys rotated by their positions.

Source: arXiv 2104.09864 section 3.4. Models use two pairings of channels: neighbours (GPT-J), or the first half with
the second half (GPT-NeoX).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rotary:
    """The rotation of heads.

    Args:
        num_channels: number of rotated channels of every head, from the first on; other channels are unchanged.
        base: base of the wavelengths.
        is_interleaved: whether pairs are neighbours; else a pair has one channel from each half.
    """

    num_channels: int
    base: float = 10000.0
    is_interleaved: bool = False

    def turn(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate heads [M, H, S, D] by positions [M, S], [1, S] or [S]."""
        rates = 1.0 / self.base ** (
            torch.arange(0, self.num_channels, 2, device=heads.device, dtype=torch.float32) / self.num_channels
        )
        angles = positions.to(torch.float32).unsqueeze(-1) * rates
        if angles.dim() > 2:
            angles = angles.unsqueeze(1)
        cosines, sines = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        turned, rest = heads[..., : self.num_channels], heads[..., self.num_channels :]
        if self.is_interleaved:
            first, second = turned[..., ::2], turned[..., 1::2]
        else:
            first, second = turned.chunk(2, -1)
        pairs = (first * cosines - second * sines, second * cosines + first * sines)
        if self.is_interleaved:
            return torch.cat((torch.stack(pairs, -1).flatten(-2), rest), -1)
        return torch.cat((*pairs, rest), -1)
