"""SMP v2: what `torch.sagemaker` adds to torch's FSDP. Importing this package imports no torch."""
