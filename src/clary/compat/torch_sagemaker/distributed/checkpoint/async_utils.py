"""`AsyncCallsQueue`."""

from clary.train.parallel.fsdp.checkpoint.asynchronous import AsyncCallsQueue

__all__ = ["AsyncCallsQueue"]
