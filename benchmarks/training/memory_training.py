"""One training process of `bench_memory`: steps of a GPT-like stack in one way of keeping activations.

Every step computes all microbatches forward, then all backward, last first, as a pipeline's first stage would. Bytes in
use are malloc's own count, exact to the byte; peak memory is the kernel's.
Where: `bench_memory` starts `python -m benchmarks.training.memory_training WAY FOLDER NUM_STEPS`; one line of JSON
comes back.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from clary.train.parallel.memory.checkpointing import set_activation_checkpointing, use_offloader
from clary.train.parallel.memory.offloading import Offloader

NUM_LAYERS, NUM_MICROBATCHES = 8, 4
BATCH, LENGTH, WIDTH, NUM_HEADS = 2, 256, 256, 8
INPUT_BYTES = BATCH * LENGTH * WIDTH * 4  # of a layer, for one microbatch
SEED = 11
STRATEGIES = {"each": "each", "group_4": "group_4", "contiguous": "contiguous", "disk": "each"}
RATE_PIECES = 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden_BLD: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.before_attention(hidden_BLD)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden_BLD = hidden_BLD + self.out(mixed.transpose(1, 2).flatten(-2))
        return hidden_BLD + self.down(functional.gelu(self.up(self.before_mlp(hidden_BLD))))


class Checkpointed(nn.Module):
    """A layer under torch's own checkpoint."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_BLD: torch.Tensor) -> Any:
        return torch_checkpoint(self.layer, hidden_BLD, use_reentrant=False)


class _MallocInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def used_bytes() -> int:
    """Bytes that malloc has given out."""
    info = _mallinfo2()
    return int(info.uordblks + info.hblkhd)


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _MallocInfo


def resident_bytes(word: str) -> int:
    match = re.search(rf"{word}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) * 1024


class _SavedFile:
    """A file of `torch.save` that lives as long as this."""

    def __init__(self, folder: Path) -> None:
        handle, self.path = tempfile.mkstemp(dir=folder)
        os.close(handle)

    def __del__(self) -> None:
        os.unlink(self.path)


def _hooks(way: str, folder: Path) -> Any:
    """Return torch's own means: its hook for host memory, or hooks that save to files, as its documentation shows."""
    if way == "torch save_on_cpu":
        return torch.autograd.graph.save_on_cpu()
    if way != "torch.save hooks":
        return contextlib.nullcontext()

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.nbytes < INPUT_BYTES:
            return tensor
        saved = _SavedFile(folder)
        torch.save(tensor, saved.path)
        return saved

    return torch.autograd.graph.saved_tensors_hooks(
        pack, lambda packed: packed if isinstance(packed, torch.Tensor) else torch.load(packed.path)
    )


def run(way: str, folder: Path, num_steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    layers = [Layer() for _ in range(NUM_LAYERS)]
    if way.startswith("torch"):
        model: nn.Sequential = nn.Sequential(*map(Checkpointed, layers))
    else:
        model = nn.Sequential(*layers)
    offloader = Offloader(folder) if way == "disk" else None
    use_offloader(offloader)
    if way in STRATEGIES:
        set_activation_checkpointing(model, strategy=STRATEGIES[way])
    inputs = [torch.randn(BATCH, LENGTH, WIDTH) for _ in range(NUM_MICROBATCHES)]
    weight = torch.randn(BATCH, LENGTH, WIDTH)  # a loss that keeps nothing of its own
    names = ("step_s", "cpu_s", "forward_cpu_s", "kept_bytes", "peak_bytes")
    result: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(num_steps + 1):
        model.zero_grad(set_to_none=False)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here
        before, resident = used_bytes(), resident_bytes("VmRSS")
        began, cpu_s = time.perf_counter(), time.process_time()
        with _hooks(way, folder):
            losses = [(model(one) * weight).sum() for one in inputs]
        forward_cpu_s = time.process_time() - cpu_s
        if offloader is not None and offloader._spill is not None:
            offloader._spill._writer.submit(lambda: None).result()  # so that what is counted does not depend on luck
        paused = time.perf_counter()
        kept = used_bytes() - before
        paused = time.perf_counter() - paused
        while losses:
            losses.pop().backward()
        result["step_s"].append(time.perf_counter() - began - paused)
        result["cpu_s"].append(time.process_time() - cpu_s)
        result["forward_cpu_s"].append(forward_cpu_s)
        result["kept_bytes"].append(kept)
        result["peak_bytes"].append(resident_bytes("VmHWM") - resident)
    gradients = hashlib.sha256()
    for parameter in model.parameters():
        assert parameter.grad is not None
        gradients.update(parameter.grad.numpy().tobytes())
    counts = {} if offloader is None else vars(offloader.counts)
    if offloader is not None:
        offloader.close()
    first = {name: values[1:] for name, values in result.items()}  # the first step loads and allocates
    return {**first, "gradients": gradients.hexdigest(), "counts": counts, "rates": _rates(folder)}


def _rates(folder: Path) -> dict[str, float]:
    """Bytes a second that this folder takes and gives, in pieces of one layer's input."""
    piece, back = memoryview(os.urandom(INPUT_BYTES)), bytearray(INPUT_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        handle, num_bytes = file.fileno(), RATE_PIECES * INPUT_BYTES
        os.posix_fallocate(handle, 0, num_bytes)
        began = time.perf_counter()
        for place in range(RATE_PIECES):
            os.pwrite(handle, piece, place * INPUT_BYTES)
        written = time.perf_counter()
        for place in range(RATE_PIECES):
            os.preadv(handle, [back], place * INPUT_BYTES)
        return {"write": num_bytes / (written - began), "read": num_bytes / (time.perf_counter() - written)}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))), flush=True)
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal
