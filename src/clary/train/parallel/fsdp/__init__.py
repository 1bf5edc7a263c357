"""SMP v2: the additions of `torch.sagemaker` to torch's FSDP. Importing this package does not import torch."""
