"""`torch.sagemaker.utils.utils.timeit`."""

from clary.train.parallel.fsdp.logs import timeit

__all__ = ["timeit"]
