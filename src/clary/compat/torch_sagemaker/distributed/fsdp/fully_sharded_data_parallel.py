"""A name that scripts import."""

from clary.train.parallel.fsdp.checkpoint.export import register_tp_processing_pre_comm_hook

__all__ = ["register_tp_processing_pre_comm_hook"]
