"""Names that scripts import from `torch.sagemaker.checkpoint`."""
