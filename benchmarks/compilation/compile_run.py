"""One training process on one core; prints a line of JSON: seconds of steps, by clock and processor, and losses.

Run: `python -m benchmarks.compilation.compile_run MODEL STEPS QUICK OWN`, OWN being 1 for autocast of its own.
CLARY_COMPILE and CLARY_AMP in the environment have the models compiled or run under autocast, as in jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

BEGAN_AT_S = time.monotonic()

import torch  # noqa: E402 - the clock runs before
from torch.nn import functional  # noqa: E402

from benchmarks.compilation.compile_models import make  # noqa: E402
from clary.train.compilation import outermost  # noqa: E402


def main(name: str, num_steps: int, *, quick: bool, own: bool) -> None:
    """Train and tell."""
    torch.set_num_threads(1)
    outermost.install()
    model, batch = make(name, quick=quick)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds: list[float] = []
    processor_s: list[float] = []
    losses: list[float] = []
    torch.manual_seed(2)  # of dropout
    for step in range(num_steps):
        inputs, targets = batch(step)
        began_s = time.monotonic() if seconds else BEGAN_AT_S
        used_s = _processor_s() if seconds else 0.0
        context = torch.autocast("cpu", dtype=torch.bfloat16) if own else contextlib.nullcontext()
        with context:
            scores = model(inputs)
        loss = functional.cross_entropy(scores.float().flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.monotonic() - began_s)
        processor_s.append(_processor_s() - used_s)
        losses.append(loss.item())
    print(json.dumps({"seconds": seconds, "processor_s": processor_s, "losses": losses, "torch": torch.__version__}))


def _processor_s() -> float:
    """Return the processor's time of this process and of the compilers that it has run."""
    of_children = os.times()[2:4]
    return time.process_time() + sum(of_children)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), quick=sys.argv[3] == "1", own=sys.argv[4] == "1")
