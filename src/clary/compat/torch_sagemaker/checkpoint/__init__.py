"""Names that scripts take from `torch.sagemaker.checkpoint`."""
