"""`save`, `async_save` and `maybe_finalize_async_calls`."""

from clary.train.parallel.fsdp.asynchronous import (
    PyTorchDistSaveShardedStrategy,
    async_save,
    maybe_finalize_async_calls,
)
from clary.train.parallel.fsdp.saving import save

__all__ = ["PyTorchDistSaveShardedStrategy", "async_save", "maybe_finalize_async_calls", "save"]
