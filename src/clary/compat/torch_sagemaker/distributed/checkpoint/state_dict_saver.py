"""`save`, `async_save` and `maybe_finalize_async_calls`."""

from clary.train.parallel.fsdp.checkpoint.asynchronous import (
    PyTorchDistSaveShardedStrategy,
    async_save,
    maybe_finalize_async_calls,
)
from clary.train.parallel.fsdp.checkpoint.saving import save

__all__ = ["PyTorchDistSaveShardedStrategy", "async_save", "maybe_finalize_async_calls", "save"]
