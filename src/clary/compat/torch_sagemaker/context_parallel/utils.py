"""`torch.sagemaker.context_parallel.utils`."""

from clary.train.parallel.fsdp.context.setup import get_batch_for_cp_rank, setup_transformer_engine_cp_groups

__all__ = ["get_batch_for_cp_rank", "setup_transformer_engine_cp_groups"]
