"""Saves and loads a model, its optimizer and its scheduler in one call."""

from clary.train.parallel.fsdp.checkpoint.export import (
    EXPORT_KEY_IDENTITY,
    EXPORT_KEY_MODEL,
    EXPORT_KEY_OPTIMIZER,
    EXPORT_KEY_SCHEDULER,
    load_model_checkpoint,
    save_model_checkpoint,
)

__all__ = [
    "EXPORT_KEY_IDENTITY",
    "EXPORT_KEY_MODEL",
    "EXPORT_KEY_OPTIMIZER",
    "EXPORT_KEY_SCHEDULER",
    "load_model_checkpoint",
    "save_model_checkpoint",
]
