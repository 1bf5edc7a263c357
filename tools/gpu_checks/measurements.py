"""Short measurements on one GPU, each against a bound that is measured in the same process: `measurements.py NAME`.

amp: a GPT block, forward and backward, in float32 (without TF32) against bfloat16 autocast.
compile: the same block in bfloat16, called as it is against compiled.
offload: a step of checkpointed blocks that fits, with activations in pinned memory against without.
snapshot: how long training waits for a snapshot, against one copy of as many bytes into pinned memory.
hand-over: see `measure_hand_over`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from tools.gpu_checks.measure_hand_over import measure_hand_over
from tools.gpu_checks.running import ABSENT, FAILED, PASSED
from tools.gpu_checks.telling import tell
from torch import nn

MIB = 1 << 20
_IS_REHEARSAL = bool(os.environ.get("CLARY_CUDA_ON_CPU"))


class Block(nn.Module):
    """A block of GPT: attention over all earlier tokens, then a layer four times as wide."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.merged = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states of the same shape, [batch, tokens, width]."""
        batch, tokens, width = hidden.shape
        parts = self.mixed(self.first_norm(hidden)).view(batch, tokens, 3, self.num_heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.merged(seen.transpose(1, 2).reshape(batch, tokens, width))
        return hidden + self.down(nn.functional.gelu(self.up(self.second_norm(hidden))))


def main(name: str) -> None:
    """Measure, and tell whether the bound holds."""
    if _IS_REHEARSAL:
        import clary_cuda_on_cpu  # type: ignore[import-not-found]

        clary_cuda_on_cpu.register()
    if not torch.cuda.is_available():
        tell(ABSENT, "torch sees no GPU")
        return
    measure: dict[str, Callable[[], tuple[bool, str, dict[str, Any]]]] = {
        "amp": _amp,
        "compile": _compile,
        "offload": _offload,
        "snapshot": _snapshot,
        "hand-over": lambda: measure_hand_over(is_rehearsal=_IS_REHEARSAL),
    }
    holds, words, numbers = measure[name]()
    if _IS_REHEARSAL:
        tell(ABSENT, "ran on the CPU, small: its times mean nothing", {})
        return
    tell(PASSED if holds else FAILED, words, numbers)


def _median_s(step: Callable[[], object], *, warm: int = 5, times: int = 15) -> float:
    """Return the median time of a step, from one moment at which the GPU has done all to the next."""
    if _IS_REHEARSAL:
        warm, times = 1, 1
    found = []
    for number in range(warm + times):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if number >= warm:
            found.append(time.perf_counter() - began_s)
    return sorted(found)[len(found) // 2]


def _block_and_batch() -> tuple[Block, torch.Tensor]:
    torch.manual_seed(0)
    width, heads, shape = (64, 2, (1, 16)) if _IS_REHEARSAL else (2048, 16, (8, 1024))
    return Block(width, heads).to("cuda"), torch.randn(*shape, width, device="cuda", requires_grad=True)


def _training_step(block: nn.Module, batch: torch.Tensor, *, is_mixed: bool) -> Callable[[], None]:
    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_mixed):
            hidden = block(batch)
        hidden.float().square().mean().backward()
        block.zero_grad(set_to_none=True)
        batch.grad = None

    return step


def _amp() -> tuple[bool, str, dict[str, Any]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    block, batch = _block_and_batch()
    full_s = _median_s(_training_step(block, batch, is_mixed=False))
    mixed_s = _median_s(_training_step(block, batch, is_mixed=True))
    ratio = full_s / mixed_s
    numbers = {"float32_ms": _ms(full_s), "bfloat16_ms": _ms(mixed_s), "times_as_fast": round(ratio, 2), "least": 2.5}
    return ratio >= 2.5, "a GPT block, forward and backward", numbers


def _compile() -> tuple[bool, str, dict[str, Any]]:
    # Compiling takes most from what is small: a block of GPT-2's size.
    torch.manual_seed(0)
    width, heads, shape = (64, 2, (1, 16)) if _IS_REHEARSAL else (768, 12, (8, 512))
    block = Block(width, heads).to("cuda", torch.bfloat16)
    batch = torch.randn(*shape, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    plain_s = _median_s(_training_step(block, batch, is_mixed=False))
    compiled_s = _median_s(_training_step(torch.compile(block), batch, is_mixed=False))
    ratio = plain_s / compiled_s
    numbers = {"eager_ms": _ms(plain_s), "compiled_ms": _ms(compiled_s), "times_as_fast": round(ratio, 2), "least": 1.3}
    return ratio >= 1.3, "a GPT block of width 768 in bfloat16, forward and backward", numbers


def _offload() -> tuple[bool, str, dict[str, Any]]:
    from clary.train.parallel.memory.checkpointing import set_activation_checkpointing, use_offloader
    from clary.train.parallel.memory.offloading import Offloader

    torch.manual_seed(0)
    width, heads, shape, layers = (64, 2, (1, 16), 2) if _IS_REHEARSAL else (2048, 16, (8, 1024), 12)
    model = nn.Sequential(*(Block(width, heads) for _ in range(layers))).to("cuda")
    for block in model:
        set_activation_checkpointing(block)
    batch = torch.randn(*shape, width, device="cuda", requires_grad=True)
    step = _training_step(model, batch, is_mixed=True)
    offloader = Offloader(horizon=2)
    step_s, peaks = {}, {}
    for name, one in (("kept", None), ("offloaded", offloader)):
        use_offloader(one)
        torch.cuda.reset_peak_memory_stats()
        step_s[name] = _median_s(step)
        peaks[name] = torch.cuda.max_memory_allocated()
    use_offloader(None)
    offloader.close()
    percent = 100 * (step_s["offloaded"] / step_s["kept"] - 1)
    numbers = {
        "kept_ms": _ms(step_s["kept"]),
        "offloaded_ms": _ms(step_s["offloaded"]),
        "percent_longer": round(percent, 1),
        "at_most": 5,
        "offloaded_mib": offloader.counts.offloaded_bytes // MIB,
        "peak_mib_kept": peaks["kept"] // MIB,
        "peak_mib_offloaded": peaks["offloaded"] // MIB,
    }
    return percent <= 5, "12 checkpointed GPT blocks, a step that fits without offloading", numbers


def _snapshot() -> tuple[bool, str, dict[str, Any]]:
    from clary.train.checkpoint.plans import agree_on_plan
    from clary.train.checkpoint.ranks import Ranks
    from clary.train.checkpoint.snapshot import Snapshot

    count, size = (2, MIB) if _IS_REHEARSAL else (64, 64 * MIB)
    flat: dict[str, Any] = {f"part{number}": torch.ones(size // 4, device="cuda") for number in range(count)}
    plan, snapshot = agree_on_plan(Ranks(), flat), Snapshot()
    stall_s = _median_s(lambda: snapshot.take(plan, flat, save="s", step=1, rank=0, num_parts=1), warm=2, times=5)
    whole = torch.ones(count * size, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(count * size, dtype=torch.uint8, pin_memory=True)
    copy_s = _median_s(lambda: pinned.copy_(whole, non_blocking=True), warm=2, times=5)
    numbers = {
        "gib": round(count * size / (1 << 30), 2),
        "stall_ms": _ms(stall_s),
        "one_copy_ms": _ms(copy_s),
        "copy_gb_per_s": round(count * size / copy_s / 1e9, 1),
        "stall_to_copy": round(stall_s / copy_s, 2),
        "at_most": 1.2,
    }
    return stall_s <= 1.2 * copy_s, "the stall of a snapshot against one pinned copy of as many bytes", numbers


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


if __name__ == "__main__":
    main(sys.argv[1])
