"""`AsyncCallsQueue`."""

from clary.train.parallel.fsdp.asynchronous import AsyncCallsQueue

__all__ = ["AsyncCallsQueue"]
