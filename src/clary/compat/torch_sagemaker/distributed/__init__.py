"""The package `torch.sagemaker.distributed`."""
