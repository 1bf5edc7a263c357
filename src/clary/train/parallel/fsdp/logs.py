"""The logger of `torch.sagemaker`, and a context that logs the duration of its block."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager


def get_logger() -> logging.Logger:
    """Return the logger of the library; it goes where the root logger goes."""
    return logging.getLogger("torch.sagemaker")


@contextmanager
def timeit(enabled: bool, msg: str, rank: int = 0) -> Iterator[None]:
    """Log the seconds that its block took, after `msg`, with the rank.

    Args:
        enabled: False logs nothing.
        rank: for the text; all ranks log.

    A block that raises is logged too.
    """
    before = time.monotonic()
    try:
        yield
    finally:
        if enabled:
            get_logger().info("[rank %d] %s: %.3f s", rank, msg, time.monotonic() - before)
