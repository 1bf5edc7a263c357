"""Small things that scripts take from `torch.sagemaker.utils`."""
