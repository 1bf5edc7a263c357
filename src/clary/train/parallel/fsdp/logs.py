"""The logger of `torch.sagemaker`, and a context that logs the duration of its block."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager


def get_logger() -> logging.Logger:
    """Return the library's logger, whose records propagate to the root logger."""
    return logging.getLogger("torch.sagemaker")


@contextmanager
def timeit(enabled: bool, msg: str, rank: int = 0) -> Iterator[None]:
    """Log `msg`, the duration of a block in seconds, and the rank, even if the block raises.

    Args:
        enabled: False logs nothing.
        rank: rank to name in the text; all ranks log.
    """
    before = time.monotonic()
    try:
        yield
    finally:
        if enabled:
            get_logger().info("[rank %d] %s: %.3f s", rank, msg, time.monotonic() - before)
