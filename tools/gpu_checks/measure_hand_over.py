"""Two processes on one GPU hand tensors to each other: lent memory against the way through host memory.

Where: `measurements.py hand-over`. The bound is measured in the same process: lent memory must take less time than the
way through host memory, and it is told next to a copy on the GPU alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch

_SIZES_MIB = (1, 16, 64)
_TIMES, _WARM = 12, 4


def measure_hand_over(*, is_rehearsal: bool) -> tuple[bool, str, dict[str, Any]]:
    """Return whether the bound holds for the largest tensor, words, and numbers."""
    if is_rehearsal:
        return False, "CUDA lends no memory without a GPU", {}
    from clary.train.parallel.pipeline.hand_over import own_seat
    from clary.train.parallel.pipeline.lending import CudaLender

    device = torch.device("cuda", 0)
    lender = CudaLender(device, own_seat(device, "one").visible)
    numbers: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "tools.gpu_checks.measure_hand_over"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        for size in _SIZES_MIB:
            tensor = torch.ones(size << 18, device=device)
            for way in ("lent", "host"):
                times = []
                for number in range(_WARM + _TIMES):
                    torch.cuda.synchronize()
                    began_s = time.perf_counter()
                    data = lender.lend(tensor) if way == "lent" else tensor.cpu().numpy().tobytes()
                    peer.stdin.write(f"{way} {len(data)}\n".encode() + data)
                    peer.stdin.flush()
                    answer = json.loads(peer.stdout.readline())
                    if answer != [tensor.numel()]:
                        raise RuntimeError(f"the peer found {answer}; expected {[tensor.numel()]}")
                    if number >= _WARM:
                        times.append(time.perf_counter() - began_s)
                numbers[f"{way}_{size}_mib_ms"] = round(1000 * sorted(times)[len(times) // 2], 3)
            numbers[f"copy_{size}_mib_ms"] = round(1000 * _copy_s(tensor), 3)
        peer.stdin.close()
    largest = _SIZES_MIB[-1]
    holds = numbers[f"lent_{largest}_mib_ms"] < numbers[f"host_{largest}_mib_ms"]
    return holds, "from one process's GPU memory into another's on the same GPU, there and told back", numbers


def _copy_s(tensor: torch.Tensor) -> float:
    target = torch.empty_like(tensor)
    times = []
    for _ in range(_WARM + _TIMES):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        target.copy_(tensor)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began_s)
    return sorted(times[_WARM:])[_TIMES // 2]


def _be_peer() -> None:
    """Receive tensors on standard input until it ends, and print the sum of each as JSON."""
    from clary.train.parallel.pipeline.hand_over import own_seat
    from clary.train.parallel.pipeline.lending import CudaLender, arrived

    device = torch.device("cuda", 0)
    lender = CudaLender(device, own_seat(device, "one").visible)
    while head := sys.stdin.buffer.readline():
        way, length = head.split()
        data = sys.stdin.buffer.read(int(length))
        if way == b"lent":
            tensor = arrived(lender.borrow(data), device)
        else:
            tensor = torch.frombuffer(bytearray(data), dtype=torch.float32).to(device)
        print(json.dumps([int(tensor.sum())]), flush=True)


if __name__ == "__main__":
    _be_peer()
