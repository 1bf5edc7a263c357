"""Helpers that scripts import from `torch.sagemaker.utils`."""
